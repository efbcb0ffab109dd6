"""Parquet → numpy: the rows of one head as contiguous arrays, in bounded memory.

Batches of a few thousand rows are decoded and checked one by one. The selected rows are copied into
one preallocated array. Memory holds the result and one batch, for files of any size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.checks import HeadRules, check_columns, require_examples, rules_of
from qk_dump.columns import (
    BUCKET,
    COLUMNS,
    EXAMPLE,
    HEAD,
    LAYER,
    POSITION,
    RECEIVED_COLUMNS,
    TOKEN_ID,
    UNITS,
    VALUE_NORM,
    VECTOR,
    WINDOW,
)
from qk_dump.decoding import decoded_batch
from qk_dump.head_counts import count_rows
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.parquet import OpenParquet, opened_parquet, vector_width_of
from qk_dump.record import FileRecord
from qk_dump.remote import DumpPath
from qk_dump.rows import Rows, Values
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import DumpError

ALL_ROWS = 1 << 62
_BATCH_ROWS = 8192
_BATCH_VALUES = 8192 * 1024  # vector values in a batch; wide vectors mean fewer rows
_CHANGED = "changed while it was read; run the same command again"


class HeadRows(Rows):
    """The rows of one head, in file order, and facts about its files.

    `position_max` is over all rows of the files, before subsampling. `window` counts tokens, None
    is full attention; `window_recorded` is whether the files say so. `subsampled` is the share of
    the rows of the files that the subsample kept. `capture` is the id of the capture, if the files
    have it.
    """

    def __init__(
        self,
        columns: Mapping[str, Values],
        position_max: float,
        window: int | None = None,
        window_recorded: bool = True,
        subsampled: float = 1.0,
        capture: str | None = None,
    ) -> None:
        super().__init__(columns)
        self.position_max = position_max
        self.window = window
        self.window_recorded = window_recorded
        self.subsampled = subsampled
        self.capture = capture

    def require_same_capture(self, other: HeadRows, folder: DumpPath) -> None:
        """Raise a `DumpError` if the files name another capture than those of other rows."""
        if None not in (self.capture, other.capture) and self.capture != other.capture:
            raise DumpError(
                f"{folder}: is of the capture {self.capture}, the keys of its key head are of "
                f"{other.capture}. Use the files of one capture."
            )

    def of_texts(self, ids: Ints) -> HeadRows:
        """The rows of some texts. The ids of the texts must be known."""
        return self[np.flatnonzero(np.isin(self[EXAMPLE], ids))]

    @property
    def bucket(self) -> Ints:
        """(n,) buckets."""
        return self[BUCKET]

    @property
    def position(self) -> Array:
        """(n,) positions."""
        return self[POSITION]

    @property
    def vectors(self) -> Vectors:
        """(n, d), C order, float32 or float64."""
        return self[VECTOR]

    @property
    def example_id(self) -> Ints | None:
        """(n,) texts; None if they were not read or are not known."""
        return self.get(EXAMPLE)

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
    max_rows: int = ALL_ROWS,
    seed: int = 0,
    examples: bool | Literal["if present"] = "if present",
    columns: Collection[str] = (),
    rules: HeadRules | None = None,
    vectors: bool = True,
) -> HeadRows:
    """Read the files of a head, check every row, and keep a subsample of `max_rows`.

    `examples` is whether `example_id` is read and required, as keys need it. "if present" reads it
    when every file has integers without a null. Of the optional `columns`, those are read that
    every file has, with the columns that come with them. `rules` are those of the head. Without
    `vectors`, these are not read.
    """
    if not files:
        raise DumpError("the head's folder holds no Parquet file")
    wanted = _Wanted(examples, columns, rules or HeadRules(), vectors)
    num_rows = count_rows(files)
    wanted.rules.check_number(num_rows, files)
    if num_rows == 0:
        raise DumpError(f"{files[0]}: holds no rows")
    collector = _Collector(num_rows, subsample(num_rows, max_rows, seed))
    order = _Order()
    for path in files:
        with opened_parquet(path) as parquet:
            collector.begin(parquet.record, path)
            wanted.rules.check_file(parquet.record, path)
            for rows in _batches(parquet, path, wanted):
                collector.add(rows, path)
                if wanted.rules.capture is None:  # else the number of rows tells of copies
                    order.add(rows)
    if order.may_repeat:
        _require_distinct(files)
    return collector.result(files[-1])


def read_attended(dump: Dump, layer: int, k_head: int, **options: Any) -> HeadRows | None:
    """The keys drawn by attention that are not in the base sample, with all their columns.

    None if the dump has none of this head, or if its file is empty. With more than `max_rows` rows,
    a subsample is read, and `thinned_inclusion` gives the probabilities.
    """
    head = HeadId(layer, k_head, "k", attended=True)
    if head not in dump.attended:
        return None
    files, rules = dump.require_files(head), rules_of(dump, head)
    rows = count_rows(files)
    rules.check_number(rows, files)
    if not rows:
        return None
    columns = (*RECEIVED_COLUMNS, VALUE_NORM, TOKEN_ID)
    return read_head(files, examples=True, columns=columns, rules=rules, **options)


@dataclass(frozen=True)
class _Wanted:
    """What is read of a file, and its checks."""

    examples: bool | Literal["if present"]
    optional: Collection[str]
    rules: HeadRules
    vectors: bool

    def columns(self, schema: pa.Schema, path: DumpPath) -> list[str]:
        """The columns to read from a file. Raises a `DumpError` for one of a wrong type."""
        units = dict.fromkeys(COLUMNS[name].unit for name in self.optional)
        optional = [name for unit in units for name in UNITS[unit] if unit]
        if self.rules.head is not None:  # other tools may mean something else by these names
            optional += [name for name in (LAYER, HEAD) if _is_integer(schema, name)]
        if self.examples is True:
            require_examples(schema, path)
            optional.append(EXAMPLE)
        check_columns(schema, path, optional, self.rules.head)
        if self.examples and EXAMPLE in schema.names and EXAMPLE not in optional:
            optional.append(EXAMPLE)
        names = [BUCKET, POSITION, *[VECTOR] * self.vectors, WINDOW, *optional]
        return [name for name in names if name in schema.names]


class _Order:
    """Whether rows are in ascending order of text and position, as far as texts are known."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._known = True
        self._ascending = True

    def add(self, rows: Rows) -> None:
        """Add the rows of a batch."""
        self._known &= EXAMPLE in rows
        if not (self._known and self._ascending):
            return
        text, position = rows[EXAMPLE], rows[POSITION]  # (n,)
        later = (np.diff(text) > 0) | ((np.diff(text) == 0) & (np.diff(position) > 0))  # (n − 1,)
        first = (int(text[0]), float(position[0]))
        self._ascending = bool(later.all()) and (self._last is None or self._last < first)
        self._last = (int(text[-1]), float(position[-1]))

    @property
    def may_repeat(self) -> bool:
        """Whether two rows may have one text and one position."""
        return self._known and not self._ascending


