"""Writing rows: one Parquet file per head, complete or not there at all.

While a capture runs, rows come in blocks, a batch of texts and all heads of a layer at a time.
They are kept in segments, Arrow files with one record batch per head, until all are there and a
head's rows can be put in order and written as one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.errors import DumpError
from qk_dump.examples import Example
from qk_dump.files import (
    remove_drafts,
    staged,
    staged_folder,
    sync,
    sync_folder,
    write_through,
)
from qk_dump.layout import HeadId, Kind
from qk_dump.reader import Floats, Ints
from qk_dump.schema import BUCKET, EXAMPLE, POSITION, TOKEN, VECTOR, WINDOW, written_schema

DATA_FILE = "data.parquet"
ROWS_PER_GROUP = 16_384

_SEGMENT_FILE = "segment.json"
_SEGMENT_VERSION = 1  # segments of another version are as if they were not there


@dataclass(frozen=True)
class Block:
    """Rows of one layer and kind from one batch; its heads share the rows.

    The arrays are kept until they are written, so they must not be changed afterwards.
    """

    layer: int
    kind: Kind
    heads: tuple[int, ...]
    bucket: Ints  # (n,)
    example_id: Ints  # (n,), ascending
    position: Ints  # (n,), ascending within an example
    vectors: Floats  # (n, heads, d), float32 or float16
    sliding_window: int | None
    token_str: Sequence[str] | None = None  # (n,)

    def __post_init__(self) -> None:
        n = len(self.bucket)
        lengths = {len(self.example_id), len(self.position), len(self.vectors)}
        if self.token_str is not None:
            lengths.add(len(self.token_str))
        if lengths != {n} or self.vectors.shape[:-1] != (n, len(self.heads)):
            raise ValueError(
                f"layer {self.layer} {self.kind}: {n} buckets and {len(self.heads)} heads do not "
                f"fit vectors {self.vectors.shape} and columns of {sorted(lengths)} rows"
            )

    @property
    def nbytes(self) -> int:
        """Memory the rows take, token strings left out."""
        columns = (self.bucket, self.example_id, self.position, self.vectors)
        return sum(column.nbytes for column in columns)


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


@dataclass(frozen=True)
class Segment:
    """Whole batches on the disk, in a folder that appeared in one step."""

    path: Path
    batches: dict[int, list[Example]]
    files: dict[str, dict[str, list[int]]]  # name → head's folder → its record batches
    repeated: frozenset[int] = frozenset()  # examples that an earlier segment has, too

    @property
    def examples(self) -> list[Example]:
        """All texts of its batches."""
        return [example for batch in self.batches.values() for example in batch]

    @cached_property
    def first_example(self) -> int:
        """No row of the segment belongs to an earlier example."""
        return min((example.example_id for example in self.examples), default=0)

    def rows(self, head: HeadId, schema: pa.Schema) -> pa.Table:
        """The head's rows, in the order in which they were added."""
        tables = [
            _read_blocks(self.path / name, number, schema)
            for name, places in self.files.items()
            for number in places.get(head.folder, ())
        ]
        table = pa.concat_tables(tables or [schema.empty_table()])
        if self.repeated:
            fresh = ~np.isin(table[EXAMPLE].to_numpy(), list(self.repeated))
            table = table.filter(pa.array(fresh))
        return table


def write_segment(
    target: Path, batches: Mapping[int, Sequence[Example]], blocks: Sequence[Block]
) -> None:
    """Write a segment, all the way to the disk; it appears at `target` whole or not at all."""
    with staged_folder(target) as draft:
        content = {
            "format_version": _SEGMENT_VERSION,
            "batches": {
                batch: [example.as_record() for example in examples]
                for batch, examples in batches.items()
            },
            "files": _write_blocks(draft, blocks),
        }
        write_through(draft / _SEGMENT_FILE, json.dumps(content))


