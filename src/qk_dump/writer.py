"""Writing rows: one Parquet file per head. Only complete files get the final name."""

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

from qk_dump.attention_columns import AttentionRows, attention_arrays
from qk_dump.layout import HeadId
from qk_dump.received_columns import ReceivedRows, received_arrays
from qk_dump.recorded_columns import with_recorded_names
from qk_dump.schema import (
    BUCKET,
    EXAMPLE,
    HEAD,
    LAYER,
    POSITION,
    TOKEN,
    TOKEN_ID,
    VALUE_NORM,
    VECTOR,
    WINDOW,
    written_schema,
)
from qk_toolkit.files import remove_drafts, staged, sync, sync_folder

DATA_FILE = "data.parquet"
ROWS_PER_GROUP = 16_384
_DICTIONARIES = (BUCKET, EXAMPLE, POSITION, WINDOW, TOKEN, TOKEN_ID, LAYER, HEAD)


class HeadWriter:
    """Writes rows to one Parquet file, which appears at `path` when the block succeeds.

    The bytes of the file do not depend on how rows are split into tables: each row group has the
    same size and is written in one call.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._buffer: list[pa.Table] = []  # rows of the next group

    def __enter__(self) -> HeadWriter:
        with ExitStack() as stack:
            draft = stack.enter_context(staged(self._path))
            self._file = stack.enter_context(draft.open("wb"))
            self._parquet = pq.ParquetWriter(
                self._file,
                with_recorded_names(self._schema),
                compression="zstd",
                use_dictionary=[name for name in _DICTIONARIES if name in self._schema.names],
                use_byte_stream_split=_float_columns(self._schema),  # compresses floats better
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
        self._buffer.append(rows)
        if sum(table.num_rows for table in self._buffer) < ROWS_PER_GROUP:
            return
        table = pa.concat_tables(self._buffer)
        end = table.num_rows - table.num_rows % ROWS_PER_GROUP
        for start in range(0, end, ROWS_PER_GROUP):
            self._write_group(table.slice(start, ROWS_PER_GROUP))
        self._buffer = [table.slice(end)]

    def _write_group(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows.combine_chunks(), row_group_size=ROWS_PER_GROUP)

    def _end(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if any(table.num_rows for table in self._buffer):
                    self._write_group(pa.concat_tables(self._buffer))
                self._parquet.close()
                sync(self._file)
        finally:
            with suppress(OSError, ValueError, pa.ArrowException):  # for an unfinished file
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
    attention: AttentionRows | None = None,
    token_id: npt.NDArray[np.integer[Any]] | None = None,
    value_norm: npt.NDArray[np.floating[Any]] | None = None,
    received: ReceivedRows | None = None,
) -> Path:
    """Write the rows of one head. Vectors (n, d) are stored as float16 or float32.

    A `token_id` of −1 and a NaN in `value_norm` become null.
    """
    columns = row_columns(
        bucket=bucket,
        example_id=example_id,
        position=position,
        sliding_window=sliding_window,
        token_str=token_str,
        token_id=token_id,
    )
    columns[VECTOR] = vector_column(vectors)
    if attention is not None:
        columns |= attention_arrays(attention)
    if value_norm is not None:
        columns[VALUE_NORM] = value_norm_column(value_norm)
    if received is not None:
        columns |= received_arrays(received)
    kind = columns[VECTOR].type
    group = 0 if received is None else received.group
    schema = written_schema(kind.list_size, kind.value_type, columns, group)
    path = dump / head.folder / DATA_FILE
    with HeadWriter(path, with_head_fields(schema)) as writer:
        writer.write(with_head(pa.table(columns, schema=schema), head))
    return path


def with_head_fields(schema: pa.Schema) -> pa.Schema:
    """The schema of a file: that of its rows, and `layer` and `head`."""
    return schema.append(pa.field(LAYER, pa.int32())).append(pa.field(HEAD, pa.int32()))


def with_head(rows: pa.Table, head: HeadId) -> pa.Table:
    """The rows with the columns `layer` and `head`, which tables of several files need."""
    for name, number in ((LAYER, head.layer), (HEAD, head.head)):
        rows = rows.append_column(name, pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows))
    return rows


def _float_columns(schema: pa.Schema) -> list[str]:
    """Parquet paths of the columns of floats."""
    return [
        f"{field.name}.list.element" if pa.types.is_fixed_size_list(field.type) else field.name
        for field in schema
        if pa.types.is_fixed_size_list(field.type) or pa.types.is_floating(field.type)
    ]


def row_columns(
    *,
    bucket: npt.ArrayLike,
    example_id: npt.ArrayLike,
    position: npt.ArrayLike,
    sliding_window: int | None,
    token_str: Sequence[str] | None,
    token_id: npt.NDArray[np.integer[Any]] | None = None,
) -> dict[str, pa.Array]:
    """All columns except the vectors; the heads of one layer and kind share them."""
    columns = {
        BUCKET: _int32(bucket),
        EXAMPLE: _int32(example_id),
        POSITION: _int32(position),
    }
    columns[WINDOW] = pa.repeat(pa.scalar(sliding_window, pa.int32()), len(columns[BUCKET]))
    if token_str is not None:
        columns[TOKEN] = pa.array(token_str, pa.string())
    if token_id is not None:
        columns[TOKEN_ID] = pa.array(token_id, pa.int32(), mask=token_id < 0)
    return columns


def value_norm_column(value_norm: npt.NDArray[np.floating[Any]]) -> pa.Array:
    """The column `value_norm` of one head (n,); NaN becomes null."""
    values = np.ascontiguousarray(value_norm, np.float32)
    return pa.array(values, mask=np.isnan(values))


def vector_column(vectors: npt.NDArray[np.floating[Any]]) -> pa.Array:
    """Vectors (n, d) as a column: float16 stays, other types become float32."""
    stored = np.float16 if vectors.dtype == np.float16 else np.float32
    values = np.ascontiguousarray(vectors, stored)  # (n, d)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


Pieces = Iterator[tuple[pa.Table, int | None]]
"""Parts of a head's rows, each with the smallest `example_id` of later parts (None: last part)."""


