"""The rows of an unfinished capture on disk.

A segment is a folder with the blocks of whole batches, in files with one or more Arrow record
batches per head. It appears in one step, so a killed process leaves no half of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qk_dump.attention_columns import AttentionRows, attention_arrays
from qk_dump.examples import Example
from qk_dump.layout import UNFINISHED, HeadId
from qk_dump.received_columns import ReceivedRows, received_arrays
from qk_dump.schema import EXAMPLE, VALUE_NORM, VECTOR, written_schema
from qk_dump.writer import row_columns, value_norm_column, vector_column
from qk_sniffer.pipeline.blocks import Block
from qk_sniffer.pipeline.work_folder import SEGMENTS
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular, read_json, staged_folder, sync, write_through

_SEGMENT_FILE = "segment.json"
_SEGMENT_VERSION = 4  # segments of other versions are ignored


@dataclass(frozen=True)
class SegmentFile:
    """The description of a segment's file, which holds Arrow record batches."""

    schema: pa.Schema
    record_batches: dict[str, list[int]]  # head's folder → numbers of its record batches
    starts: npt.NDArray[np.int64]  # (record batches + 1,) byte offsets
    digests: Sequence[str]  # of every record batch


class DamagedSegmentError(DumpError):
    """A segment whose content differs from what was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: is damaged ({reason}). Remove the folder and run the same command again; "
            "this captures its texts again."
        )
        self.path = path


@dataclass(frozen=True)
class Segment:
    """A folder on disk with the rows of whole batches."""

    path: Path
    batches: dict[int, list[Example]]
    files: dict[str, SegmentFile]
    num_rows: int  # of all heads, without keys drawn by attention
    part: int = 0  # which of the parts; a tensor parallel model has one for each process,
    parts: int = 1  # with some of the heads of every batch
    repeated: frozenset[int] = frozenset()  # ids of examples that are also in an earlier segment

    @property
    def examples(self) -> list[Example]:
        """The examples of all batches."""
        return [example for batch in self.batches.values() for example in batch]

    @cached_property
    def first_example(self) -> int:
        """The smallest example id."""
        return min((example.example_id for example in self.examples), default=0)

    def rows(self, head: HeadId, schema: pa.Schema) -> pa.Table:
        """The rows of a head, in the order in which they were added."""
        tables = [
            self._read(name, file, number, schema)
            for name, file in self.files.items()
            for number in file.record_batches.get(head.folder, ())
        ]
        table = pa.concat_tables(tables or [schema.empty_table()])
        if self.repeated:
            fresh = ~np.isin(table[EXAMPLE].to_numpy(), list(self.repeated))
            table = table.filter(pa.array(fresh))
        return table

    def _read(self, name: str, file: SegmentFile, number: int, schema: pa.Schema) -> pa.Table:
        """Read one record batch of a file."""
        if file.schema != schema:
            raise ValueError(f"{self.path}: columns are {file.schema}, expected {schema}")
        try:
            with open_regular(self.path / name) as stream:
                stream.seek(int(file.starts[number]))
                content = stream.read(int(file.starts[number + 1] - file.starts[number]))
        except OSError as error:
            raise DamagedSegmentError(self.path, str(error)) from error
        if _digest(content) != file.digests[number]:
            raise DamagedSegmentError(self.path, f"rows of {name}")
        return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(content), schema)])


def write_segment(
    target: Path,
    batches: Mapping[int, Sequence[Example]],
    blocks: Sequence[Block],
    part: int = 0,
    parts: int = 1,
) -> None:
    """Write a segment to `target` in one step, and sync it to disk."""
    with staged_folder(target) as draft:
        content = {
            "format_version": _SEGMENT_VERSION,
            "batches": {
                batch: [example.as_record() for example in examples]
                for batch, examples in batches.items()
            },
            "files": _write_blocks(draft, blocks),
            "num_rows": sum(block.base_rows for block in blocks),
            "part": [part, parts],
        }
        stored = {"content": content, "sha256": _digest_of_json(content)}
        write_through(draft / _SEGMENT_FILE, json.dumps(stored))


def read_segment(path: Path) -> Segment | None:
    """The segment in a folder; None if it is damaged."""
    try:
        stored = read_json(path / _SEGMENT_FILE)
        content = stored["content"]
        if stored["sha256"] != _digest_of_json(content):
            return None
        if content["format_version"] != _SEGMENT_VERSION:
            return None
        for name, file in content["files"].items():
            if (path / name).stat().st_size != file["bytes"]:
                return None
        files = {name: _segment_file(file) for name, file in content["files"].items()}
        batches = {
            int(batch): [Example(**record) for record in records]
            for batch, records in content["batches"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    part, parts = content.get("part", (0, 1))
    return Segment(path, batches, files, content["num_rows"], part, parts)


def read_segments(folder: Path) -> list[Segment]:
    """The undamaged segments, sorted by first example; a batch in two segments counts once."""
    known_by_part: dict[int, set[int]] = {}
    found = []
    paths: list[Path] = []
    with suppress(FileNotFoundError):  # another process has just completed the dump
        paths = sorted((folder / UNFINISHED / SEGMENTS).iterdir())
    for path in paths:
        segment = None if path.name.startswith(".") else read_segment(path)
        if segment is None:
            continue
        known = known_by_part.setdefault(segment.part, set())
        if segment.batches.keys() <= known:
            continue
        repeated = [segment.batches[batch] for batch in segment.batches.keys() & known]
        known.update(segment.batches)
        ids = frozenset(example.example_id for examples in repeated for example in examples)
        found.append(replace(segment, repeated=ids))
    return sorted(found, key=lambda segment: segment.first_example)


def finished_batches(segments: Sequence[Segment]) -> set[int]:
    """The batches of which all parts are in segments."""
    found: dict[int, set[int]] = {}  # part → batches
    for segment in segments:
        found.setdefault(segment.part, set()).update(segment.batches)
    if not segments or len(found) < segments[0].parts:
        return set()
    return set.intersection(*found.values())


def _digest(content: bytes | pa.Buffer) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _digest_of_json(content: object) -> str:
    """The hash of a JSON value; keys are converted to text first, as in the file."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _segment_file(entry: Mapping[str, Any]) -> SegmentFile:
    starts = np.array(entry["starts"], np.int64)  # (record batches + 1,)
    if len(starts) != len(entry["heads"]) + 1 or not 0 <= starts[0] <= starts[-1] <= entry["bytes"]:
        raise ValueError("record batches are outside the file")
    kind = pa.float16() if entry["half"] else pa.float32()
    schema = written_schema(entry["width"], kind, entry["optional"], entry["group"])
    return SegmentFile(schema, _record_batches(tuple(entry["heads"])), starts, entry["digests"])


