"""The attention columns of query files: where the attention of every sampled query goes.

`lse` is the log of the sum of exp(logit) over all keys that the query sees, `max_logit` the largest
logit, `entropy` is −Σ w ln w over these keys, `sink_mass` the weight of tokens 0 to 3, and
`mass_by_distance` the weight at distances 0, 1, 2–3, 4–7, 8–15 and so on. A null means that the
attention of the layer is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.list_columns import (
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

SINK_TOKENS = 4
MASS_BINS = 24  # written; the last one also holds all larger distances
MOST_MASS_BINS = 64  # read; distances of 2^63 and more do not exist

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class AttentionRows:
    """The attention columns of some queries, of one head or of several; NaN where not known."""

    lse: Floats  # (n,) or (n, heads)
    max_logit: Floats  # (n,) or (n, heads)
    entropy: Floats  # (n,) or (n, heads), in nats
    sink_mass: Floats  # (n,) or (n, heads)
    mass_by_distance: Floats  # (n, bins) or (n, heads, bins)

    def __getitem__(self, rows: Any) -> AttentionRows:
        return AttentionRows(*(getattr(self, name)[rows] for name in ATTENTION_COLUMNS))

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @classmethod
    def unknown(cls, *shape: int) -> AttentionRows:
        """Rows without a known value, for (n,) or (n, heads)."""
        lse, largest, entropy, sinks = np.full((4, *shape), np.nan, np.float32)
        masses = np.full((*shape, MASS_BINS), np.nan, np.float32)
        return cls(lse, largest, entropy, sinks, masses)

    @classmethod
    def joined(cls, parts: list[AttentionRows]) -> AttentionRows:
        """The rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ATTENTION_COLUMNS)
        )


def first_distances(bins: int = MASS_BINS) -> list[int]:
    """The smallest distance of every bin: 0, 1, 2, 4, 8 and so on."""
    return [0, *(1 << power for power in range(bins - 1))]


def attention_fields() -> list[tuple[str, pa.DataType]]:
    """The written columns and their types."""
    numbers = [(name, pa.float32()) for name in ATTENTION_COLUMNS[:-1]]
    return [*numbers, (MASSES, pa.list_(pa.float32(), MASS_BINS))]


def attention_arrays(rows: AttentionRows) -> dict[str, pa.Array]:
    """The columns of one head; rows without a known value become null."""
    unknown = np.isnan(rows.lse)  # (n,)
    columns = {
        name: pa.array(np.ascontiguousarray(getattr(rows, name), np.float32), mask=unknown)
        for name in ATTENTION_COLUMNS[:-1]
    }
    columns[MASSES] = list_column(rows.mass_by_distance, unknown)  # (n, bins)
    return columns


def has_attention(schema: pa.Schema) -> bool:
    """Whether a file has all attention columns."""
    return all(name in schema.names for name in ATTENTION_COLUMNS)


def check_attention_types(schema: pa.Schema, path: DumpPath) -> None:
    """Raise a `DumpError` unless the attention columns have accepted types."""
    for name in ATTENTION_COLUMNS:
        if schema.names.count(name) > 1:
            raise DumpError(f"{path}: has two columns '{name}'")
        found = schema.field(name).type
        if name != MASSES and not _is_float(found):
            raise DumpError(f"{path}: column '{name}' is {found}, expected a float")
        if name == MASSES and not is_list_of_floats(found):
            raise DumpError(f"{path}: column '{name}' is {found}, expected a list of floats")
        if kinds.is_fixed_size_list(found):
            check_list_length(found.list_size, name, "bins", MOST_MASS_BINS, path)


def attention_values(
    batch: pa.RecordBatch, path: DumpPath, first_row: int
) -> dict[str, npt.NDArray[np.float32]]:
    """The attention columns of a batch as arrays; NaN for null.

    Raises a `DumpError` that names the first row with a value that is not finite.
    """
    columns = {name: _numbers(batch.column(name)) for name in ATTENTION_COLUMNS[:-1]}
    masses = list_values(batch.column(MASSES), MASSES, "bins", MOST_MASS_BINS, path, first_row)
    columns[MASSES] = masses  # (n, bins)
    null = np.zeros(batch.num_rows, np.bool_)
    for name in ATTENTION_COLUMNS:
        null |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
    for name, values in columns.items():
        flat = values[:, None] if values.ndim == 1 else values  # (n, 1 or bins)
        wrong = ~np.isfinite(flat).all(axis=1) & ~null
        if wrong.any():
            row = int(np.argmax(wrong))
            bad = flat[row][~np.isfinite(flat[row])][0]
            raise DumpError(impossible(path, first_row + row, name, f"{bad:g}"))
        values[null] = np.nan
    return columns


def impossible(path: DumpPath, row: int, column: str, reason: str) -> str:
    """The message for a value that no attention has."""
    return (
        f"{path}: row {row}: impossible value in {column} ({reason}). Capture or download the head "
        "again."
    )


def _numbers(column: pa.Array) -> npt.NDArray[np.float32]:
    values = column.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


def _is_float(found: pa.DataType) -> bool:
    return bool(kinds.is_floating(found))