def read_segment(path: Path) -> Segment | None:
    """The segment in a folder, or None when it is damaged, which is as if it were not there."""
    try:
        content = json.loads((path / _SEGMENT_FILE).read_text(encoding="utf-8"))
        if content["format_version"] != _SEGMENT_VERSION:
            return None
        for name, file in content["files"].items():
            if (path / name).stat().st_size != file["bytes"]:
                return None
        files = {name: _places(tuple(file["heads"])) for name, file in content["files"].items()}
        batches = {
            int(batch): [Example(**record) for record in records]
            for batch, records in content["batches"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Segment(path, batches, files)


@lru_cache(maxsize=64)
def _places(heads: tuple[str, ...]) -> dict[str, list[int]]:
    """Where each head is in a list; mostly the same in all segments, so that they share it."""
    places: dict[str, list[int]] = {}
    for number, head in enumerate(heads):
        places.setdefault(head, []).append(number)
    return places


def _write_blocks(folder: Path, blocks: Sequence[Block]) -> dict[str, dict[str, Any]]:
    """Write blocks as `rows-<width>.arrow`, all the way to the disk.

    For each file, its size and the heads of its record batches in order are returned.
    """
    groups: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        kind = block.layer, block.kind, block.heads, block.sliding_window, block.vectors.shape[2]
        groups.setdefault(kind, []).append(block)
    files: dict[str, dict[str, Any]] = {}
    for width in sorted({block.vectors.shape[2] for block in blocks}):
        same_width = [group for group in groups.values() if group[0].vectors.shape[2] == width]
        path = folder / f"rows-{width}.arrow"
        with path.open("wb") as file:
            heads = _write_batches(file, same_width)
            sync(file)
        files[path.name] = {"bytes": path.stat().st_size, "heads": heads}
    return files


def _write_batches(file: IO[bytes], groups: Sequence[Sequence[Block]]) -> list[str]:
    first = groups[0][0]
    kind = vector_column(first.vectors[:0, 0]).type
    schema = written_schema(
        kind.list_size, kind.value_type, token_strings=first.token_str is not None
    )
    heads = []
    with pa.ipc.new_file(file, schema) as arrow:
        for group in groups:
            columns = _joined_columns(group)
            for place, head in enumerate(group[0].heads):
                vectors = np.concatenate([block.vectors[:, place] for block in group])  # (n, d)
                columns[VECTOR] = vector_column(vectors)
                arrow.write_batch(pa.RecordBatch.from_pydict(columns, schema))
                heads.append(HeadId(group[0].layer, head, group[0].kind).folder)
    return heads


def _joined_columns(group: Sequence[Block]) -> dict[str, pa.Array]:
    tokens = [block.token_str for block in group]
    return row_columns(
        bucket=np.concatenate([block.bucket for block in group]),
        example_id=np.concatenate([block.example_id for block in group]),
        position=np.concatenate([block.position for block in group]),
        sliding_window=group[0].sliding_window,
        token_str=None if None in tokens else [text for part in tokens for text in part or ()],
    )


def _read_blocks(path: Path, number: int, schema: pa.Schema) -> pa.Table:
    """One head's rows out of a file of blocks; the rest of the file is not read."""
    with _readable(path) as reader:
        if reader.schema != schema:
            raise pa.ArrowInvalid(f"columns are {reader.schema}, expected {schema}")
        return pa.Table.from_batches([reader.get_batch(number)])


def blocks_columns(path: Path) -> tuple[pa.DataType, bool]:
    """The type of numbers in the vectors of a file of blocks, and whether it has token strings."""
    with _readable(path) as reader:
        return reader.schema.field(VECTOR).type.value_type, TOKEN in reader.schema.names


@contextmanager
def _readable(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            yield pa.ipc.open_file(file)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise DumpError(
            f"{path}: cannot be read ({reason}). Remove {path.parent} and run the same command "
            "again; its batches are then captured anew."
        ) from error


Pieces = Iterator[tuple[pa.Table, int | None]]
"""Rows of a head, each piece with the first example that later pieces may hold (None: the last)."""


def write_heads(
    dump: Path,
    schemas: Mapping[HeadId, pa.Schema],
    pieces_of: Callable[[HeadId, pa.Schema], Pieces],
    on_head: Callable[[int, int], None] | None = None,
) -> None:
    """Write the files of many heads, a few at a time; `on_head` hears how many of all are done."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
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
