"""Opening a Parquet file of a dump, after its footer was compared with the file.

A Parquet file ends with its footer, the footer's length in four bytes, and `PAR1`. Arrow takes the
numbers in there as they are told. Here those that anything is sized by are checked first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from qk_dump.limits import MOST_COLUMNS, MOST_DIMENSIONS, MOST_FOOTER_BYTES
from qk_dump.schema import VECTOR, too_wide
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular

_LENGTH_AND_MAGIC = 8
_SMALLEST_FILE = 12  # the magic at both ends, and a length
_MOST_ROWS_PER_BYTE = 1000  # of a file; however well it is packed, real rows need more room
_STREAM_BUFFER = 1 << 20  # bytes read ahead per column; keeps a huge row group out of memory


def footer_length(file: IO[bytes], size: int) -> int:
    """How long the footer of an open file of that size claims to be."""
    file.seek(size - min(size, _LENGTH_AND_MAGIC))
    return int.from_bytes(file.read(4), "little")


def require_footer(path: Path) -> None:
    """Refuse a file whose footer cannot be as long as it claims, with a `ValueError`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < _SMALLEST_FILE:
            raise ValueError(f"it has {size} bytes")
        length = footer_length(file, size)
    if length > size - _SMALLEST_FILE:
        raise ValueError(f"its footer would be {length:,} bytes long, the file has {size:,}")
    if length > MOST_FOOTER_BYTES:
        raise ValueError(f"its footer is {length:,} bytes long, at most {MOST_FOOTER_BYTES:,} are")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn Arrow's and the system's complaints about a file into one naming it."""
    try:
        yield
    except UnicodeEncodeError as error:  # Arrow takes no other names
        raise DumpError(f"{path}: its name is not UTF-8; rename it") from error
    except ValueError as error:
        raise DumpError(
            f"{path}: is not a readable Parquet file ({reason_of(error)}). "
            "Capture or download it again."
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise DumpError(f"{path}: cannot be read ({reason_of(error)})") from error


@contextmanager
def opened_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file whose footer tells numbers that can be."""
    with _readable(path):
        require_footer(path)
        with pq.ParquetFile(
            path,
            buffer_size=_STREAM_BUFFER,
            pre_buffer=False,
            page_checksum_verification=True,
        ) as parquet:
            _check_numbers(parquet.metadata, path)
            yield parquet


def _check_numbers(metadata: pq.FileMetaData, path: Path) -> None:
    if metadata.num_columns > MOST_COLUMNS:
        raise DumpError(
            f"{path}: has {metadata.num_columns:,} columns, at most {MOST_COLUMNS:,} can be read"
        )
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        raise DumpError(
            f"{path}: its footer tells {metadata.num_rows:,} rows in all and {sum(rows):,} in its "
            "parts. Capture or download it again."
        )
    size = path.stat().st_size
    if metadata.num_rows > size * _MOST_ROWS_PER_BYTE:
        raise DumpError(
            f"{path}: its footer tells {metadata.num_rows:,} rows, the file has {size:,} bytes. "
            "Capture or download it again."
        )


def vector_width_of(parquet: pq.ParquetFile, path: Path) -> int:
    """Dimensions of the first vector, 0 without one.

    The columns' facts in the footer are not asked: a wrong one there makes Arrow end the process.
    """
    schema = parquet.schema_arrow
    if schema.names.count(VECTOR) != 1 or not parquet.metadata.num_rows:
        return 0
    kind = schema.field(VECTOR).type
    if kinds.is_fixed_size_list(kind):
        width = int(kind.list_size)
    elif kinds.is_list(kind) or kinds.is_large_list(kind):
        first = next(parquet.iter_batches(1, columns=[VECTOR], use_threads=False), None)
        width = len(first.column(VECTOR).flatten()) if first is not None else 0
    else:
        width = 0
    if width > MOST_DIMENSIONS:
        raise DumpError(too_wide(path, width))
    return width


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, in one line and without its name."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".")
