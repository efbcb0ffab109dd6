"""Writing rows: one Parquet file per head, complete or not there at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.layout import HeadId
from qk_dump.schema import BUCKET, EXAMPLE, POSITION, TOKEN, VECTOR, WINDOW, written_schema
from qk_toolkit.files import remove_drafts, staged, sync, sync_folder

DATA_FILE = "data.parquet"
ROWS_PER_GROUP = 16_384


class HeadWriter:
    """Streams rows into one Parquet file, which appears at `path` when the block ends well.

    However the rows are cut into tables, the file has the same bytes: row groups are always of
    the same size, and each is handed to Parquet in one piece.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._waiting: list[pa.Table] = []  # rows of the next group

    def __enter__(self) -> HeadWriter:
        with ExitStack() as stack:
            draft = stack.enter_context(staged(self._path))
            self._file = stack.enter_context(draft.open("wb"))
            self._parquet = pq.ParquetWriter(
                self._file,
                self._schema,
                compression="zstd",
                use_dictionary=[BUCKET, EXAMPLE, POSITION, WINDOW, TOKEN],
                use_byte_stream_split=[f"{VECTOR}.list.element"],  # floats pack smaller so
                write_page_checksum=True,
            )
            stack.push(self._end)
            self._steps = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._steps.__exit__(kind, error, trace)

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        self._waiting.append(rows)
        if sum(table.num_rows for table in self._waiting) < ROWS_PER_GROUP:
            return
        table = pa.concat_tables(self._waiting)
        whole = table.num_rows - table.num_rows % ROWS_PER_GROUP
        for start in range(0, whole, ROWS_PER_GROUP):
            self._write_group(table.slice(start, ROWS_PER_GROUP))
        self._waiting = [table.slice(whole)]

    def _write_group(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows.combine_chunks(), row_group_size=ROWS_PER_GROUP)

    def _end(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if any(table.num_rows for table in self._waiting):
                    self._write_group(pa.concat_tables(self._waiting))
                self._parquet.close()
                sync(self._file)
        finally:
            with suppress(Exception):  # an unfinished file is let go of; Arrow may complain
                self._parquet.close()


def write_head(
    dump: Path,
    head: HeadId,
    *,
    bucket: npt.ArrayLike,
    example_id: npt.ArrayLike,
    position: npt.ArrayLike,
    vectors: npt.NDArray[np.floating[Any]],
    sliding_window: int | None = None,
    token_str: Sequence[str] | None = None,
) -> Path:
    """Write one head's rows into `dump`. Vectors (n, d) keep float16, all else becomes float32."""
    columns = row_columns(
        bucket=bucket,
        example_id=example_id,
        position=position,
        sliding_window=sliding_window,
        token_str=token_str,
    )
    columns[VECTOR] = vector_column(vectors)
    kind = columns[VECTOR].type
    schema = written_schema(kind.list_size, kind.value_type, token_strings=token_str is not None)
    path = dump / head.folder / DATA_FILE
    table = pa.table(columns, schema=schema)
    with HeadWriter(path, schema) as writer:
        writer.write(table)
    return path


def row_columns(
    *,
    bucket: npt.ArrayLike,
    example_id: npt.ArrayLike,
    position: npt.ArrayLike,
    sliding_window: int | None,
    token_str: Sequence[str] | None,
) -> dict[str, pa.Array]:
    """The columns that heads of one layer and kind share: all but the vectors."""
    columns = {
        BUCKET: _int32(bucket),
        EXAMPLE: _int32(example_id),
        POSITION: _int32(position),
    }
    columns[WINDOW] = pa.repeat(pa.scalar(sliding_window, pa.int32()), len(columns[BUCKET]))
    if token_str is not None:
        columns[TOKEN] = pa.array(token_str, pa.string())
    return columns


def vector_column(vectors: npt.NDArray[np.floating[Any]]) -> pa.Array:
    """Vectors (n, d) as a column; float16 stays, all else becomes float32."""
    stored = np.float16 if vectors.dtype == np.float16 else np.float32
    values = np.ascontiguousarray(vectors, stored)  # (n, d)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


Pieces = Iterator[tuple[pa.Table, int | None]]
"""Rows of a head, each piece with the first example that later pieces may hold (None: the last)."""


def write_heads(
    dump: Path,
    schemas: Mapping[HeadId, pa.Schema],
    pieces_of: Callable[[HeadId, pa.Schema], Pieces],
    on_head: Callable[[int, int], None] | None = None,
) -> None:
    """Write the files of many heads, a few at a time; `on_head` hears how many of all are done."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        jobs = [
            pool.submit(
                _write_pieces, dump / head.folder / DATA_FILE, schema, pieces_of(head, schema)
            )
            for head, schema in schemas.items()
        ]
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                job.result()
                if on_head is not None:
                    on_head(done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_pieces(path: Path, schema: pa.Schema, pieces: Pieces) -> None:
    remove_drafts(path)
    with HeadWriter(path, schema) as writer:
        for rows in in_example_order(pieces):
            writer.write(rows)
    sync_folder(path.parent)


def in_example_order(pieces: Pieces) -> Iterator[pa.Table]:
    """The rows of all pieces by ascending example; rows of one example stay in their order.

    Rows that no later piece can come before are passed on; no others are held back.
    """
    held: pa.Table | None = None
    for piece, next_example in pieces:
        table = piece if held is None else pa.concat_tables([held, piece])
        ids = table[EXAMPLE].to_numpy()  # (n,)
        if (ids[1:] < ids[:-1]).any():
            order = np.argsort(ids, kind="stable")
            table, ids = table.combine_chunks().take(pa.array(order)), ids[order]
        ready = len(ids) if next_example is None else int(np.searchsorted(ids, next_example))
        yield table.slice(0, ready)
        held = table.slice(ready)


def _int32(values: npt.ArrayLike) -> pa.Array:
    """As an int32 column; a number that does not fit is an error, never another number."""
    return pa.array(np.asarray(values)).cast(pa.int32())
