"""Segments: the rows of finished chunks on disk.

A segment is a folder with a Parquet file for every layer and kind, and with `segment.json`. A row
group has the rows of a few heads, one head after the other: with a row group for every head,
writing a segment of 1,700 heads takes longer than a forward. A segment appears in one step, so a
killed process leaves no half of it. Hashes and the checksums of pages show damaged files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.columns import HEAD, LAYER, table_of, with_head
from qk_dump.heads import HeadId
from qk_dump.layout import UNFINISHED
from qk_dump.rows import Rows
from qk_dump.side_files import Example
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular, read_json, staged_folder, sync, write_through

SEGMENTS = "segments"  # in `.capture/`
_CONTENT = "segment.json"
_VERSION = 6  # segments of other versions count as damaged
_THREADS = 4  # that write the files of a segment
_HEADS_OF_GROUP = 8
_FOOTER_END = 8  # bytes: the length of the footer, and a magic word


class DamagedSegmentError(DumpError):
    """A segment whose content differs from what was written."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(
            f"{path}: is damaged ({reason}). Remove the folder and run the same command again; "
            "this captures its texts again."
        )
        self.path = path


@dataclass(frozen=True)
class SegmentFile:
    """The description of a Parquet file."""

    groups: list[dict[str, int]]  # of every row group: folder of the head → number of its rows
    size: int  # bytes
    footer: str  # hash of its footer, which the checksums of pages do not cover


@dataclass(frozen=True)
class Segment:
    """A chunk on disk."""

    path: Path
    examples: list[Example]
    files: dict[str, SegmentFile]

    @property
    def number(self) -> int:
        """The number of the chunk."""
        return int(self.path.name)

    @property
    def num_rows(self) -> int:
        """The number of rows of all heads, without keys drawn by attention."""
        return sum(
            rows
            for file in self.files.values()
            for group in file.groups
            for head, rows in group.items()
            if "/" not in head
        )

    def tables(
        self, heads: Sequence[HeadId], schema: pa.Schema
    ) -> Iterator[tuple[HeadId, pa.Table]]:
        """The rows of the heads of one row group; `schema` is that of their files."""
        name, folders = file_name(heads[0]), [head.folder for head in heads]
        file = self.files.get(name)
        found = [] if file is None else [list(group) for group in file.groups]
        if file is None or folders not in found:  # no head has rows
            return
        number = found.index(folders)
        try:
            with open_regular(self.path / name) as stream:
                if _footer_digest(stream) != file.footer:
                    raise ValueError(f"footer of {name}")
                parquet = pq.ParquetFile(stream, page_checksum_verification=True)
                table = parquet.read_row_group(number, use_threads=False)
            counts = file.groups[number].values()
            if table.num_rows != sum(counts) or not table.schema.equals(_without_head(schema)):
                raise ValueError(f"rows of {name}")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DamagedSegmentError(self.path, error) from error
        start = 0
        for head, rows in zip(heads, counts, strict=True):
            yield head, with_head(table.slice(start, rows), head, schema)
            start += rows


def file_name(head: HeadId) -> str:
    """The file of a head in a segment."""
    return f"l{head.layer:02d}{head.kind}.parquet"


def head_groups(heads: Iterable[HeadId]) -> list[list[HeadId]]:
    """The heads whose rows are in one row group: a few of one layer and kind."""
    by_file: dict[str, list[HeadId]] = {}
    for head in heads:
        by_file.setdefault(file_name(head), []).append(head)
    return [
        of_file[start : start + _HEADS_OF_GROUP]
        for of_file in by_file.values()
        for start in range(0, len(of_file), _HEADS_OF_GROUP)
    ]


def segment_path(folder: Path, number: int) -> Path:
    """The segment of a chunk, in the folder of a capture."""
    return folder / UNFINISHED / SEGMENTS / f"{number:05d}"


