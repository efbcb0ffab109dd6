"""Columns → bytes → columns, exactly."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity.page.payload import compressed, pack


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 255], "u1"),
        ([0, 256], "u2"),
        ([0, 65_536], "u4"),
        ([-1, 5], "i4"),
        ([0, 2**32], "f8"),
        ([-(2**31) - 1, 0], "f8"),
        ([], "u1"),
    ],
)
def test_integers_take_the_smallest_type(values: list[int], kind: str) -> None:
    header, block = pack({"t": {"c": np.array(values, dtype=np.int64)}})
    assert header["t"] == {"rows": len(values), "columns": [["c", kind, 0]]}
    assert np.frombuffer(block, f"<{kind}", len(values)).tolist() == values


@given(
    st.lists(
        st.one_of(
            st.lists(st.floats(width=64), min_size=3, max_size=3).map(np.array),
            st.lists(st.floats(width=32), min_size=3, max_size=3).map(
                lambda values: np.array(values, dtype=np.float32)
            ),
            st.lists(st.integers(-(2**31), 2**32 - 1), min_size=3, max_size=3).map(
                lambda values: np.array(values, dtype=np.int64)
            ),
            st.lists(st.booleans(), min_size=3, max_size=3).map(np.array),
        ),
        min_size=1,
    )
)
def test_every_column_reads_back_as_it_was(columns: list[np.ndarray]) -> None:
    table = {str(number): column for number, column in enumerate(columns)}
    header, block = pack({"t": table})
    for name, kind, offset in header["t"]["columns"]:
        assert offset % 8 == 0
        read = np.frombuffer(block, f"<{kind}", 3, offset)
        np.testing.assert_array_equal(read, table[name])


def test_the_same_content_gives_the_same_text() -> None:
    content = bytes(range(256)) * 50
    assert compressed(content) == compressed(content)
    assert gzip.decompress(compressed(content)) == content
    assert compressed(content)[4:8] == b"\0" * 4  # no time in it