@lru_cache(maxsize=64)
def _record_batches(heads: tuple[str, ...]) -> dict[str, list[int]]:
    """Head → numbers of its record batches. Cached: most segments have the same heads."""
    numbers: dict[str, list[int]] = {}
    for number, head in enumerate(heads):
        numbers.setdefault(head, []).append(number)
    return numbers


def _write_blocks(folder: Path, blocks: Sequence[Block]) -> dict[str, dict[str, Any]]:
    """Write one file per kind of rows, sync it, and return a description of each file."""
    groups: dict[str, dict[tuple[object, ...], list[Block]]] = {}  # file → heads → blocks
    for block in blocks:
        ending = f"-{block.group}" if block.group else ""
        name = f"rows-{block.vectors.shape[2]}{block.kind}{ending}.arrow"
        heads = block.layer, block.kind, block.heads, block.sliding_window, block.attended
        groups.setdefault(name, {}).setdefault(heads, []).append(block)
    files: dict[str, dict[str, Any]] = {}
    for name in sorted(groups):
        path = folder / name
        with path.open("wb") as file:
            files[name] = _write_batches(file, list(groups[name].values()))
            sync(file)
        files[path.name]["bytes"] = path.stat().st_size
    return files


def _write_batches(file: IO[bytes], groups: Sequence[Sequence[Block]]) -> dict[str, Any]:
    first = groups[0][0]
    schema = first.schema
    heads, starts, digests = [], [0], []
    for group in groups:
        columns = _joined_columns(group)
        for place, head in enumerate(group[0].heads):
            parts = [block.vectors[:, place] for block in group]
            vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)  # (n, d)
            columns[VECTOR] = vector_column(vectors)
            attention = [block.attention[:, place] for block in group if block.attention]
            if attention:
                columns |= attention_arrays(AttentionRows.joined(attention))
            norms = [block.value_norm[:, place] for block in group if block.value_norm is not None]
            if norms:
                columns[VALUE_NORM] = value_norm_column(np.concatenate(norms))
            received = [block.received[:, place] for block in group if block.received]
            if received:
                columns |= received_arrays(ReceivedRows.joined(received))
            content = pa.RecordBatch.from_pydict(columns, schema).serialize()
            file.write(content)
            starts.append(file.tell())
            digests.append(_digest(content))
            heads.append(group[0].head_id(head).folder)
    return {
        "width": first.vectors.shape[2],
        "half": first.vectors.dtype == np.float16,
        "optional": first.optional,
        "group": first.group,
        "heads": heads,
        "starts": starts,
        "digests": digests,
    }


def _joined_columns(group: Sequence[Block]) -> dict[str, pa.Array]:
    tokens = [block.token_str for block in group]
    ids = [block.token_id for block in group if block.token_id is not None]
    return row_columns(
        bucket=np.concatenate([block.bucket for block in group]),
        example_id=np.concatenate([block.example_id for block in group]),
        position=np.concatenate([block.position for block in group]),
        sliding_window=group[0].sliding_window,
        token_str=None if None in tokens else [text for part in tokens for text in part or ()],
        token_id=np.concatenate(ids) if ids else None,
    )