def write_heads(
    dump: Path,
    schemas: Mapping[HeadId, pa.Schema],
    pieces_of: Callable[[HeadId, pa.Schema], Pieces],
    on_head: Callable[[int, int], None] | None = None,
) -> None:
    """Write the files of many heads in parallel; `on_head` is called with (done, total)."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        jobs = [
            pool.submit(
                _write_pieces, dump / head.folder / DATA_FILE, head, schema, pieces_of(head, schema)
            )
            for head, schema in schemas.items()
        ]
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                job.result()
                if on_head is not None:
                    on_head(done, len(jobs))
        except BaseException:  # raised again
            pool.shutdown(cancel_futures=True)
            raise


def _write_pieces(path: Path, head: HeadId, schema: pa.Schema, pieces: Pieces) -> None:
    remove_drafts(path)
    with HeadWriter(path, with_head_fields(schema)) as writer:
        for rows in in_example_order(pieces):
            writer.write(with_head(rows, head))
    sync_folder(path.parent)


def in_example_order(pieces: Pieces) -> Iterator[pa.Table]:
    """The rows of all pieces, sorted by example; the sort is stable.

    Rows are yielded as soon as no later piece can contain a smaller example.
    """
    remaining: pa.Table | None = None
    for piece, next_example in pieces:
        table = piece if remaining is None else pa.concat_tables([remaining, piece])
        ids = table[EXAMPLE].to_numpy()  # (n,)
        if (ids[1:] < ids[:-1]).any():
            order = np.argsort(ids, kind="stable")
            table, ids = table.combine_chunks().take(pa.array(order)), ids[order]
        ready = len(ids) if next_example is None else int(np.searchsorted(ids, next_example))
        yield table.slice(0, ready)
        remaining = table.slice(ready)


def _int32(values: npt.ArrayLike) -> pa.Array:
    """An int32 column; a number that does not fit raises an error."""
    return pa.array(np.asarray(values)).cast(pa.int32())
