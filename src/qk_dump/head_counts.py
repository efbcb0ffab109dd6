"""Rows, buckets and dimensions of a head, without reading its vectors."""

from __future__ import annotations

from collections.abc import Sequence

from qk_dump.parquet import opened_parquet, vector_width_of
from qk_dump.remote import DumpPath, read_tails
from qk_dump.schema import BUCKET, check_columns
from qk_toolkit.errors import DumpError


def count_rows(files: Sequence[DumpPath]) -> int:
    """Number of rows of a head, from the Parquet footers."""
    read_tails(files)
    total = 0
    for path in files:
        with opened_parquet(path) as parquet:
            total += parquet.metadata.num_rows
    return total


def vector_width(files: Sequence[DumpPath]) -> int:
    """Dimensions of a head's vectors: the maximum over the first rows of its files."""
    width = 0
    for path in files:
        with opened_parquet(path) as parquet:
            width = max(width, vector_width_of(parquet, path))
    if not width:
        raise DumpError("the head's files hold no vectors")
    return width


def count_buckets(files: Sequence[DumpPath], most: int) -> int:
    """Number of buckets of a head. Counting stops above `most`; only one column is read."""
    found: set[int] = set()
    for path in files:
        with opened_parquet(path) as parquet:
            check_columns(parquet.schema, path, need_example_id=False)
            for batch in parquet.batches(1 << 16, [BUCKET]):
                found.update(batch.column(BUCKET).unique().drop_null().to_pylist())
                if len(found) > most:
                    return len(found)
    return len(found)


def check_file(path: DumpPath) -> None:
    """Check the footer and the column types of a head's file. No row is read."""
    with opened_parquet(path) as parquet:
        check_columns(parquet.schema, path, need_example_id=False)