def _require_distinct(files: Sequence[DumpPath]) -> None:
    """Raise a `DumpError` if two rows of a head have one text and one position.

    Texts and positions of all rows are in memory; files in ascending order are not read for this.
    """
    parts: list[Rows] = []
    places: list[tuple[int, DumpPath]] = []  # first row of each file
    number = 0
    for path in files:
        start = number
        with opened_parquet(path) as parquet:
            for batch in parquet.batches(_BATCH_ROWS, [EXAMPLE, POSITION]):
                parts.append(decoded_batch(batch, path, number - start))
                number += batch.num_rows
        places.append((start, path))
    text, position = (
        np.concatenate([part[name] for part in parts]) for name in (EXAMPLE, POSITION)
    )
    order = np.lexsort((position, text))  # (n,)
    same = (np.diff(text[order]) == 0) & (np.diff(position[order]) == 0)  # (n − 1,)
    if not same.any():
        return
    found = np.flatnonzero(same)[np.argmin(order[1:][same])]
    first, second = order[found], order[found + 1]

    def named(row: int) -> str:
        start, path = [place for place in places if place[0] <= row][-1]
        return f"{path}: row {row - start}"

    raise DumpError(
        f"{named(second)}: is a second row of text {text[second]}, position "
        f"{position[second]:.0f}; {named(first)} has it, too. A head has one row of a token: "
        "remove copies of files from its folder, or copy or capture it again."
    )


