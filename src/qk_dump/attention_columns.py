"""The attention columns of query files: where the attention of every sampled query goes.

`lse` is the log of the sum of exp(logit) over all keys that the query sees, `max_logit` the largest
logit, `entropy` is −Σ w ln w over these keys, `sink_mass` the weight of tokens 0 to 3, and
`mass_by_distance` the weight at distances 0, 1, 2–3, 4–7, 8–15 and so on. `first_mass` is the
weight of token 0, `argmax_position` the key with the largest weight. The columns by token have the
token of this key, and weight and number of two kinds of keys: earlier keys with the token of the
query (duplicate), and keys whose previous token is the token of the query (induction). A null means
that the attention of the layer, or the token, is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.received_columns import (
    check_list_length,
    is_list_of_floats,
    list_column,
    list_values,
)
from qk_dump.remote import DumpPath
from qk_toolkit.errors import DumpError

LSE, MAX_LOGIT, ENTROPY, SINK_MASS = "lse", "max_logit", "entropy", "sink_mass"
MASSES = "mass_by_distance"
ATTENTION_COLUMNS = (LSE, MAX_LOGIT, ENTROPY, SINK_MASS, MASSES)
FIRST_MASS, ARGMAX_POSITION, ARGMAX_TOKEN = "first_mass", "argmax_position", "argmax_token"
KEY_COLUMNS = (FIRST_MASS, ARGMAX_POSITION)
DUPLICATE_MASS, DUPLICATE_KEYS = "duplicate_mass", "duplicate_keys"
INDUCTION_MASS, INDUCTION_KEYS = "induction_mass", "induction_keys"
TOKEN_COLUMNS = (ARGMAX_TOKEN, DUPLICATE_MASS, DUPLICATE_KEYS, INDUCTION_MASS, INDUCTION_KEYS)
UNITS = (ATTENTION_COLUMNS, KEY_COLUMNS, TOKEN_COLUMNS)
"""A file has all columns of a unit or none, and a unit only together with the units before it."""

SINK_TOKENS = 4
MASS_BINS = 24  # written; the last one also holds all larger distances
MOST_MASS_BINS = 64  # read; distances of 2^63 and more do not exist

_INTEGERS = (ARGMAX_POSITION, ARGMAX_TOKEN, DUPLICATE_KEYS, INDUCTION_KEYS)
_LARGEST_INTEGER = 2**31 - 1

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

ATTENTION_TYPES: dict[str, pa.DataType] = {
    name: pa.int32() if name in _INTEGERS else pa.float32() for unit in UNITS for name in unit
} | {MASSES: pa.list_(pa.float32(), MASS_BINS)}
"""The written columns and their types."""


@dataclass(frozen=True)
class AttentionRows:
    """The attention columns of some queries, of one head or of several.

    Where a value is not known, floats are NaN and integers −1. Columns that a file does not have
    are None.
    """

    lse: Floats  # (n,) or (n, heads)
    max_logit: Floats  # (n,) or (n, heads)
    entropy: Floats  # (n,) or (n, heads), in nats
    sink_mass: Floats  # (n,) or (n, heads)
    mass_by_distance: Floats  # (n, bins) or (n, heads, bins)
    first_mass: Floats | None = None  # (n,) or (n, heads)
    argmax_position: Integers | None = None  # (n,) or (n, heads)
    argmax_token: Integers | None = None  # (n,) or (n, heads)
    duplicate_mass: Floats | None = None  # (n,) or (n, heads)
    duplicate_keys: Integers | None = None  # (n,) or (n, heads)
    induction_mass: Floats | None = None  # (n,) or (n, heads)
    induction_keys: Integers | None = None  # (n,) or (n, heads)

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns that are there, by name."""
        found = {name: getattr(self, name) for unit in UNITS for name in unit}
        return {name: values for name, values in found.items() if values is not None}

    def __getitem__(self, rows: Any) -> AttentionRows:
        return AttentionRows(**{name: values[rows] for name, values in self.columns.items()})

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(values.nbytes for values in self.columns.values())

    @classmethod
    def unknown(cls, *shape: int, columns: Collection[str] = ATTENTION_COLUMNS) -> AttentionRows:
        """Rows without a known value, for (n,) or (n, heads), with these columns."""
        found: dict[str, npt.NDArray[Any]] = {
            name: np.full(shape, -1, np.int32)
            if name in _INTEGERS
            else np.full(shape, np.nan, np.float32)
            for name in columns
            if name != MASSES
        }
        found[MASSES] = np.full((*shape, MASS_BINS), np.nan, np.float32)
        return cls(**found)

    def with_columns(self, columns: Collection[str]) -> AttentionRows:
        """The rows with further columns, which have no known value."""
        unknown = AttentionRows.unknown(*self.lse.shape, columns=columns).columns
        return AttentionRows(**{**unknown, **self.columns})

    @classmethod
    def joined(cls, parts: list[AttentionRows]) -> AttentionRows:
        """The rows of all parts. Columns that only some parts have are not known in the others."""
        if len(parts) == 1:
            return parts[0]
        names = {name for part in parts for name in part.columns}
        whole = [part.with_columns(names).columns for part in parts]
        return cls(**{name: np.concatenate([part[name] for part in whole]) for name in names})


