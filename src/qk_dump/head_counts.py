"""Rows, buckets, dimensions and texts of a head, without reading its vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.checks import check_columns, rules_of
from qk_dump.columns import BUCKET, EXAMPLE
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.parquet import opened_parquet, vector_width_of
from qk_dump.remote import DumpPath, RemotePath
from qk_toolkit.arrays import Ints
from qk_toolkit.errors import DumpError, StoreError

Item = TypeVar("Item")

_ROWS = 1 << 16  # per batch
_REQUESTS = 8  # files at a URL that are read at the same time
_AT_ONCE = 64  # heads between two reports of progress


def count_rows(files: Sequence[DumpPath]) -> int:
    """Number of rows of a head, from the Parquet footers."""
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
            check_columns(parquet.schema, path)
            for batch in parquet.batches(1 << 16, [BUCKET]):
                found.update(batch.column(BUCKET).unique().drop_null().to_pylist())
                if len(found) > most:
                    return len(found)
    return len(found)


def check_head(dump: Dump, head: HeadId) -> tuple[DumpPath, ...]:
    """Check footers, column types, capture and number of rows of a head. Returns its files.

    No row is read.
    """
    files, rules, rows = dump.require_files(head), rules_of(dump, head), 0
    for path in files:
        with opened_parquet(path) as parquet:
            check_columns(parquet.schema, path)
            rules.check_file(parquet.record, path)
            rows += parquet.metadata.num_rows
    rules.check_number(rows, files)
    return files


def texts_of_layers(dump: Dump, layers: Iterable[int]) -> Ints:
    """Ids of the texts in the first query head and the first key head of every layer.

    The heads of a layer are captured at the same positions, apart from keys drawn by attention, of
    which the first head is read, too. Heads that cannot be read are skipped: their analysis fails
    with the reason. Heads without usable ids are skipped too.
    """
    wanted = set(layers)
    heads: dict[tuple[int, str, bool], list[HeadId]] = {}
    for head in dump.all_folders:
        if head.layer in wanted:
            heads.setdefault((head.layer, head.kind, head.attended), []).append(head)

    def first_texts(candidates: list[HeadId]) -> Ints:
        found = (_texts_of_head(dump, head) for head in candidates)
        return next((ids for ids in found if len(ids)), _union([]))

    return _union(_each(dump, first_texts, list(heads.values())))


def texts_of_heads(dump: Dump, show: Callable[[int, int], object]) -> Ints:
    """Ids of the texts in all heads that can be read. `show` gets the numbers done and in all."""
    heads, found = list(dump.all_folders), _union([])
    for first in range(0, len(heads), _AT_ONCE):
        part = heads[first : first + _AT_ONCE]
        found = _union([found, *_each(dump, lambda head: _texts_of_head(dump, head), part)])
        show(first + len(part), len(heads))
    return found


def _each(dump: Dump, read: Callable[[Item], Ints], items: Sequence[Item]) -> list[Ints]:
    """What `read` gives for each item; files at a URL are read at the same time."""
    if not isinstance(dump.path, RemotePath):
        return [read(item) for item in items]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(read, items))


def _union(parts: Sequence[Ints]) -> Ints:
    ids = np.concatenate([np.empty(0, np.int64), *parts])
    return np.unique(ids[ids >= 0])  # a head with a negative id fails when it is analysed


def _texts_of_head(dump: Dump, head: HeadId) -> Ints:
    """Ids of the texts of a head; none if they cannot be read."""
    try:
        return _union([_texts_of_file(path) for path in dump.require_files(head)])
    except (DumpError, StoreError):
        return _union([])


def _texts_of_file(path: DumpPath) -> Ints:
    """Ids of the texts of a file; none if it has no ids or a null among them."""
    found: list[Ints] = []
    with opened_parquet(path) as parquet:
        schema = parquet.schema
        if schema.names.count(EXAMPLE) != 1 or not kinds.is_integer(schema.field(EXAMPLE).type):
            return _union([])
        for batch in parquet.batches(_ROWS, [EXAMPLE]):
            ids = batch.column(EXAMPLE).unique()
            if ids.null_count:
                return _union([])
            found.append(np.asarray(ids.cast(pa.int64()).to_numpy(zero_copy_only=False)))
    return _union(found)
