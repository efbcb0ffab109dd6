"""Segments: the rows of finished chunks on disk.

A segment is a folder with a Parquet file for every table of the capture, and with its texts. It
appears in one step, so a killed process leaves no half of it. A row group has the rows of eight
heads, so that the end of a capture reads few rows at a time. Lists are stored as bytes, which Arrow
writes and reads several times faster, and vectors that a bfloat16 can hold with half of their bits.
Page checksums and hashes of footers show damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qk_dump.columns import HEAD, VECTOR
from qk_dump.layout import UNFINISHED
from qk_dump.parquet import reason_of
from qk_dump.side_files import Example
from qk_sniffer.rows.layer_tables import LayerTable, Part
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular, read_json, staged_folder, sync, write_through

SEGMENTS = "segments"  # in `.capture/`
_CONTENT = "segment.json"  # its texts, and hashes of footers
_FOOTER_END = 8  # bytes: the length of the footer, and a magic word
_THREADS = 4  # that write the files of a segment
_HEADS_OF_GROUP = 8
_ROWS_AT_A_TIME = 65_536  # that are read of a row group


@dataclass(frozen=True)
class Segment:
    """A chunk on disk."""

    path: Path
    examples: list[Example]
    footers: dict[str, str]  # part → hash of the footer of its file, which page checksums leave out

    @property
    def number(self) -> int:
        """The number of the chunk."""
        return int(self.path.name)

    def file(self, part: Part) -> Path:
        """The file with the rows of a part."""
        return self.path / f"{part.name}.parquet"

    def rows(self, table: LayerTable, group: int) -> Iterator[tuple[int, pa.Table]]:
        """The rows of the heads of a group, as tables of their files: (head, rows).

        Raises a `DumpError` if the file is damaged.
        """
        with _damage_told(self.path), open_regular(self.file(table.part)) as stream:
            if _footer_digest(stream) != self.footers.get(table.part.name):
                raise ValueError(f"the footer of {table.part.name}.parquet has changed")
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            heads, read = head_groups(table)[group], 0
            options = {"row_groups": [group], "use_threads": False}
            for batch in parquet.iter_batches(_ROWS_AT_A_TIME, **options):
                packed = pa.Table.from_batches([batch])
                read += batch.num_rows
                for head in heads:
                    some = packed.filter(pc.equal(packed[HEAD], head))
                    if some.num_rows:
                        yield head, _unpacked(some.combine_chunks(), table.schema)
            if read != parquet.metadata.row_group(group).num_rows:
                raise ValueError(f"{read:,} rows in group {group} of {table.part.name}")


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, DumpError, pa.ArrowException) as error:
        raise DumpError(
            f"{path}: is damaged ({reason_of(error)}). Remove this folder and run the same command "
            "again; it captures the texts of this folder again."
        ) from error


def head_groups(table: LayerTable) -> list[tuple[int, ...]]:
    """The heads of every row group."""
    heads = table.heads
    starts = range(0, len(heads), _HEADS_OF_GROUP)
    return [heads[start : start + _HEADS_OF_GROUP] for start in starts]


def segment_path(folder: Path, number: int) -> Path:
    """The segment of a chunk, in the folder of a capture."""
    return folder / UNFINISHED / SEGMENTS / f"{number:05d}"


def write_segment(
    target: Path,
    tables: Sequence[LayerTable],
    rows: Mapping[Part, Sequence[pa.Table]],
    examples: Sequence[Example],
) -> None:
    """Write a segment to `target` in one step, and sync it to disk.

    `rows` are tables of batches, in each of which one head comes after the other.
    """
    with staged_folder(target) as draft:

        def write(table: LayerTable) -> str:
            path = Segment(draft, [], {}).file(table.part)
            return _write_file(path, table, rows.get(table.part, ()))

        with ThreadPoolExecutor(_THREADS) as pool:
            footers = list(pool.map(write, tables))
        content = {
            "examples": [example.as_record() for example in examples],
            "footers": {one.part.name: two for one, two in zip(tables, footers, strict=True)},
        }
        stored = {"content": content, "sha256": _digest_of_json(content)}
        write_through(draft / _CONTENT, json.dumps(stored))


def _write_file(path: Path, table: LayerTable, batches: Sequence[pa.Table]) -> str:
    """Write the rows of a part; the hash of the footer."""
    halves = table.schema.field(VECTOR).type.value_type == pa.float32() and not any(
        _uses_lower_bits(batch) for batch in batches
    )
    packed = [_packed(batch, halves) for batch in batches]
    empty = _packed(_no_rows(table), halves)
    numbers = [batch[HEAD].to_numpy() for batch in batches]  # ascending in each
    schema = empty.schema
    small = [field.name for field in schema if pa.types.is_integer(field.type)]
    with path.open("w+b") as file:
        with pq.ParquetWriter(
            file,
            schema,
            compression={
                name: "zstd" if name in small or (halves and name == VECTOR) else "none"
                for name in schema.names
            },
            use_dictionary=False,
            use_byte_stream_split=[VECTOR] if halves else False,  # else they do not compress
            write_statistics=False,
            write_page_checksum=True,
        ) as parquet:
            for heads in head_groups(table):
                bounds = [np.searchsorted(found, [heads[0], heads[-1] + 1]) for found in numbers]
                parts = [
                    batch.slice(start, end - start)
                    for batch, (start, end) in zip(packed, bounds, strict=True)
                ]
                rows = pa.concat_tables([empty, *parts])
                parquet.write_table(rows, row_group_size=max(1, rows.num_rows))
        sync(file)
        return _footer_digest(file)


def _footer_digest(file: IO[bytes]) -> str:
    """The hash of the footer of a Parquet file; the file is at its beginning afterwards."""
    end = file.seek(0, 2)
    file.seek(max(0, end - _FOOTER_END))
    length = int.from_bytes(file.read(4), "little") + _FOOTER_END
    file.seek(max(0, end - length))
    found = hashlib.sha256(file.read()).hexdigest()
    file.seek(0)
    return found


def _no_rows(table: LayerTable) -> pa.Table:
    arrays = [pa.array([], field.type) for field in table.schema]
    return pa.table(arrays, schema=table.schema)


def _uses_lower_bits(rows: pa.Table) -> bool:
    """Whether float32 vectors have more bits than a bfloat16."""
    halves = np.frombuffer(_buffer(rows[VECTOR].chunk(0)), np.uint16)
    return bool(halves[::2].any())


def _packed(rows: pa.Table, halves: bool) -> pa.Table:
    """The same rows with bytes in place of lists; of vectors only upper halves, with `halves`."""
    columns = {
        name: _as_bytes(column.chunk(0), halves and name == VECTOR)
        if pa.types.is_fixed_size_list(column.type)
        else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }
    return pa.table(columns)


def _as_bytes(lists: pa.FixedSizeListArray, halves: bool) -> pa.Array:
    data, size = _buffer(lists), lists.type.list_size * lists.type.value_type.bit_width // 8
    if halves:
        data, size = pa.py_buffer(np.frombuffer(data, np.uint16)[1::2].copy()), size // 2
    buffers = [lists.buffers()[0], data]
    return pa.Array.from_buffers(pa.binary(size), len(lists), buffers, lists.null_count)


def _buffer(lists: pa.FixedSizeListArray) -> pa.Buffer:
    """The numbers of all rows, also of those that are null."""
    values = lists.values
    return values.buffers()[1].slice(0, len(values) * values.type.bit_width // 8)


def _unpacked(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of the schema."""
    columns = [
        _as_lists(rows[field.name].chunk(0), field.type)
        if pa.types.is_fixed_size_list(field.type)
        else rows[field.name]
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _as_lists(array: pa.Array, type_: pa.FixedSizeListType) -> pa.Array:
    kind, width, (valid, data) = type_.value_type, type_.list_size, array.buffers()
    if 2 * array.type.byte_width == width * kind.bit_width // 8:  # upper halves
        upper = np.frombuffer(data, np.uint16)
        numbers = pa.array((upper.astype(np.uint32) << 16).view(np.float32))
    else:
        numbers = pa.Array.from_buffers(kind, (array.offset + len(array)) * width, [None, data])
    nulls = array.null_count
    return pa.Array.from_buffers(type_, len(array), [valid], nulls, array.offset, [numbers])


def read_segment(path: Path) -> Segment | None:
    """The segment in a folder; None if there is none. Raises a `DumpError` if it is damaged."""
    if not path.is_dir():
        return None
    with _damage_told(path):
        stored = read_json(path / _CONTENT)
        content = stored["content"]
        if stored["sha256"] != _digest_of_json(content):
            raise ValueError(f"{_CONTENT} has changed")
        examples = [Example(**record) for record in content["examples"]]
        return Segment(path, examples, content["footers"])


def _digest_of_json(content: object) -> str:
    """The hash of a JSON value; keys are converted to text first, as in the file."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def saved_chunks(folder: Path) -> set[int]:
    """The numbers of the chunks that have a segment."""
    with suppress(FileNotFoundError):  # another process has just completed the dump
        names = [path.name for path in (folder / UNFINISHED / SEGMENTS).iterdir()]
        return {int(name) for name in names if name.isdecimal()}
    return set()


def read_segments(folder: Path) -> list[Segment]:
    """The segments in the order of their texts."""
    found = [read_segment(segment_path(folder, number)) for number in sorted(saved_chunks(folder))]
    return [segment for segment in found if segment is not None]
