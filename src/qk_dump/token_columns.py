"""Columns of a row besides its vector: the token (`token_id`) and, of keys, `value_norm`.

`value_norm` is the length of the value vector as it is passed to attention. A null means that the
token or the value is not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.attention_columns import float_values, impossible, integer_values
from qk_dump.remote import DumpPath
from qk_dump.schema import TOKEN_ID, VALUE_NORM
from qk_toolkit.errors import DumpError


def check_type(schema: pa.Schema, name: str, path: DumpPath) -> None:
    """Raise a `DumpError` unless `token_id` or `value_norm` has an accepted type."""
    if schema.names.count(name) > 1:
        raise DumpError(f"{path}: has two columns '{name}'")
    found = schema.field(name).type
    accepts, expected = (kinds.is_integer, "an integer")
    if name == VALUE_NORM:
        accepts, expected = (kinds.is_floating, "a float")
    if not accepts(found):
        raise DumpError(f"{path}: column '{name}' is {found}, expected {expected}")


def token_values(
    batch: pa.RecordBatch, path: DumpPath, first_row: int
) -> dict[str, npt.NDArray[Any]]:
    """`token_id` and `value_norm` of a batch, if it has them; −1 and NaN for null.

    Raises a `DumpError` that names the first row with an impossible value.
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    if TOKEN_ID in batch.schema.names:
        column = batch.column(TOKEN_ID)
        null = column.is_null().to_numpy(zero_copy_only=False)
        columns[TOKEN_ID] = integer_values(column, null, path, first_row, TOKEN_ID)
    if VALUE_NORM in batch.schema.names:
        column = batch.column(VALUE_NORM)
        null = column.is_null().to_numpy(zero_copy_only=False)
        values = float_values(column)  # (n,)
        wrong = ~null & ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DumpError(impossible(path, first_row + row, VALUE_NORM, f"{values[row]:g}"))
        columns[VALUE_NORM] = values
    return columns