def first_distances(bins: int = MASS_BINS) -> list[int]:
    """The smallest distance of every bin: 0, 1, 2, 4, 8 and so on."""
    return [0, *(1 << power for power in range(bins - 1))]


def attention_arrays(rows: AttentionRows) -> dict[str, pa.Array]:
    """The columns of one head; values that are not known become null."""
    unknown = np.isnan(rows.lse)  # (n,)
    columns: dict[str, pa.Array] = {}
    for name, values in rows.columns.items():
        if name == MASSES:
            columns[name] = list_column(values, unknown)  # (n, bins)
            continue
        null = unknown
        if name not in ATTENTION_COLUMNS:
            null = unknown | (values < 0 if name in _INTEGERS else np.isnan(values))
        stored = np.int32 if name in _INTEGERS else np.float32
        columns[name] = pa.array(np.ascontiguousarray(values, stored), mask=null)
    return columns


def has_attention(schema: pa.Schema) -> bool:
    """Whether a file has the five attention columns."""
    return all(name in schema.names for name in ATTENTION_COLUMNS)


def attention_names(schema: pa.Schema) -> tuple[str, ...]:
    """The attention columns of a file, unit by unit."""
    return tuple(name for unit in UNITS for name in unit if name in schema.names)


def check_attention_names(names: Sequence[str], path: DumpPath) -> None:
    """Refuse a file with a part of a unit, or with a unit without those before it."""
    needed: list[str] = []
    for unit in UNITS:
        needed += unit
        missing = [name for name in needed if name not in names]
        if missing and not set(names).isdisjoint(unit):
            raise DumpError(
                f"{path}: has some attention columns and lacks {', '.join(missing)} (found: "
                f"{', '.join(names)}). Capture or download it again, or remove the attention "
                "columns."
            )


def check_attention_types(schema: pa.Schema, path: DumpPath) -> None:
    """Raise a `DumpError` unless the attention columns have accepted types."""
    for name in attention_names(schema):
        if schema.names.count(name) > 1:
            raise DumpError(f"{path}: has two columns '{name}'")
        found = schema.field(name).type
        if name in _INTEGERS:
            if not kinds.is_integer(found):
                raise DumpError(f"{path}: column '{name}' is {found}, expected an integer")
        elif name == MASSES:
            if not is_list_of_floats(found):
                raise DumpError(f"{path}: column '{name}' is {found}, expected a list of floats")
            if kinds.is_fixed_size_list(found):
                check_list_length(found.list_size, name, "bins", MOST_MASS_BINS, path)
        elif not _is_float(found):
            raise DumpError(f"{path}: column '{name}' is {found}, expected a float")


def attention_values(
    batch: pa.RecordBatch, path: DumpPath, first_row: int
) -> dict[str, npt.NDArray[Any]]:
    """The attention columns of a batch as arrays; NaN or −1 for null.

    A null in one column of a unit makes the others of the row unknown, and those of later units.
    Raises a `DumpError` that names the first row with a value that is not finite, or that is no
    number from 0 to 2^31 − 1 if it must be an integer.
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    null = np.zeros(batch.num_rows, np.bool_)
    for unit in UNITS:
        if unit[0] not in batch.schema.names:
            break
        for name in unit:
            if batch.column(name).null_count:
                null |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
        for name in unit:
            columns[name] = _values(batch.column(name), null, path, first_row, name)
    return columns


def _values(
    column: pa.Array, null: npt.NDArray[np.bool_], path: DumpPath, first_row: int, name: str
) -> npt.NDArray[Any]:
    if name in _INTEGERS:
        return integer_values(column, null, path, first_row, name)
    if name == MASSES:
        values = list_values(column, MASSES, "bins", MOST_MASS_BINS, path, first_row)  # (n, bins)
    else:
        values = float_values(column)  # (n,)
    flat = values[:, None] if values.ndim == 1 else values  # (n, 1 or bins)
    wrong = ~np.isfinite(flat).all(axis=1) & ~null
    if wrong.any():
        row = int(np.argmax(wrong))
        bad = flat[row][~np.isfinite(flat[row])][0]
        raise DumpError(impossible(path, first_row + row, name, f"{bad:g}"))
    values[null] = np.nan
    return values


def integer_values(
    column: pa.Array, null: npt.NDArray[np.bool_], path: DumpPath, first_row: int, name: str
) -> Integers:
    """A column of integers from 0 to 2^31 − 1; −1 where `null` (n,) is set."""
    column = column.fill_null(0) if column.null_count else column
    values = np.where(null, 0, column.to_numpy(zero_copy_only=False))  # (n,)
    wrong = (values < 0) | (values > _LARGEST_INTEGER)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DumpError(impossible(path, first_row + row, name, f"{values[row]}"))
    return np.where(null, np.int32(-1), values.astype(np.int32))


def impossible(path: DumpPath, row: int, column: str, reason: str) -> str:
    """The message for a value that no attention has."""
    return (
        f"{path}: row {row}: impossible value in {column} ({reason}). Capture or download the head "
        "again."
    )


def float_values(column: pa.Array) -> npt.NDArray[np.float32]:
    """A column of floats; NaN for null."""
    values = column.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


def _is_float(found: pa.DataType) -> bool:
    return bool(kinds.is_floating(found))