class _Collector:
    """Copies the selected rows of each batch into preallocated arrays."""

    def __init__(self, total: int, selected: Ints | None) -> None:
        self._total = total
        self._size = total if selected is None else len(selected)
        self._selected = selected
        self._position_max = 0.0
        self._columns: dict[str, Values] = {}
        self._in_all: set[str] | None = None  # columns of all batches
        self._windows: set[int] = set()
        self._window_recorded = False
        self._capture: str | None = None  # as the files say
        self._read = 0  # rows read so far
        self._kept = 0  # rows copied so far

    def begin(self, record: FileRecord | None, path: DumpPath) -> None:
        """Begin a file. Raises a `DumpError` if it is of another capture than those before it."""
        capture = None if record is None else record.capture
        if None not in (capture, self._capture) and capture != self._capture:
            raise DumpError(
                f"{path}: is of the capture {capture}, another file of this head is of "
                f"{self._capture}. Remove the files that do not belong there."
            )
        self._capture = capture or self._capture

    def add(self, rows: Rows, path: DumpPath) -> None:
        """Add the rows of a batch."""
        if self._read + len(rows) > self._total:
            raise DumpError(f"{path}: {_CHANGED}")
        self._add_window(rows.get(WINDOW), path)
        self._position_max = max(self._position_max, float(rows[POSITION].max()))
        names = set(rows.columns) - {WINDOW, LAYER, HEAD}
        self._in_all = names if self._in_all is None else self._in_all & names
        chosen = None
        if self._selected is not None:
            bounds = np.searchsorted(self._selected, [self._read, self._read + len(rows)])
            chosen = self._selected[bounds[0] : bounds[1]] - self._read
        kept = len(rows) if chosen is None else len(chosen)
        for name in names:
            if not rows[name].size:  # every list is null
                continue
            target = self._target(name, rows[name], path)[self._kept : self._kept + kept]
            if chosen is None:
                target[...] = rows[name]
            else:
                widened = rows[name].astype(target.dtype, copy=False)
                np.take(widened, chosen, axis=0, out=target, mode="clip")  # rows are in range
        self._read += len(rows)
        self._kept += kept

    def _target(self, name: str, values: Values, path: DumpPath) -> Values:
        """The array of a column; float64 if one of the files has float64."""
        known = self._columns.get(name)
        if known is None:
            known = self._allocate(values, path)
            if values.ndim > 1 and COLUMNS[name].null:
                known.fill(np.nan)  # some batches may have null lists only
        elif known.shape[1:] != values.shape[1:]:
            raise DumpError(
                f"{path}: {name} has {values.shape[1]} values, earlier rows of this head "
                f"{known.shape[1]}"
            )
        elif values.dtype.itemsize > known.dtype.itemsize:
            known = known.astype(values.dtype)
        self._columns[name] = known
        return known

    def _allocate(self, values: Values, path: DumpPath) -> Values:
        try:
            return np.empty((self._size, *values.shape[1:]), values.dtype)
        except (MemoryError, ValueError) as error:  # ValueError: beyond the limit of numpy
            raise DumpError(
                f"{path}: not enough memory for {self._size:,} rows of the head; "
                "lower max_tokens_per_head"
            ) from error

    def _add_window(self, windows: Ints | None, path: DumpPath) -> None:
        self._window_recorded |= windows is not None
        self._windows |= {-1} if windows is None else set(np.unique(windows).tolist())
        if len(self._windows) > 1:
            values = ", ".join(sorted("null" if w < 0 else str(w) for w in self._windows))
            raise DumpError(
                f"{path}: mixes sliding_window values ({values}); a head has one window. "
                "Split the layers that were written into one folder."
            )

    def result(self, path: DumpPath) -> HeadRows:
        """The rows of all batches, with the columns that all of them have."""
        if self._read < self._total:
            raise DumpError(f"{path}: {_CHANGED}")
        known = self._columns.keys() & (self._in_all or set())
        columns = {name: self._columns[name] for name in COLUMNS if name in known}
        (window,) = self._windows
        return HeadRows(
            columns,
            self._position_max,
            None if window < 0 else window,
            self._window_recorded,
            self._size / self._total,
            self._capture,
        )


def _batches(parquet: OpenParquet, path: DumpPath, wanted: _Wanted) -> Iterator[Rows]:
    """Decoded and checked batches of a file."""
    columns = wanted.columns(parquet.schema, path)
    rows = min(_BATCH_ROWS, max(1, _BATCH_VALUES // max(1, vector_width_of(parquet, path))))
    first_row = 0
    for batch in parquet.batches(rows, columns):
        if wanted.examples == "if present" and not _usable_examples(batch):
            batch = batch.select([name for name in batch.schema.names if name != EXAMPLE])
        if batch.num_rows:
            decoded = decoded_batch(batch, path, first_row)
            wanted.rules.check(decoded, path, first_row)
            yield decoded
        first_row += batch.num_rows
    parquet.require_unchanged()
    if first_row != parquet.metadata.num_rows:
        raise DumpError(
            f"{path}: its footer gives {parquet.metadata.num_rows:,} rows, the file holds "
            f"{first_row:,}. Capture or download it again."
        )


def _is_integer(schema: pa.Schema, name: str) -> bool:
    return schema.names.count(name) == 1 and bool(kinds.is_integer(schema.field(name).type))


def _usable_examples(batch: pa.RecordBatch) -> bool:
    if EXAMPLE not in batch.schema.names:
        return False
    column = batch.column(EXAMPLE)
    if not kinds.is_integer(column.type) or column.null_count:
        return False
    return column.type != pa.uint64() or bool((np.from_dlpack(column) < 1 << 63).all())
