"""Columns: what is written and what is accepted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from qk_dump.attention_columns import ATTENTION_TYPES
from qk_dump.schema import check_columns, unknown_columns, vector_dtype, written_schema
from qk_toolkit.errors import DumpError

FILE = Path("dump/l00h00k/data.parquet")
GOOD = written_schema(4, pa.float32())
OPTIONAL = (
    *("token_str", *ATTENTION_TYPES, "token_id", "value_norm"),
    *("received", "inclusion", "layer", "head"),
)
INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
VECTORS = [
    kind for value in FLOATS for kind in (pa.list_(value), pa.large_list(value), pa.list_(value, 4))
]


def changed(name: str, kind: pa.DataType) -> pa.Schema:
    return GOOD.set(GOOD.get_field_index(name), pa.field(name, kind))


def without(name: str) -> pa.Schema:
    return GOOD.remove(GOOD.get_field_index(name))


def refusal(schema: pa.Schema) -> str:
    with pytest.raises(DumpError) as caught:
        check_columns(schema, FILE, need_example_id=True)
    message = str(caught.value)
    assert message.startswith(f"{FILE}: ")
    return message


def test_the_written_schema_is_the_contract() -> None:
    assert written_schema(64, pa.float16()) == pa.schema(
        [
            ("bucket", pa.int32()),
            ("example_id", pa.int32()),
            ("position", pa.int32()),
            ("vector", pa.list_(pa.float16(), 64)),
            ("sliding_window", pa.int32()),
        ]
    )


def test_optional_columns_follow_in_one_order() -> None:
    schema = written_schema(4, pa.float32(), sorted(OPTIONAL), group=3)
    assert schema.names == [*GOOD.names, *OPTIONAL]
    integers = [*("argmax_position", "argmax_token", "duplicate_keys", "induction_keys")]
    for name in (*integers, "token_id", "layer", "head"):
        assert schema.field(name).type == pa.int32()
    for name in ("first_mass", "duplicate_mass", "induction_mass", "value_norm"):
        assert schema.field(name).type == pa.float32()
    assert schema.field("received").type == pa.list_(pa.float32(), 3)
    assert schema.field("inclusion").type == pa.float64()


def test_token_strings_are_one_more_column() -> None:
    schema = written_schema(4, pa.float32(), ["token_str"])
    assert schema.names == [*GOOD.names, "token_str"]
    assert schema.field("token_str").type == pa.string()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("bucket", INTEGERS),
        ("example_id", INTEGERS),
        ("position", (*INTEGERS, *FLOATS)),
        ("sliding_window", (*INTEGERS, pa.null())),
        ("vector", VECTORS),
    ],
    ids=str,
)
def test_every_documented_type_is_accepted(name: str, kinds: Iterable[pa.DataType]) -> None:
    for kind in kinds:
        check_columns(changed(name, kind), FILE, need_example_id=True)


def test_other_columns_are_ignored() -> None:
    check_columns(GOOD.append(pa.field("token_str", pa.string())), FILE, need_example_id=True)


def test_the_window_column_may_be_absent() -> None:
    check_columns(without("sliding_window"), FILE, need_example_id=True)


@pytest.mark.parametrize("name", ["example_id", "sliding_window"])
@pytest.mark.parametrize("bit", [0, 5])
def test_a_name_with_a_wrong_bit_is_refused(name: str, bit: int) -> None:
    """Queries can do without both columns, so that nothing else would notice."""
    damaged = bytearray(name.encode())
    damaged[3] ^= 1 << bit
    schema = without(name).append(pa.field(damaged.decode(), pa.int32()))
    with pytest.raises(DumpError, match=f"column '{damaged.decode()}' is a damaged name of"):
        check_columns(schema, FILE, need_example_id=False)
    check_columns(schema.append(GOOD.field(name)), FILE, need_example_id=True)


def test_optional_columns_are_known() -> None:
    names = [*GOOD.names, *OPTIONAL]
    assert unknown_columns(names) == []
    assert unknown_columns([*names, "mine", "Vector"]) == ["mine", "Vector"]


@pytest.mark.parametrize("name", ["bucket", "position", "vector"])
def test_a_missing_column_is_named_among_those_found(name: str) -> None:
    message = refusal(without(name))
    assert f"no column '{name}'" in message
    assert "example_id" in message


def test_a_missing_example_id_names_the_way_out() -> None:
    message = refusal(without("example_id"))
    assert "no column 'example_id'" in message
    assert "single_example: true" in message


@pytest.mark.parametrize(
    "schema", [without("example_id"), changed("example_id", pa.string())], ids=["absent", "text"]
)
def test_example_id_does_not_matter_where_it_is_not_needed(schema: pa.Schema) -> None:
    check_columns(schema, FILE, need_example_id=False)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("bucket", pa.float32(), "an integer"),
        ("bucket", pa.bool_(), "an integer"),
        ("example_id", pa.string(), "an integer"),
        ("position", pa.string(), "an integer or float"),
        ("position", pa.timestamp("s"), "an integer or float"),
        ("sliding_window", pa.float64(), "an integer or null"),
        ("vector", pa.float32(), "a list of float16, float32 or float64"),
        ("vector", pa.list_(pa.int32()), "a list of float16, float32 or float64"),
        ("vector", pa.list_(pa.list_(pa.float32())), "a list of float16, float32 or float64"),
        ("vector", pa.binary(), "a list of float16, float32 or float64"),
    ],
    ids=str,
)
def test_a_wrong_type_is_told_with_what_was_found_and_expected(
    name: str, kind: pa.DataType, expected: str
) -> None:
    assert f"column '{name}' is {kind}, expected {expected}" in refusal(changed(name, kind))


@pytest.mark.parametrize("name", ["bucket", "example_id", "position", "vector", "sliding_window"])
def test_a_column_given_twice_is_refused(name: str) -> None:
    assert name in refusal(GOOD.append(GOOD.field(name)))


@pytest.mark.parametrize(
    ("stored", "held"),
    [(pa.float16(), np.float32), (pa.float32(), np.float32), (pa.float64(), np.float64)],
    ids=str,
)
def test_vectors_are_held_in_a_type_numpy_computes_in(stored: pa.DataType, held: type) -> None:
    assert vector_dtype(changed("vector", pa.list_(stored))) is held
