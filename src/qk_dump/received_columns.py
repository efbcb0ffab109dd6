"""The columns `received` and `inclusion` of key files: the attention that a key receives.

`received` has one value for every query head that shares the key head: the mean weight that evenly
spaced queries of the text give the key, 0 from queries that do not see it. `inclusion` is the
probability that the key is in the dump, as a key of the base sample or as one drawn by attention. A
null in `received` means that the attention of the layer is not known.

Columns with a list of floats in every row, such as weights by distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.limits import MOST_HEADS
from qk_dump.remote import DumpPath
from qk_toolkit.arrays import Array
from qk_toolkit.errors import DumpError

RECEIVED, INCLUSION = "received", "inclusion"
RECEIVED_COLUMNS = (RECEIVED, INCLUSION)

_ROUNDING = 1e-3  # of a mean weight, which is at most 1


@dataclass(frozen=True)
class ReceivedRows:
    """The attention that keys receive and their inclusion, of one head or of several."""

    received: npt.NDArray[np.float32]  # (n, group) or (n, heads, group); NaN where not known
    inclusion: Array  # (n,) or (n, heads)

    def __getitem__(self, rows: Any) -> ReceivedRows:
        return ReceivedRows(self.received[rows], self.inclusion[rows])

    @property
    def group(self) -> int:
        """The number of query heads that share the key head."""
        return int(self.received.shape[-1])

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.received.nbytes + self.inclusion.nbytes

    @classmethod
    def joined(cls, parts: Sequence[ReceivedRows]) -> ReceivedRows:
        """The rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.received for part in parts]),
            np.concatenate([part.inclusion for part in parts]),
        )


def joint_inclusion(base: Array, attended: Array) -> Array:
    """The probability that a key is in the base sample or drawn by attention, independently."""
    return np.asarray(base + (1 - base) * attended)


def thinned_inclusion(
    inclusion: Array, base: Array, base_share: float, attended_share: float = 1.0
) -> Array:
    """The inclusion of keys when only a share of the rows is kept later, independently.

    `base` is the probability that the key is in the base sample. A key that was drawn in both ways
    is in the base file only, so a share s of the base rows gives `inclusion − (1 − s) · base`.
    """
    return np.asarray(attended_share * (inclusion - base) + base_share * base)


def received_arrays(rows: ReceivedRows) -> dict[str, pa.Array]:
    """The columns of one head; rows without a known value become null in `received`."""
    unknown = np.asarray(np.isnan(rows.received).any(axis=1))  # (n,)
    return {
        RECEIVED: list_column(rows.received, unknown),
        INCLUSION: pa.array(np.ascontiguousarray(rows.inclusion, np.float64)),
    }


def has_received(schema: pa.Schema) -> bool:
    """Whether a file has both columns."""
    return all(name in schema.names for name in RECEIVED_COLUMNS)


def check_received_types(schema: pa.Schema, path: DumpPath) -> None:
    """Raise a `DumpError` if a file has one of the columns only, or one with another type."""
    found = [name for name in RECEIVED_COLUMNS if name in schema.names]
    if len(found) == 1:
        missing = next(name for name in RECEIVED_COLUMNS if name not in found)
        raise DumpError(
            f"{path}: has the column '{found[0]}' and lacks '{missing}'. Capture or download it "
            "again, or remove the column."
        )
    for name in found:
        if schema.names.count(name) > 1:
            raise DumpError(f"{path}: has two columns '{name}'")
        type_ = schema.field(name).type
        if name == RECEIVED and not is_list_of_floats(type_):
            raise DumpError(f"{path}: column '{name}' is {type_}, expected a list of floats")
        if name == INCLUSION and not kinds.is_floating(type_):
            raise DumpError(f"{path}: column '{name}' is {type_}, expected a float")
        if kinds.is_fixed_size_list(type_):
            check_list_length(type_.list_size, name, "values", MOST_HEADS, path)


def received_values(
    batch: pa.RecordBatch, path: DumpPath, first_row: int
) -> dict[str, npt.NDArray[Any]]:
    """Both columns of a batch as arrays; NaN where `received` is null.

    Raises a `DumpError` that names the first row with an impossible value.
    """
    column = batch.column(RECEIVED)
    received = list_values(column, RECEIVED, "values", MOST_HEADS, path, first_row)  # (n, group)
    possible = (received >= 0) & (received <= 1 + _ROUNDING)
    _refuse(np.asarray(~possible.all(axis=1)), RECEIVED, path, first_row)
    received[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
    inclusion = np.array(batch.column(INCLUSION).to_numpy(zero_copy_only=False), np.float64)  # (n,)
    _refuse(~((inclusion > 0) & (inclusion <= 1)), INCLUSION, path, first_row)
    return {RECEIVED: received, INCLUSION: inclusion}


def _refuse(wrong: npt.NDArray[np.bool_], name: str, path: DumpPath, first_row: int) -> None:
    if wrong.any():
        row = first_row + int(np.argmax(wrong))
        raise DumpError(
            f"{path}: row {row}: impossible value in {name}. Capture or download the head again."
        )


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
