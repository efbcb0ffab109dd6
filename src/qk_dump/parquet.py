"""Opening a Parquet file of a dump, and the files beside the heads.

Arrow checks pages by their checksums, but not the numbers in the footer. The record in the metadata
and the numbers of rows are checked here before memory is allocated for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from qk_dump.columns import VECTOR
from qk_dump.heads import MOST_DIMENSIONS
from qk_dump.record import RECORD, FileRecord
from qk_dump.remote import DumpPath, RemoteFile, RemotePath, size_of
from qk_toolkit.errors import DumpError
from qk_toolkit.files import require_regular, staged, sync

_LENGTH_AND_MAGIC = 8
_MOST_ROWS_PER_BYTE = 1000  # rows always need more space, with any compression
_STREAM_BUFFER = 1 << 20  # bytes per column; a large row group is not read into memory at once
NOT_NEEDED = "The file can be removed; reading a dump works without it."
OWN_CHANGE = (
    "Copy, capture or download it again. If you changed the dump yourself, remove capture_id and "
    f"rows from dump.json, and write the file without its metadata entry '{RECORD}'."
)


def too_wide(path: DumpPath, width: int) -> str:
    """The message for vectors beyond the limit."""
    return f"{path}: has vectors of {width:,} dimensions, at most {MOST_DIMENSIONS:,} can be read"


def _record_of(
    metadata: pq.FileMetaData, names: Sequence[str], path: DumpPath
) -> FileRecord | None:
    """The record of a file, compared with its footer. Raises a `DumpError` if they differ.

    A damaged name would remove an optional column. Further columns are allowed: they can be added
    to a file later.
    """
    try:
        record = FileRecord.of(metadata.metadata)
    except ValueError as error:
        raise DumpError(f"{path}: {error}. {OWN_CHANGE}") from error
    if record is None:
        return None
    missing = [name for name in record.columns if name not in names]
    if missing:
        raise DumpError(
            f"{path}: has no column '{missing[0]}', which its metadata lists (found: "
            f"{', '.join(names)}). {OWN_CHANGE}"
        )
    if record.rows != metadata.num_rows:
        raise DumpError(
            f"{path}: has {metadata.num_rows:,} rows, its metadata says {record.rows:,}. "
            f"{OWN_CHANGE}"
        )
    return record


def footer_length(file: IO[bytes], size: int) -> int:
    """The footer length that an open file of `size` bytes gives."""
    file.seek(size - min(size, _LENGTH_AND_MAGIC))
    return int.from_bytes(file.read(4), "little")


@contextmanager
def _readable(path: DumpPath) -> Iterator[None]:
    """Convert errors of Arrow and of the system to a `DumpError` that names the file."""
    try:
        with _replacement_found(path):
            yield
    except UnicodeEncodeError as error:  # Arrow accepts only UTF-8 names
        raise DumpError(f"{path}: its name is not UTF-8; rename it") from error
    except ValueError as error:
        raise DumpError(
            f"{path}: is not a readable Parquet file ({reason_of(error)}). "
            "Capture or download it again."
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise DumpError(f"{path}: cannot be read ({reason_of(error)})") from error


class OpenParquet:
    """An open Parquet file."""

    def __init__(self, path: DumpPath, file: pq.ParquetFile) -> None:
        self._path = path
        self._file = file
        self.metadata: pq.FileMetaData = file.metadata
        self.schema: pa.Schema = file.schema_arrow
        self.record = _record_of(self.metadata, self.schema.names, path)

    def batches(self, rows: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, in batches. At a URL, only these columns are read.

        Memory holds the columns of one row group at a URL, and less of a local file.
        """
        options = {"columns": list(columns), "use_threads": False}
        if not isinstance(self._path, RemotePath):
            yield from self._file.iter_batches(rows, **options)
            return
        for group in range(self.metadata.num_row_groups):
            yield from self._file.iter_batches(rows, row_groups=[group], **options)

    def table(self) -> pa.Table:
        """All columns of all rows."""
        return self._file.read(use_threads=False)

    def require_unchanged(self) -> None:
        """Raise a `DumpError` if a file at a URL was replaced while it was read."""
        if isinstance(self._path, RemotePath):
            self._path.require_unchanged()


