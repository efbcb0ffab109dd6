"""Parquet → numpy: the rows of one head as contiguous arrays, in bounded memory.

Batches of a few thousand rows are decoded and checked one by one. The selected rows are copied into
one preallocated array. Memory holds the result and one batch, for files of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.attention_columns import (
    LSE,
    MASSES,
    UNITS,
    AttentionRows,
    attention_names,
    attention_values,
    check_attention_types,
    has_attention,
)
from qk_dump.attention_limits import check_attention
from qk_dump.column_rules import ColumnRules
from qk_dump.head_counts import count_rows
from qk_dump.limits import MOST_DIMENSIONS
from qk_dump.parquet import opened_parquet, vector_width_of
from qk_dump.read_ahead import FileStart, FileStarts
from qk_dump.received_columns import (
    RECEIVED,
    RECEIVED_COLUMNS,
    ReceivedRows,
    check_received_types,
    has_received,
    received_values,
)
from qk_dump.remote import DumpPath
from qk_dump.schema import (
    BUCKET,
    EXAMPLE,
    POSITION,
    TOKEN_ID,
    VALUE_NORM,
    VECTOR,
    WINDOW,
    check_columns,
    too_wide,
    vector_dtype,
)
from qk_dump.token_columns import check_type, token_values
from qk_toolkit.errors import DumpError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

_BATCH_ROWS = 8192
_BATCH_VALUES = 8192 * 1024  # vector values in a batch; wide vectors mean fewer rows
_LISTS = {MASSES: "bins", RECEIVED: "values"}  # columns of lists; all rows have one length
_LARGEST_POSITION = 2.0**53  # beyond, float64 cannot represent every integer
_SMALLEST_POSITION = 2.0**-60  # of positions above 0


@dataclass(frozen=True)
class HeadRows:
    """The rows of one head, in file order."""

    bucket: Ints  # (n,)
    position: npt.NDArray[np.float64]  # (n,)
    vectors: Floats  # (n, d), C order, float32 or float64
    example_id: Ints | None  # (n,); None when not requested or not known
    position_max: float  # over all rows of the files, before subsampling
    sliding_window: int | None  # tokens; None for full attention
    window_recorded: bool  # False when the files have no sliding_window column
    attention: AttentionRows | None = None  # None when not requested or not known
    token_id: npt.NDArray[np.int32] | None = None  # (n,), −1: unknown; None when not requested
    value_norm: npt.NDArray[np.float32] | None = None  # (n,), of keys; NaN: unknown
    received: ReceivedRows | None = None  # None when not requested or not in the files
    subsampled: float = 1.0  # share of the rows of the files that the subsample kept

    def __len__(self) -> int:
        return len(self.bucket)

    def of_texts(self, ids: Ints) -> HeadRows:
        """The rows of some texts. The ids of the texts must be known."""
        assert self.example_id is not None
        return self[np.flatnonzero(np.isin(self.example_id, ids))]

    def __getitem__(self, kept: Ints | npt.NDArray[np.bool_]) -> HeadRows:
        """Some of the rows."""
        return replace(
            self,
            bucket=self.bucket[kept],
            position=self.position[kept],
            vectors=self.vectors[kept],
            example_id=None if self.example_id is None else self.example_id[kept],
            attention=None if self.attention is None else self.attention[kept],
            token_id=None if self.token_id is None else self.token_id[kept],
            value_norm=None if self.value_norm is None else self.value_norm[kept],
            received=None if self.received is None else self.received[kept],
        )

    @property
    def width(self) -> int:
        """Dimensions of a vector."""
        return int(self.vectors.shape[1])


def subsample(num_rows: int, max_rows: int, seed: int) -> Ints | None:
    """Sorted row numbers from `default_rng(seed).choice`; None when all rows are kept."""
    if num_rows <= max_rows:
        return None
    return np.sort(np.random.default_rng(seed).choice(num_rows, max_rows, replace=False))


def read_head(
    files: Sequence[DumpPath],
    *,
    max_rows: int,
    seed: int,
    with_examples: bool | Literal["if present"],
    single_example: bool = False,
    rules: ColumnRules | None = None,
    with_attention: bool = False,
    with_tokens: bool = False,
    with_received: bool = False,
) -> HeadRows:
    """Read the shards of a head, check every row, and keep a subsample of `max_rows`.

    `with_examples` requires `example_id`, which keys need. "if present" reads it when every shard
    has integers without a null. With `single_example` the column may be absent, and all rows form
    one sequence. `rules` are the checks against `dump.json`. `with_attention` reads the attention
    columns of queries and `value_norm` of keys, `with_tokens` reads `token_id`, `with_received` the
    attention that keys receive, each when every shard has it.
    """
    rules = rules or ColumnRules(0)
    if not files:
        raise DumpError("the head's folder holds no Parquet file")
    read_examples = False if single_example else with_examples
    with FileStarts(files) as starts:
        num_rows = count_rows(files)
        if num_rows == 0:
            raise DumpError(f"{files[0]}: holds no rows")
        collector = _Collector(num_rows, subsample(num_rows, max_rows, seed))
        for path in files:
            wanted = _Wanted(read_examples, with_attention, with_tokens, with_received)
            for batch, first_row in _batches(path, starts.take(), wanted):
                collector.add(_checked(batch, path, first_row, rules), path)
    return collector.result(with_examples is True, files[-1])


@dataclass(frozen=True)
class _Wanted:
    """The optional columns to read."""

    examples: bool | Literal["if present"]
    attention: bool
    tokens: bool
    received: bool

    def columns(self, schema: pa.Schema, path: DumpPath) -> list[str]:
        """The columns to read from a file. Raises a `DumpError` for one of a wrong type."""
        check_columns(schema, path, need_example_id=self.examples is True)
        columns = [BUCKET, POSITION, VECTOR]
        if self.examples and EXAMPLE in schema.names:
            columns.append(EXAMPLE)
        if WINDOW in schema.names:
            columns.append(WINDOW)
        if self.attention and has_attention(schema):
            check_attention_types(schema, path)
            columns += attention_names(schema)
        for name, is_wanted in ((TOKEN_ID, self.tokens), (VALUE_NORM, self.attention)):
            if is_wanted and name in schema.names:
                check_type(schema, name, path)
                columns.append(name)
        if self.received:
            check_received_types(schema, path)
            columns += RECEIVED_COLUMNS if has_received(schema) else ()
        return columns


@dataclass(frozen=True)
class _Rows:
    """One decoded and checked batch."""

    columns: dict[str, npt.NDArray[Any]]
    windows: frozenset[int | None]
    window_recorded: bool


class _Collector:
    """Copies the selected rows of each batch into preallocated arrays."""

    def __init__(self, total: int, selected: Ints | None) -> None:
        self._total = total
        self._size = total if selected is None else len(selected)
        self._selected = selected
        self._position_max = 0.0
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._in_all_shards: set[str] | None = None
        self._read = 0  # rows read so far
        self._kept = 0  # rows copied so far
        self._window: int | None = None
        self._window_recorded = False
        self._first = True

    def add(self, rows: _Rows, path: DumpPath) -> None:
        self._check_window(rows, path)
        self._check_width(rows.columns[VECTOR], path)
        self._check_lists(rows.columns, path)
        names = set(rows.columns)
        self._in_all_shards = names if self._in_all_shards is None else self._in_all_shards & names
        count = len(rows.columns[BUCKET])
        if self._read + count > self._total:
            raise DumpError(f"{path}: changed while it was read; run the same command again")
        self._position_max = max(self._position_max, float(rows.columns[POSITION].max()))
        chosen: Ints | None = None
        kept = count
        if self._selected is not None:
            bounds = np.searchsorted(self._selected, [self._read, self._read + count])
            chosen = self._selected[bounds[0] : bounds[1]] - self._read
            kept = len(chosen)
        for name, values in rows.columns.items():
            if name in _LISTS and not values.shape[1]:  # every row is null
                continue
            if name not in self._columns:
                self._columns[name] = self._allocate(values, path)
                if name in _LISTS:
                    self._columns[name].fill(np.nan)
            elif values.dtype.itemsize > self._columns[name].dtype.itemsize:
                self._columns[name] = self._columns[name].astype(values.dtype)
            target = self._columns[name][self._kept : self._kept + kept]
            if chosen is None:
                target[...] = values
            else:
                widened = values.astype(target.dtype, copy=False)  # float64 in an earlier shard
                np.take(widened, chosen, axis=0, out=target, mode="clip")  # rows are in range
        self._read += count
        self._kept += kept

    def _allocate(self, values: npt.NDArray[Any], path: DumpPath) -> npt.NDArray[Any]:
        try:
            return np.empty((self._size, *values.shape[1:]), values.dtype)
        except (MemoryError, ValueError) as error:  # ValueError: beyond the limit of numpy
            raise DumpError(
                f"{path}: not enough memory for {self._size:,} rows of the head; "
                "lower max_tokens_per_head"
            ) from error

    def result(self, with_examples: bool, path: DumpPath) -> HeadRows:
        if self._read < self._total:
            raise DumpError(f"{path}: changed while it was read; run the same command again")
        examples = self._known(EXAMPLE)
        if with_examples and examples is None:
            examples = np.zeros(self._size, np.int64)
        return HeadRows(
            bucket=self._columns[BUCKET],
            position=self._columns[POSITION],
            vectors=self._columns[VECTOR],
            example_id=examples,
            position_max=self._position_max,
            sliding_window=self._window,
            window_recorded=self._window_recorded,
            attention=self._attention(),
            token_id=self._known(TOKEN_ID),
            value_norm=self._known(VALUE_NORM),
            received=self._received(),
            subsampled=self._size / self._total,
        )

    def _known(self, name: str) -> npt.NDArray[Any] | None:
        """A column; None if a shard lacks it."""
        return self._columns.get(name) if name in (self._in_all_shards or ()) else None

    def _attention(self) -> AttentionRows | None:
        """The attention columns; None if a shard lacks them, or if no row has a value."""
        names = [name for unit in UNITS for name in unit]
        found = {name: values for name in names if (values := self._known(name)) is not None}
        if MASSES not in found or np.isnan(found[LSE]).all():
            return None
        return AttentionRows(**found)

    def _received(self) -> ReceivedRows | None:
        """What keys receive; None if a shard lacks the columns, or if no row has a value."""
        received, inclusion = (self._known(name) for name in RECEIVED_COLUMNS)
        if received is None or inclusion is None:
            return None
        return ReceivedRows(received, inclusion)

    def _check_window(self, rows: _Rows, path: DumpPath) -> None:
        windows = rows.windows if self._first else rows.windows | {self._window}
        if len(windows) > 1:
            values = ", ".join(sorted("null" if w is None else str(w) for w in windows))
            raise DumpError(
                f"{path}: mixes sliding_window values ({values}); a head has one window. "
                "Split the layers that were written into one folder."
            )
        self._window = next(iter(windows))
        self._window_recorded |= rows.window_recorded
        self._first = False

    def _check_lists(self, columns: dict[str, npt.NDArray[Any]], path: DumpPath) -> None:
        for name, noun in _LISTS.items():
            known, found = self._columns.get(name), columns.get(name)
            if known is None or found is None or not found.shape[1]:
                continue
            if known.shape[1] != found.shape[1]:
                raise DumpError(
                    f"{path}: {name} has {found.shape[1]} {noun}, earlier rows of this head "
                    f"{known.shape[1]}"
                )

    def _check_width(self, vectors: Floats, path: DumpPath) -> None:
        known = self._columns.get(VECTOR)
        if known is not None and known.shape[1] != vectors.shape[1]:
            raise DumpError(
                f"{path}: vectors have {vectors.shape[1]} dimensions, "
                f"earlier rows of this head {known.shape[1]}"
            )


def _batches(
    path: DumpPath,
    start: FileStart | None,
    wanted: _Wanted,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Record batches of a file, each with the number of its first row.

    With "if present", a batch without usable `example_id` comes without this column.
    """
    with opened_parquet(path, start) as parquet:
        schema = parquet.schema
        columns = wanted.columns(schema, path)
        rows = min(_BATCH_ROWS, max(1, _BATCH_VALUES // max(1, vector_width_of(parquet, path))))
        first_row = 0
        for batch in parquet.batches(rows, columns):
            if wanted.examples == "if present" and not _usable_examples(batch):
                batch = batch.select([name for name in batch.schema.names if name != EXAMPLE])
            if batch.num_rows:
                yield batch, first_row
            first_row += batch.num_rows
        parquet.require_unchanged()
        if first_row != parquet.metadata.num_rows:
            raise DumpError(
                f"{path}: its footer gives {parquet.metadata.num_rows:,} rows, the file holds "
                f"{first_row:,}. Capture or download it again."
            )


def _usable_examples(batch: pa.RecordBatch) -> bool:
    if EXAMPLE not in batch.schema.names:
        return False
    column = batch.column(EXAMPLE)
    if not kinds.is_integer(column.type) or column.null_count:
        return False
    return column.type != pa.uint64() or bool((np.from_dlpack(column) < 1 << 63).all())


def _checked(batch: pa.RecordBatch, path: DumpPath, first_row: int, rules: ColumnRules) -> _Rows:
    """The batch as numpy arrays. Raises a `DumpError` that names the first invalid row."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for name in (BUCKET, EXAMPLE, POSITION):
        if name not in batch.schema.names:
            continue
        column = batch.column(name)
        _refuse_nulls(column, name, path, first_row)
        dtype = np.float64 if name == POSITION else np.int64
        columns[name] = np.from_dlpack(column).astype(dtype, copy=False)
    for name in (BUCKET, EXAMPLE):
        if name in columns and batch.schema.field(name).type == pa.uint64():
            _refuse(columns[name] < 0, f"{name} is too large", path, first_row)  # int64 overflow
    _refuse(~np.isfinite(columns[POSITION]), "position is not finite", path, first_row)
    for name in (BUCKET, EXAMPLE, POSITION):
        if name in columns:
            _refuse(columns[name] < 0, f"negative {name}", path, first_row)
    positions = columns[POSITION]
    _refuse(positions > _LARGEST_POSITION, "position is too large", path, first_row)
    small = (positions > 0) & (positions < _SMALLEST_POSITION)
    _refuse(small, "position is too small", path, first_row)
    # positions as stored: float64 cannot represent every integer
    rules.check_buckets(columns[BUCKET], np.from_dlpack(batch.column(POSITION)), path, first_row)
    columns[VECTOR] = _vectors(batch, path, first_row)
    windows, recorded = _windows(batch, path, first_row)
    rules.check_window(windows, batch.column(WINDOW) if recorded else None, path, first_row)
    if has_attention(batch.schema):
        attention = attention_values(batch, path, first_row)
        window = next(iter(windows)) if len(windows) == 1 else None  # mixed: refused later
        rows = AttentionRows(**attention)
        check_attention(rows, positions, window, rules.attention, path, first_row)
        columns |= attention
    columns |= token_values(batch, path, first_row)
    if has_received(batch.schema):
        columns |= received_values(batch, path, first_row)
    return _Rows(columns, windows, recorded)


def _vectors(batch: pa.RecordBatch, path: DumpPath, first_row: int) -> Floats:
    column = batch.column(VECTOR)
    _refuse_nulls(column, VECTOR, path, first_row)
    width = _width(column, path, first_row)
    values = column.flatten()
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // width
        raise DumpError(f"{path}: row {first_row + row}: the vector holds a null")
    vectors: Floats = (
        np.from_dlpack(values).reshape(-1, width).astype(vector_dtype(batch.schema), copy=False)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(np.vdot(vectors, vectors))
    if suspicious:
        finite = np.isfinite(vectors)  # (n, d)
        _refuse(np.asarray((~finite).any(axis=1)), "NaN or infinity in the vector", path, first_row)
    return vectors


def _width(column: pa.Array, path: DumpPath, first_row: int) -> int:
    if kinds.is_fixed_size_list(column.type):
        width = int(column.type.list_size)
    else:
        lengths = np.diff(np.from_dlpack(column.offsets))  # (n,)
        width = int(lengths[0])
        different = lengths != width
        if different.any():
            row = int(np.argmax(different))
            raise DumpError(
                f"{path}: row {first_row + row}: the vector has {lengths[row]} dimensions, "
                f"row {first_row} has {width}"
            )
    if width == 0:
        raise DumpError(f"{path}: row {first_row}: the vector is empty")
    if width > MOST_DIMENSIONS:
        raise DumpError(too_wide(path, width))
    return width


def _windows(
    batch: pa.RecordBatch, path: DumpPath, first_row: int
) -> tuple[frozenset[int | None], bool]:
    if WINDOW not in batch.schema.names:
        return frozenset({None}), False
    windows = frozenset(batch.column(WINDOW).unique().to_pylist())
    if any(window is not None and window <= 0 for window in windows):
        raise DumpError(
            f"{path}: from row {first_row} on: sliding_window must be a positive number of tokens, "
            "or null for full attention"
        )
    return windows, True


def _refuse_nulls(column: pa.Array, name: str, path: DumpPath, first_row: int) -> None:
    if column.null_count:
        _refuse(column.is_null().to_numpy(zero_copy_only=False), f"{name} is null", path, first_row)


def _refuse(invalid: npt.NDArray[np.bool_], problem: str, path: DumpPath, first_row: int) -> None:
    if invalid.any():
        raise DumpError(f"{path}: row {first_row + int(np.argmax(invalid))}: {problem}")
