"""Checks of a head's file: names and types of its columns, laws of its values, `dump.json`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.columns import (
    ATTENTION_UNITS,
    BUCKET,
    COLUMNS,
    EXAMPLE,
    HEAD,
    LAYER,
    LSE,
    MAX_LOGIT,
    POSITION,
    TABLE,
    UNITS,
    VECTOR,
    WINDOW,
)
from qk_dump.heads import MOST_DIMENSIONS, HeadId
from qk_dump.layout import Dump
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.parquet import OWN_CHANGE, require_capture, too_wide
from qk_dump.positions import BucketGeometry, first_visible, geometry_of
from qk_dump.record import FileRecord
from qk_dump.remote import DumpPath
from qk_dump.rows import Rows
from qk_toolkit.arrays import Array, Bools
from qk_toolkit.errors import DumpError

AGAIN = "Capture or download the head again."
_REPAIR = f"Capture or download the head again, or repair {MANIFEST_NAME}."
_MOST_NAMES = 5  # of files, in a message
_LARGEST_EXACT = 2.0**16  # weights exp(logit − lse) of larger float32 logits are not exact


def check_columns(
    schema: pa.Schema, path: DumpPath, read: Collection[str] = (), head: HeadId | None = None
) -> None:
    """Raise a `DumpError` unless the columns are there, in whole units, with accepted types.

    The types of optional columns are checked if they are among those to `read`.
    """
    names = schema.names
    for name in COLUMNS:
        if names.count(name) > 1:
            raise DumpError(f"{path}: has two columns '{name}'")
    for name in (BUCKET, POSITION, VECTOR):
        if name not in names:
            raise DumpError(f"{path}: has no column '{name}' (found: {', '.join(names)})")
    _check_units(names, path)
    _check_kind(names, path, head)
    for name in (BUCKET, POSITION, VECTOR, WINDOW, *read):
        if name not in names:
            continue
        found, accepted = schema.field(name).type, COLUMNS[name].accepted
        if not accepted.test(found):
            raise DumpError(f"{path}: column '{name}' is {found}, expected {accepted.words}")
    vector = schema.field(VECTOR).type
    if kinds.is_fixed_size_list(vector) and vector.list_size > MOST_DIMENSIONS:
        raise DumpError(too_wide(path, vector.list_size))


def require_examples(schema: pa.Schema, path: DumpPath) -> None:
    """Raise a `DumpError` if a file does not say from which text its rows are."""
    if EXAMPLE not in schema.names:
        raise DumpError(
            f"{path}: has no column '{EXAMPLE}', so keys cannot be paired within one sequence. "
            "If the file holds a single sequence, set single_example: true."
        )


def _check_units(names: Collection[str], path: DumpPath) -> None:
    """Refuse a part of a unit, or an attention unit without those before it."""
    for unit, members in UNITS.items():
        if not unit or set(members).isdisjoint(names):
            continue
        before = ATTENTION_UNITS[: ATTENTION_UNITS.index(unit)] if unit in ATTENTION_UNITS else ()
        needed = [name for one in (*before, unit) for name in UNITS[one]]
        missing = [name for name in needed if name not in names]
        if missing:
            found = next(name for name in members if name in names)
            raise DumpError(
                f"{path}: has the column '{found}' and lacks {', '.join(missing)}. Capture or "
                f"download it again, or remove the columns that come with {missing[0]}."
            )


def _check_kind(names: Sequence[str], path: DumpPath, head: HeadId | None) -> None:
    """Refuse a file of queries among keys, and one of keys among queries."""
    for column in TABLE:
        if head is not None and column.name in names and head.kind not in column.kind:
            other = "queries" if head.kind == "k" else "keys"
            raise DumpError(
                f"{path}: has the column '{column.name}', which only {other} have; it is the file "
                f"of another head than {head.folder}. {AGAIN}"
            )


def refuse(wrong: Bools, problem: str, path: DumpPath, first_row: int) -> None:
    """Raise a `DumpError` that names the first row that is `wrong` (n,)."""
    if wrong.any():
        raise DumpError(f"{path}: row {first_row + int(np.argmax(wrong))}: {problem}")


@dataclass(frozen=True)
class HeadRules:
    """What the rows of a head must be: its folder, and what `dump.json` has about its layer."""

    head: HeadId | None = None
    geometry: BucketGeometry | None = None
    window: int | None = None  # tokens, −1 for full attention; None: not known
    chunked: bool = False  # the window is a chunk
    capture: str | None = None  # id of the capture
    rows: int | None = None  # of all files of the head

    def check_file(self, record: FileRecord | None, path: DumpPath) -> None:
        """Raise a `DumpError` for a file of another capture or of another head."""
        require_capture(record, self.capture, path)
        if record is not None and self.head is not None and record.head != self.head.folder:
            raise DumpError(
                f"{path}: is the file of {record.head or 'no head'}, but the folder is "
                f"{self.head.folder}. Copy the right file there, or capture or download the head "
                "again."
            )

    def check_number(self, rows: int, files: Sequence[DumpPath]) -> None:
        """Raise a `DumpError` unless the files of the head have all its rows, and no others."""
        if self.rows is None or rows == self.rows:
            return
        names = ", ".join(path.name for path in files[:_MOST_NAMES])
        remedy = OWN_CHANGE
        if len(files) > 1 and rows > self.rows:
            remedy = f"Remove the files that do not belong there. {OWN_CHANGE}"
        raise DumpError(
            f"{files[0].parent}: {names}: {rows:,} rows, but {MANIFEST_NAME} has {self.rows:,} for "
            f"this head. {remedy}"
        )

    def check(self, rows: Rows, path: DumpPath, first_row: int) -> None:
        """Raise a `DumpError` for the first row that breaks a law."""
        self._check_head(rows, path, first_row)
        self._check_bucket(rows, path, first_row)
        self._check_window(rows, path, first_row)
        seen = self._visible(rows)
        exact = _exact(rows)
        for column in TABLE:
            if column.broken is None or column.name not in rows or not rows[column.name].size:
                continue
            broken = column.broken(rows, seen)
            if column.unit in ATTENTION_UNITS:
                broken = broken & exact
            if broken.any():
                row = int(np.argmax(broken))
                raise DumpError(
                    f"{path}: row {first_row + row}: impossible value in {column.name} "
                    f"({_shown(rows[column.name][row])}, expected: {column.law}; position "
                    f"{rows[POSITION][row]:.0f}, {seen[row]:.0f} visible keys). {AGAIN}"
                )

    def _visible(self, rows: Rows) -> Array:
        """(n,) number of keys that a query at each position can see. Some may be hidden."""
        position = np.floor(rows[POSITION])
        window = int(rows[WINDOW][0]) if WINDOW in rows else -1
        first = first_visible(position, window if window > 0 else None, self.chunked)
        return np.asarray(position - first + 1)

    def _check_head(self, rows: Rows, path: DumpPath, first_row: int) -> None:
        if self.head is None:
            return
        for name, expected in ((LAYER, self.head.layer), (HEAD, self.head.head)):
            found = rows.get(name)
            if found is not None and (found != expected).any():
                row = int(np.argmax(found != expected))
                raise DumpError(
                    f"{path}: row {first_row + row}: {name} is {found[row]}, but the folder is "
                    f"{self.head.folder}; it is the file of another head. Copy the right file "
                    "there, or capture or download the head again."
                )

    def _check_bucket(self, rows: Rows, path: DumpPath, first_row: int) -> None:
        if self.geometry is None:
            return
        bucket, position = rows[BUCKET], rows[POSITION]
        expected = self.geometry.bucket(np.maximum(position, 0))  # (n,)
        if (bucket != expected).any():
            row = int(np.argmax(bucket != expected))
            raise DumpError(
                f"{path}: row {first_row + row}: bucket is {bucket[row]}, but position "
                f"{position[row]:.0f} belongs to bucket {expected[row]} ({MANIFEST_NAME}: "
                f"bucket_type {self.geometry.type}, min_bucket_size {self.geometry.min_size}). "
                f"{_REPAIR}"
            )

    def _check_window(self, rows: Rows, path: DumpPath, first_row: int) -> None:
        if self.window is None or self.head is None:
            return
        found = rows.get(WINDOW)
        layer = f"({MANIFEST_NAME}: layer {self.head.layer}). {_REPAIR}"
        if found is None and self.window > 0:
            raise DumpError(f"{path}: has no column '{WINDOW}', expected {self.window} {layer}")
        if found is not None and (found != self.window).any():
            row = int(np.argmax(found != self.window))
            raise DumpError(
                f"{path}: row {first_row + row}: {WINDOW} is {_or_null(found[row])}, expected "
                f"{_or_null(self.window)} {layer}"
            )


def rules_of(dump: Dump, head: HeadId) -> HeadRules:
    """The rules for a head, from what `dump.json` has about it."""
    manifest = dump.manifest
    if manifest is None:
        return HeadRules(head)
    capture, rows = dump.capture_id, dump.recorded_rows(head)
    geometry = geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    layer = manifest.layer(head.layer)
    if layer is None:
        return HeadRules(head, geometry, capture=capture, rows=rows)
    return HeadRules(head, geometry, layer.window or -1, layer.chunked, capture, rows)


def _exact(rows: Rows) -> Bools:
    """(n,) queries whose weights are exact enough to be checked."""
    if LSE not in rows:
        return np.ones(len(rows), np.bool_)
    return np.asarray(np.minimum(np.abs(rows[LSE]), np.abs(rows[MAX_LOGIT])) <= _LARGEST_EXACT)


def _or_null(window: Any) -> str:
    return "null" if window < 0 else str(window)


def _shown(value: Any) -> str:
    """A value of a row; of a list, its sum and its smallest and largest value."""
    if np.ndim(value):
        return f"sum {value.sum():g}, values {value.min():g} to {value.max():g}"
    return f"{value:g}"