@contextmanager
def opened_parquet(path: DumpPath) -> Iterator[OpenParquet]:
    """An open Parquet file."""
    with _readable(path):
        if isinstance(path, Path):
            require_regular(path)
        with pq.ParquetFile(
            path if isinstance(path, Path) else RemoteFile(path),
            buffer_size=_STREAM_BUFFER,
            pre_buffer=isinstance(path, RemotePath),  # a column of a row group in one request
            page_checksum_verification=True,
        ) as file:
            _check_numbers(file.metadata, path)
            yield OpenParquet(path, file)


def _check_numbers(metadata: pq.FileMetaData, path: DumpPath) -> None:
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    size = size_of(path)
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        found = f"{sum(rows):,} for its row groups"
    elif metadata.num_rows > size * _MOST_ROWS_PER_BYTE:
        found = f"the file has {size:,} bytes"
    else:
        return
    raise DumpError(
        f"{path}: its footer gives {metadata.num_rows:,} rows, {found}. Capture or download it "
        "again."
    )


def vector_width_of(parquet: OpenParquet, path: DumpPath) -> int:
    """Dimensions of the first vector, 0 without rows.

    Column statistics in the footer are not used: a wrong one makes Arrow end the process.
    """
    schema = parquet.schema
    if schema.names.count(VECTOR) != 1 or not parquet.metadata.num_rows:
        return 0
    kind = schema.field(VECTOR).type
    if kinds.is_fixed_size_list(kind):
        width = int(kind.list_size)
    elif kinds.is_list(kind) or kinds.is_large_list(kind):
        first = next(parquet.batches(1, [VECTOR]), None)
        offsets = [0, 0] if first is None else first.column(VECTOR).offsets.to_pylist()
        width = int(offsets[1] - offsets[0])
    else:
        width = 0
    if width > MOST_DIMENSIONS:
        raise DumpError(too_wide(path, width))
    return width


@contextmanager
def _replacement_found(path: DumpPath) -> Iterator[None]:
    """A file at a URL that was replaced looks damaged: check this first."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException):
        if isinstance(path, RemotePath):
            path.require_unchanged()
        raise


def reason_of(error: Exception) -> str:
    """The reason of an error in one line, without the file name."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".")


def read_side_table(path: DumpPath, capture: str | None = None) -> pa.Table | None:
    """All rows of a file beside the heads, or None without the file.

    Raises a `DumpError` for the file of another capture than `capture`, if this is known.
    """
    if isinstance(path, RemotePath):
        return _remote_table(path, capture) if path.is_file() else None
    return _table(path, capture) if os.path.lexists(path) else None


def _table(path: DumpPath, capture: str | None) -> pa.Table:
    try:
        with opened_parquet(path) as parquet:
            require_capture(parquet.record, capture, path)
            return parquet.table()
    except DumpError as error:
        raise DumpError(f"{error} {NOT_NEEDED}") from error


@lru_cache(2)
def _remote_table(path: RemotePath, capture: str | None) -> pa.Table:
    """Read a file at a URL once: the analysis of every key head needs it."""
    return _table(path, capture)


def require_capture(record: FileRecord | None, capture: str | None, path: DumpPath) -> None:
    """Raise a `DumpError` unless a file is of the capture in dump.json, if this is known."""
    if capture is None or (record is not None and record.capture == capture):
        return
    own = "it does not name its capture" if record is None else f"its capture is {record.capture}"
    raise DumpError(
        f"{path}: is not a file of the capture {capture} in dump.json: {own}. {OWN_CHANGE}"
    )


def write_side_table(path: Path, table: pa.Table, capture: str | None = None) -> None:
    """Write a file beside the heads. `capture` is the id of the capture."""
    record = FileRecord(capture, "", table.num_rows, table.schema.names)
    table = table.replace_schema_metadata(record.as_metadata())
    with staged(path) as draft, draft.open("wb") as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        sync(file)
