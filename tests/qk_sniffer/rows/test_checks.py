"""NaN and infinity in rows: what is refused, and what the message names."""

import numpy as np
import pytest

from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.rows.checks import stored_rows
from qk_sniffer.rows.layer_tables import Part
from qk_toolkit.errors import ToolkitError

QUERY, KEY = HeadId(3, 2, "q"), HeadId(3, 1, "k")
DRAWN = HeadId(3, 1, "k", attended=True)
_OVERFLOWS = "The model overflows: load it in bfloat16 or float32 (model.dtype). Texts finished "


def rows_of(head):
    columns = {
        "head": np.full(3, head.head),
        "example_id": np.array([4, 4, 7]),
        "position": np.array([0, 5, 2]),
        "vector": np.ones((3, 8), np.float32),
    }
    if head.kind == "q":
        columns["lse"] = np.ones(3, np.float32)
    else:
        columns["value_norm"] = np.ones(3, np.float32)
        columns["received"] = np.ones((3, 2), np.float32)
    return Rows(columns)


def spoiled(head, column, value):
    """The second text has a wrong value."""
    values = rows_of(head)[column].copy()
    values[2, ...] = value
    return rows_of(head).with_columns({column: values})


def stored(head, rows, half=False, known=True):
    return stored_rows(Part.of(head), rows, half=half, known_attention=known)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("head", "column", "named"),
    [
        (QUERY, "vector", "the queries of text 7."),
        (KEY, "vector", "the keys of text 7."),
        (DRAWN, "vector", "the keys of text 7."),
        (KEY, "value_norm", "the values of text 7."),
        (QUERY, "lse", "the attention logits of text 7, query head 2, position 2."),
        (KEY, "received", "the attention logits of text 7, key head 1."),
        (DRAWN, "received", "the attention logits of text 7, key head 1."),
    ],
)
def test_a_value_that_is_not_finite_is_refused(head, column, named, value):
    assert stored(head, rows_of(head)).columns.keys() == rows_of(head).columns.keys()
    with pytest.raises(ToolkitError) as caught:
        stored(head, spoiled(head, column, value))
    expected = f"layer 3: NaN or infinity in {named} {_OVERFLOWS}earlier are kept."
    assert str(caught.value) == expected


def test_what_is_not_known_is_not_refused():
    """Attention that was not computed, and the values of a layer that has none."""
    stored(QUERY, spoiled(QUERY, "lse", np.nan), known=False)
    stored(KEY, spoiled(KEY, "received", np.nan), known=False)
    unknown = {"value_norm": np.full(3, np.nan, np.float32)}
    stored(KEY, rows_of(KEY).with_columns(unknown))
    plain = Rows({name: rows_of(KEY)[name] for name in ("example_id", "position", "vector")})
    assert stored(KEY, plain) is plain


def test_half_precision():
    large = spoiled(KEY, "vector", 65_504.0)  # the largest float16
    assert stored(KEY, large, half=True)["vector"].dtype == np.float16
    assert stored(KEY, large)["vector"].dtype == np.float32
    beyond = spoiled(KEY, "vector", 70_000.0)
    assert len(stored(KEY, beyond)) == 3
    told = "layer 3: NaN or infinity in the keys of text 7. Values are too large for float16: set "
    with pytest.raises(ToolkitError, match=told):
        stored(KEY, beyond, half=True)


def test_finite_values_whose_sum_overflows_are_kept():
    huge = rows_of(KEY).with_columns({"vector": np.full((3, 8), 3e38, np.float32)})
    assert len(stored(KEY, huge)) == 3
