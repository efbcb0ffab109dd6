"""Columns with a list of floats in every row, such as weights by distance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.remote import DumpPath
from qk_toolkit.errors import DumpError


def is_list_of_floats(found: pa.DataType) -> bool:
    """Whether a type is a list of floats, of any or of a fixed length."""
    is_list = kinds.is_list(found) or kinds.is_large_list(found) or kinds.is_fixed_size_list(found)
    return bool(is_list and kinds.is_floating(found.value_type))


def list_column(
    values: npt.NDArray[np.float32], unknown: npt.NDArray[np.bool_]
) -> pa.FixedSizeListArray:
    """Rows (n, length) as a column; rows that are `unknown` (n,) become null."""
    stored = np.where(unknown[:, None], np.float32(0), values)  # (n, length)
    flat = pa.array(np.ascontiguousarray(stored, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, stored.shape[1], mask=pa.array(unknown))


def check_list_length(length: int, name: str, noun: str, most: int, path: DumpPath) -> None:
    """Refuse a length of the lists below 1 or above `most`."""
    if not 0 < length <= most:
        raise DumpError(f"{path}: {name} has {length} {noun}, expected 1 to {most}")


def list_values(
    column: pa.Array, name: str, noun: str, most: int, path: DumpPath, first_row: int
) -> npt.NDArray[np.float32]:
    """(n, length); rows without a list are zero. The length is 0 if no row shows it."""
    present = ~column.is_null().to_numpy(zero_copy_only=False)  # (n,)
    number = int(present.sum())
    if kinds.is_fixed_size_list(column.type):
        length = int(column.type.list_size)
    elif not number:
        length = 0
    else:
        lengths = np.asarray(column.drop_null().value_lengths())
        length = int(lengths[0])
        if (lengths != length).any():
            row = int(np.flatnonzero(present)[np.argmax(lengths != length)])
            raise DumpError(f"{path}: row {first_row + row}: {name} has another number of {noun}")
        check_list_length(length, name, noun, most, path)
    values = column.drop_null().flatten().to_numpy(zero_copy_only=False)
    lists = np.zeros((len(column), length), np.float32)
    with np.errstate(over="ignore"):
        lists[present] = values.reshape(number, length)
    return lists