def write_segment(
    target: Path,
    rows: Mapping[HeadId, Rows],
    schemas: Mapping[HeadId, pa.Schema],
    examples: Sequence[Example],
) -> None:
    """Write a segment to `target` in one step, and sync it to disk."""
    groups: dict[str, list[list[HeadId]]] = {}
    for heads in head_groups(schemas):
        if any(len(rows.get(head, ())) for head in heads):
            groups.setdefault(file_name(heads[0]), []).append(heads)
    with staged_folder(target) as draft:
        with ThreadPoolExecutor(_THREADS) as pool:
            write = partial(_write_file, draft, rows, schemas)
            files = list(pool.map(write, groups, groups.values()))
        content = {
            "version": _VERSION,
            "examples": [example.as_record() for example in examples],
            "files": {name: asdict(file) for name, file in zip(groups, files, strict=True)},
        }
        stored = {"content": content, "sha256": _digest_of_json(content)}
        write_through(draft / _CONTENT, json.dumps(stored))


def _write_file(
    folder: Path,
    rows: Mapping[HeadId, Rows],
    schemas: Mapping[HeadId, pa.Schema],
    name: str,
    groups: Sequence[Sequence[HeadId]],
) -> SegmentFile:
    path, schema = folder / name, _without_head(schemas[groups[0][0]])
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    options |= {"write_statistics": False, "write_page_checksum": True}
    with path.open("w+b") as file:
        with pq.ParquetWriter(file, schema, **options) as parquet:
            for heads in groups:
                parts = [rows[head] for head in heads if head in rows]
                table = table_of(Rows.joined(parts), heads[0], schema)
                parquet.write_table(table, row_group_size=table.num_rows)
        sync(file)
        footer, size = _footer_digest(file), file.tell()
    counts = [{head.folder: len(rows.get(head, ())) for head in heads} for heads in groups]
    return SegmentFile(counts, size, footer)


def _without_head(schema: pa.Schema) -> pa.Schema:
    """The columns of a segment: `layer` and `head` follow from the name of the head."""
    return pa.schema([field for field in schema if field.name not in (LAYER, HEAD)])


def read_segment(path: Path) -> Segment | None:
    """The segment in a folder; None if there is none, or a damaged one."""
    try:
        stored = read_json(path / _CONTENT)
        content = stored["content"]
        if stored["sha256"] != _digest_of_json(content) or content["version"] != _VERSION:
            return None
        files = {name: SegmentFile(**file) for name, file in content["files"].items()}
        if any((path / name).stat().st_size != file.size for name, file in files.items()):
            return None
        examples = [Example(**record) for record in content["examples"]]
        return Segment(path, examples, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def saved_chunks(folder: Path) -> set[int]:
    """The numbers of the chunks that have a segment, which may be damaged."""
    with suppress(FileNotFoundError):  # another process has just completed the dump
        names = [path.name for path in (folder / UNFINISHED / SEGMENTS).iterdir()]
        return {int(name) for name in names if name.isdecimal()}
    return set()


def read_segments(folder: Path) -> list[Segment]:
    """The undamaged segments in the order of their texts."""
    found = [read_segment(segment_path(folder, number)) for number in sorted(saved_chunks(folder))]
    return [segment for segment in found if segment is not None]


def remove_segment(error: DamagedSegmentError) -> None:
    """Remove a damaged segment; its chunk is then not finished."""
    shutil.rmtree(error.path, ignore_errors=True)
    if error.path.exists():
        raise error


def _footer_digest(file: IO[bytes]) -> str:
    """The hash of the footer of a Parquet file."""
    end = file.seek(0, 2)
    file.seek(max(0, end - _FOOTER_END))
    length = int.from_bytes(file.read(4), "little") + _FOOTER_END
    file.seek(max(0, end - length))
    return hashlib.sha256(file.read()).hexdigest()


def _digest_of_json(content: object) -> str:
    """The hash of a JSON value; keys are converted to text first, as in the file."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
