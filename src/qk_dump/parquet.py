"""Opening a Parquet file of a dump, with checks of its footer.

A Parquet file ends with its footer, the length of the footer in four bytes, and `PAR1`. Arrow does
not check the numbers in the footer. The ones that determine sizes are checked here first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from qk_dump.attention_columns import has_attention
from qk_dump.limits import MOST_COLUMNS, MOST_DIMENSIONS, MOST_FOOTER_BYTES
from qk_dump.schema import VECTOR, too_wide
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular

_LENGTH_AND_MAGIC = 8
_SMALLEST_FILE = 12  # `PAR1` at both ends and the footer length
_MOST_ROWS_PER_BYTE = 1000  # rows always need more space, with any compression
_STREAM_BUFFER = 1 << 20  # bytes per column; a large row group is not read into memory at once


def footer_length(file: IO[bytes], size: int) -> int:
    """The footer length that an open file of `size` bytes gives."""
    file.seek(size - min(size, _LENGTH_AND_MAGIC))
    return int.from_bytes(file.read(4), "little")


def require_footer(path: Path) -> None:
    """Raise a `ValueError` when the file gives an impossible footer length."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < _SMALLEST_FILE:
            raise ValueError(f"it has {size} bytes")
        length = footer_length(file, size)
    if length > size - _SMALLEST_FILE:
        raise ValueError(f"its footer would be {length:,} bytes long, the file has {size:,}")
    if length > MOST_FOOTER_BYTES:
        limit = f"at most {MOST_FOOTER_BYTES:,} can be read"
        raise ValueError(f"its footer is {length:,} bytes long, {limit}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert errors of Arrow and of the system to a `DumpError` that names the file."""
    try:
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


@contextmanager
def opened_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """An open Parquet file with a checked footer."""
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
            f"{path}: its footer gives {metadata.num_rows:,} rows for the file and {sum(rows):,} "
            "for its row groups. Capture or download it again."
        )
    size = path.stat().st_size
    if metadata.num_rows > size * _MOST_ROWS_PER_BYTE:
        raise DumpError(
            f"{path}: its footer gives {metadata.num_rows:,} rows, the file has {size:,} bytes. "
            "Capture or download it again."
        )


def vector_width_of(parquet: pq.ParquetFile, path: Path) -> int:
    """Dimensions of the first vector, 0 without rows.

    Column statistics in the footer are not used: a wrong one makes Arrow end the process.
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
    """The reason of an error in one line, without the file name."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".")


def has_attention_columns(files: Sequence[Path]) -> bool:
    """Whether every file of a head has the attention columns."""
    for path in files:
        with opened_parquet(path) as parquet:
            if not has_attention(parquet.schema_arrow):
                return False
    return True
