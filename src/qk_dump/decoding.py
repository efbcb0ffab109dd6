"""A batch of a Parquet file as numpy arrays."""

from __future__ import annotations

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
from qk_dump.limits import MOST_DIMENSIONS, MOST_HEADS
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
    found: dict[str, Bools] = {
        name: batch.column(name).is_null().to_numpy(zero_copy_only=False)
        for name in batch.schema.names
    }
    before: Bools = np.zeros(batch.num_rows, np.bool_)
    for unit in ATTENTION_UNITS:
        own = [name for name in UNITS[unit] if name in found]
        before = np.asarray(np.logical_or.reduce([before, *(found[name] for name in own)]))
        found |= dict.fromkeys(own, before)
    return found


def _values(column: pa.Array, name: str, null: Bools, path: DumpPath, first_row: int) -> Values:
    """A column as an array. Raises a `DumpError` for a value that is not finite, or negative."""
    if not COLUMNS[name].null:
        refuse(null, f"{name} is null", path, first_row)
    if kinds.is_integer(COLUMNS[name].type) and name != POSITION:
        whole = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)  # (n,)
        refuse(whole < 0, f"{name} is negative", path, first_row)
        return np.where(null, -1, whole) if null.any() else whole
    if name == VECTOR:
        return _vectors(column, path, first_row)
    if not kinds.is_list(COLUMNS[name].type) and name != MASSES:
        exact = np.float64 if name in (POSITION, INCLUSION) else np.float32
        with np.errstate(over="ignore"):
            values = np.array(column.to_numpy(zero_copy_only=False), exact)  # (n,)
        refuse(~np.isfinite(values) & ~null, f"{name} is not finite", path, first_row)
    else:
        values = _lists(column, name, path, first_row)  # (n, w)
        wrong = ~np.isfinite(values).all(axis=1) & ~null
        refuse(np.asarray(wrong), f"{name} is not finite", path, first_row)
    values[null] = np.nan
    return values


def _lists(column: pa.Array, name: str, path: DumpPath, first_row: int) -> npt.NDArray[np.float32]:
    """(n, w); rows without a list are zero. The width is 0 if no row shows it."""
    present = ~column.is_null().to_numpy(zero_copy_only=False)  # (n,)
    known = column.drop_null()
    if not len(known):
        width = column.type.list_size if kinds.is_fixed_size_list(column.type) else 0
        return np.zeros((len(column), width), np.float32)
    width = _width(known, name, MOST_MASS_BINS if name == MASSES else MOST_HEADS, path, first_row)
    lists = np.zeros((len(column), width), np.float32)
    with np.errstate(over="ignore"):
        lists[present] = known.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return lists


def _vectors(column: pa.Array, path: DumpPath, first_row: int) -> Vectors:
    width = _width(column, VECTOR, MOST_DIMENSIONS, path, first_row)
    values = column.flatten()
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // width
        raise DumpError(f"{path}: row {first_row + row}: the vector holds a null")
    dtype = np.float64 if values.type == pa.float64() else np.float32
    vectors: Vectors = np.from_dlpack(values).reshape(-1, width).astype(dtype, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(np.vdot(vectors, vectors))
    if suspicious:
        wrong = ~np.isfinite(vectors).all(axis=1)
        refuse(np.asarray(wrong), "NaN or infinity in the vector", path, first_row)
    return vectors


def _width(column: pa.Array, name: str, most: int, path: DumpPath, first_row: int) -> int:
    """The length of all lists of a column without nulls."""
    if kinds.is_fixed_size_list(column.type):
        width = int(column.type.list_size)
    else:
        lengths = np.asarray(column.value_lengths())  # (n,)
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
