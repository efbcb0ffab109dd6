"""A batch of a Parquet file as numpy arrays.

Arrow's `to_numpy` imports pandas, and its compute functions take long to import. Both are avoided:
a worker process needs neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.checks import refuse
from qk_dump.columns import (
    ATTENTION_UNITS,
    COLUMNS,
    INCLUSION,
    MASSES,
    MOST_MASS_BINS,
    POSITION,
    UNITS,
    VECTOR,
)
from qk_dump.heads import MOST_DIMENSIONS, MOST_HEADS
from qk_dump.parquet import too_wide
from qk_dump.remote import DumpPath
from qk_dump.rows import Rows, Values
from qk_toolkit.arrays import Bools, Vectors
from qk_toolkit.errors import DumpError


def decoded_batch(batch: pa.RecordBatch, path: DumpPath, first_row: int) -> Rows:
    """The batch as numpy arrays; NaN or −1 for null."""
    nulls = _nulls(batch)
    return Rows(
        {
            name: _values(batch.column(name), name, nulls[name], path, first_row)
            for name in batch.schema.names
        }
    )


def _nulls(batch: pa.RecordBatch) -> dict[str, Bools]:
    """(n,) unknown rows by column.

    A null in one attention column makes the others of its unit unknown, and those of later units.
    """
    found: dict[str, Bools] = {name: _is_null(batch.column(name)) for name in batch.schema.names}
    before: Bools = np.zeros(batch.num_rows, np.bool_)
    for unit in ATTENTION_UNITS:
        own = [name for name in UNITS[unit] if name in found]
        before = np.asarray(np.logical_or.reduce([before, *(found[name] for name in own)]))
        found |= dict.fromkeys(own, before)
    return found


def _is_null(column: pa.Array) -> Bools:
    """(n,) which values are null."""
    if column.null_count in (0, len(column)):
        return np.full(len(column), column.null_count > 0)
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    end = column.offset + len(column)
    return np.asarray(np.unpackbits(bits, count=end, bitorder="little")[column.offset :] == 0)


def plain_numbers(column: pa.Array) -> npt.NDArray[Any]:
    """(n,) numbers of an array; any number in place of a null."""
    if kinds.is_null(column.type):
        return np.zeros(len(column))
    if column.null_count:
        buffers = [None, column.buffers()[1]]
        column = pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)
    return np.from_dlpack(column)


def _values(column: pa.Array, name: str, null: Bools, path: DumpPath, first_row: int) -> Values:
    """A column as an array. Raises a `DumpError` for a value that is not finite, or negative."""
    if not COLUMNS[name].null:
        refuse(null, f"{name} is null", path, first_row)
    if kinds.is_integer(COLUMNS[name].type) and name != POSITION:
        if column.type == pa.uint64():
            column = column.cast(pa.int64())  # refuses what does not fit
        whole = plain_numbers(column).astype(np.int64, copy=False)  # (n,)
        refuse((whole < 0) & ~_is_null(column), f"{name} is negative", path, first_row)
        return np.where(null, -1, whole) if null.any() else whole
    if name == VECTOR:
        return _vectors(column, path, first_row)
    if not kinds.is_list(COLUMNS[name].type) and name != MASSES:
        exact = np.float64 if name in (POSITION, INCLUSION) else np.float32
        with np.errstate(over="ignore"):
            values = np.array(plain_numbers(column), exact)  # (n,)
        refuse(~np.isfinite(values) & ~null, f"{name} is not finite", path, first_row)
    else:
        values = _lists(column, name, path, first_row)  # (n, w)
        wrong = ~np.isfinite(values).all(axis=1) & ~null
        refuse(np.asarray(wrong), f"{name} is not finite", path, first_row)
    values[null] = np.nan
    return values


def _lists(column: pa.Array, name: str, path: DumpPath, first_row: int) -> npt.NDArray[np.float32]:
    """(n, w); rows without a list are zero. The width is 0 if no row shows it."""
    present = ~_is_null(column)  # (n,)
    known = column.drop_null() if column.null_count else column
    if not len(known):
        width = column.type.list_size if kinds.is_fixed_size_list(column.type) else 0
        return np.zeros((len(column), width), np.float32)
    width = _width(known, name, MOST_MASS_BINS if name == MASSES else MOST_HEADS, path, first_row)
    lists = np.zeros((len(column), width), np.float32)
    with np.errstate(over="ignore"):
        flat = _flat(known, width)
        values = np.array(plain_numbers(flat), np.float32)
        values[_is_null(flat)] = np.nan
        lists[present] = values.reshape(-1, width)
    return lists


def _vectors(column: pa.Array, path: DumpPath, first_row: int) -> Vectors:
    width = _width(column, VECTOR, MOST_DIMENSIONS, path, first_row)
    values = _flat(column, width)
    if values.null_count:
        row = int(np.argmax(_is_null(values))) // width
        raise DumpError(f"{path}: row {first_row + row}: the vector holds a null")
    dtype = np.float64 if values.type == pa.float64() else np.float32
    vectors: Vectors = np.from_dlpack(values).reshape(-1, width).astype(dtype, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(np.vdot(vectors, vectors))
    if suspicious:
        wrong = ~np.isfinite(vectors).all(axis=1)
        refuse(np.asarray(wrong), "NaN or infinity in the vector", path, first_row)
    return vectors


def _flat(column: pa.Array, width: int) -> pa.Array:
    """(n · width,) values of n lists of this width, none of which is null."""
    first = column.offset * width
    if not kinds.is_fixed_size_list(column.type):
        first = int(np.from_dlpack(column.offsets)[0])
    return column.values.slice(first, len(column) * width)


def _width(column: pa.Array, name: str, most: int, path: DumpPath, first_row: int) -> int:
    """The length of all lists of a column without nulls."""
    if kinds.is_fixed_size_list(column.type):
        width = int(column.type.list_size)
    else:
        lengths = np.diff(np.from_dlpack(column.offsets))  # (n,)
        width = int(lengths[0])
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise DumpError(
                f"{path}: row {first_row + row}: {name} has {lengths[row]} values, row {first_row} "
                f"has {width}"
            )
    if name == VECTOR and width > most:
        raise DumpError(too_wide(path, width))
    if not 0 < width <= most:
        raise DumpError(f"{path}: {name} has {width} values, expected 1 to {most:,}")
    return width
