"""Columns of a head's Parquet file: the written schema, and checks of the accepted types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.attention_columns import ATTENTION_TYPES, check_attention_names
from qk_dump.limits import MOST_DIMENSIONS
from qk_dump.received_columns import INCLUSION, RECEIVED
from qk_dump.remote import DumpPath
from qk_toolkit.errors import DumpError

BUCKET, EXAMPLE, POSITION, VECTOR, WINDOW, TOKEN = (
    "bucket",
    "example_id",
    "position",
    "vector",
    "sliding_window",
    "token_str",
)

TOKEN_ID, VALUE_NORM = "token_id", "value_norm"
LAYER, HEAD = "layer", "head"

_OPTIONAL: dict[str, pa.DataType] = {
    TOKEN: pa.string(),
    **ATTENTION_TYPES,
    TOKEN_ID: pa.int32(),
    VALUE_NORM: pa.float32(),
    RECEIVED: pa.list_(pa.float32()),
    INCLUSION: pa.float64(),
    LAYER: pa.int32(),
    HEAD: pa.int32(),
}

_FLOATS: dict[pa.DataType, type[np.floating[Any]]] = {
    pa.float16(): np.float32,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


def written_schema(
    width: int, vector_type: pa.DataType, optional: Collection[str] = (), group: int = 0
) -> pa.Schema:
    """The written schema: int32 columns, a list of floats, and the named optional columns.

    `group` is the number of query heads whose attention is in `received`, if this is among them.
    """
    columns = [
        (BUCKET, pa.int32()),
        (EXAMPLE, pa.int32()),
        (POSITION, pa.int32()),
        (VECTOR, pa.list_(vector_type, width)),
        (WINDOW, pa.int32()),
    ]
    types = {**_OPTIONAL, RECEIVED: pa.list_(pa.float32(), group)}
    return pa.schema(columns + [(name, types[name]) for name in types if name in optional])


def check_columns(schema: pa.Schema, path: DumpPath, *, need_example_id: bool) -> None:
    """Raise a `DumpError` unless every required column is present with an accepted type."""
    for name in (BUCKET, EXAMPLE, POSITION, VECTOR, WINDOW):
        if schema.names.count(name) > 1:
            raise DumpError(f"{path}: has two columns '{name}'")
    for name in (BUCKET, POSITION, VECTOR):
        if name not in schema.names:
            raise DumpError(f"{path}: has no column '{name}' (found: {', '.join(schema.names)})")
    _check_damaged_names(schema.names, path)
    check_attention_names(schema.names, path)
    if need_example_id and EXAMPLE not in schema.names:
        raise DumpError(
            f"{path}: has no column '{EXAMPLE}', so keys cannot be paired within one sequence. "
            "If the file holds a single sequence, set single_example: true."
        )
    _check_type(schema, BUCKET, path, "an integer", kinds.is_integer)
    _check_type(schema, POSITION, path, "an integer or float", _is_number)
    if need_example_id:
        _check_type(schema, EXAMPLE, path, "an integer", kinds.is_integer)
    if WINDOW in schema.names:
        _check_type(schema, WINDOW, path, "an integer or null", _is_integer_or_null)
    _check_type(schema, VECTOR, path, "a list of float16, float32 or float64", _is_float_list)
    vector = schema.field(VECTOR).type
    if kinds.is_fixed_size_list(vector) and vector.list_size > MOST_DIMENSIONS:
        raise DumpError(too_wide(path, vector.list_size))


def unknown_columns(names: Sequence[str]) -> list[str]:
    """The columns that no version of this toolkit writes."""
    known = (BUCKET, EXAMPLE, POSITION, VECTOR, WINDOW, *_OPTIONAL)
    return [name for name in names if name not in known]


def _check_damaged_names(names: Sequence[str], path: DumpPath) -> None:
    """Refuse a file where an optional column has a name with one wrong bit.

    Without its window, a layer would count as one with full attention.
    """
    for name in (EXAMPLE, WINDOW):
        if name in names:
            continue
        for other in unknown_columns(names):
            if _one_bit_differs(name.encode(), other.encode()):
                raise DumpError(
                    f"{path}: column '{other}' is a damaged name of '{name}'. Capture or download "
                    "it again, or rename the column."
                )


def _one_bit_differs(one: bytes, other: bytes) -> bool:
    if len(one) != len(other):
        return False
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True)) == 1


def too_wide(path: DumpPath, width: int) -> str:
    """The message for vectors beyond the limit."""
    return f"{path}: has vectors of {width:,} dimensions, at most {MOST_DIMENSIONS:,} can be read"


def vector_dtype(schema: pa.Schema) -> type[np.floating[Any]]:
    """The numpy type of vectors: float64 stays, float16 becomes float32."""
    return _FLOATS[schema.field(VECTOR).type.value_type]


def _check_type(
    schema: pa.Schema,
    name: str,
    path: DumpPath,
    expected: str,
    accepts: Callable[[pa.DataType], bool],
) -> None:
    found = schema.field(name).type
    if not accepts(found):
        raise DumpError(f"{path}: column '{name}' is {found}, expected {expected}")


def _is_number(found: pa.DataType) -> bool:
    return bool(kinds.is_integer(found) or kinds.is_floating(found))


def _is_integer_or_null(found: pa.DataType) -> bool:
    return bool(kinds.is_integer(found) or kinds.is_null(found))


def _is_float_list(found: pa.DataType) -> bool:
    is_list = kinds.is_list(found) or kinds.is_large_list(found) or kinds.is_fixed_size_list(found)
    return is_list and found.value_type in _FLOATS
