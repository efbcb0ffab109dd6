"""The work of a capture: chunks of batches, which its processes claim one after the other.

A chunk is a run of consecutive batches. A process that holds its lock runs it, and releases the
lock when the rows of the chunk are on disk. The operating system releases the locks of a process
that ends, and the next process runs the chunk again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa
from filelock import FileLock

from qk_dump.side_files import Example
from qk_sniffer.capture.folder import CaptureFolder
from qk_sniffer.capture.segments import (
    Segment,
    read_segment,
    read_segments,
    saved_chunks,
    segment_path,
    write_segment,
)
from qk_sniffer.capture.setup import Setup
from qk_sniffer.rows.layer_tables import LayerTable, Part
from qk_sniffer.rows.plan import ForwardTexts, text_bytes, texts_of_forward
from qk_sniffer.texts.sources import Text
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import cannot_write

_CHUNK_BYTES = 64 << 20  # of the rows of a chunk, at most
_MOST_CHUNKS = 256  # unless chunks are smaller than a batch
_STREAMED = 16  # batches of a chunk at most, if the number of texts is not known
_SECONDS_BETWEEN_LOOKS = 1.0  # for what others have saved
_SECONDS_BETWEEN_WAITS = 0.2  # of a process that has no chunk to run
_SECONDS_TO_NEXT_CHUNK = 0.02  # between looks whether the last chunk is saved
_FEW = 4  # chunks per process; with more, the next one is claimed while the last one runs


@dataclass(frozen=True)
class Batch:
    """Several texts, and the rows to take. Texts without tokens are not run."""

    number: int
    examples: tuple[Example, ...]  # of all texts
    token_ids: tuple[Sequence[int], ...]  # of the texts to run
    texts: ForwardTexts  # the texts to run

    @property
    def num_tokens(self) -> int:
        """The tokens of the texts to run."""
        return sum(len(ids) for ids in self.token_ids)


def make_batch(setup: Setup, number: int, group: Sequence[Text]) -> Batch:
    """Tokenize texts and sample the rows to take."""
    token_ids = [setup.encoder.tokens(text) for text in group]
    examples = tuple(
        Example(text.example_id, text.original_id, len(ids), text.digest)
        for text, ids in zip(group, token_ids, strict=True)
    )
    run = [(text.example_id, ids) for text, ids in zip(group, token_ids, strict=True) if len(ids)]
    kept = tuple(ids for _, ids in run)
    texts = texts_of_forward(setup.row_plan, [example for example, _ in run], kept)
    return Batch(number, examples, kept, texts)


def chunk_size(setup: Setup) -> int:
    """The number of batches of a chunk, by the size of their rows and the number of texts."""
    total, longest = setup.texts.total, setup.max_length or 0
    if setup.texts.has_index:
        sizes = max(setup.texts.sizes(), default=0)  # bytes, at least as many as tokens
        longest = min(longest or sizes, sizes)
    size = setup.batch_size * text_bytes(setup.row_plan, max(1, longest), half=setup.half)
    most = _STREAMED
    if total is not None:
        most = -(-total // (setup.batch_size * _MOST_CHUNKS))
    return max(1, min(int(_CHUNK_BYTES // max(1.0, size)), most))


class Claim:
    """A chunk that this process runs: its lock, and the rows of its batches so far."""

    def __init__(
        self, capture: CaptureFolder, tables: Sequence[LayerTable], number: int, lock: FileLock
    ) -> None:
        self.steps = 0  # that make the chunk complete
        self._capture = capture
        self._tables = tables
        self._number = number
        self._lock = lock
        self._examples: list[Example] = []
        self._rows: dict[Part, list[pa.Table]] = {}

    @property
    def is_held(self) -> bool:
        """Whether the chunk is locked by this process."""
        return bool(self._lock.is_locked)

    def add(self, batch: Batch, rows: Mapping[Part, pa.Table]) -> None:
        """Add the rows of a batch that was computed. The last batch saves the chunk."""
        self._examples += batch.examples
        for part, table in rows.items():
            self._rows.setdefault(part, []).append(table)
        self.steps -= 1
        if not self.steps:
            self._save()
            self.release()

    def _save(self) -> None:
        target = segment_path(self._capture.folder, self._number)
        try:
            write_segment(target, self._tables, self._rows, self._examples)
        except OSError as error:
            raise cannot_write(self._capture.folder, error) from error

    def release(self) -> None:
        """Release the chunk; another process may run it if it is not saved."""
        self._rows.clear()
        self._lock.release()


@dataclass(frozen=True)
class Step:
    """A batch of a claimed chunk."""

    claim: Claim
    batch: Batch


class Work:
    """The chunks of a capture, some of which this process runs.

    The process runs what `steps` gives. It then calls `wait`, which tells whether there is more.
    """

    def __init__(self, setup: Setup, capture: CaptureFolder, others: int = 0) -> None:
        """`others` processes were started with this one; they may come later."""
        self._others = others
        self.setup = setup
        self.capture = capture
        self._texts = setup.texts
        self._per_chunk = setup.batch_size * capture.chunk_size
        self._finished = {segment.number: segment for segment in read_segments(capture.folder)}
        self._seen = {*self._finished}  # chunks that are in the counts of the watcher
        self._last_look = 0.0
        self._claims: list[Claim] = []
        self._closed = False
        self.saw_others = False  # in the folder
        self.tables = {one.part: one for one in setup.row_plan.tables(half=setup.half)}
        self.num_chunks = -(-(setup.texts.total or 0) // self._per_chunk)  # of all processes

    @property
    def texts_done(self) -> int:
        """The number of texts that were finished when this process started."""
        return sum(len(segment.examples) for segment in self._finished.values())

    def steps(self) -> Iterator[Step]:
        """Batches of chunks that no other process has; the next chunk is claimed when needed."""
        for number, texts in self._numbered():
            segment = self._finished.get(number)
            if segment is None or not self._is_done(segment, texts()):
                yield from self._steps_of(number, texts)

    def wait(self, on_look: Callable[[], None]) -> bool:
        """Wait until all chunks are saved. True as soon as a chunk is free that is not saved."""
        self._finished.clear()  # texts are compared once
        while self.capture.is_open:
            self._last_look = 0.0
            on_look()
            missing = {*range(self.num_chunks)} - saved_chunks(self.capture.folder)
            if not missing or self.capture.has_free_chunk(missing):
                return bool(missing)
            time.sleep(_SECONDS_BETWEEN_WAITS)
        return False

    def saved_by_others(self) -> list[Segment]:
        """The chunks that other processes have saved since the last look at the folder."""
        now = time.monotonic()
        if now < self._last_look + _SECONDS_BETWEEN_LOOKS:
            return []
        self._last_look = now
        new = saved_chunks(self.capture.folder) - self._seen
        self._seen |= new
        self.saw_others = self.saw_others or bool(new)
        found = [read_segment(segment_path(self.capture.folder, number)) for number in new]
        return [segment for segment in found if segment is not None]

    def close(self) -> None:
        """Release the chunks that are not saved, and claim no others."""
        self._closed = True
        for claim in self._claims:
            claim.release()

    def _numbered(self) -> Iterator[tuple[int, Callable[[], list[Text]]]]:
        """The chunks and their texts: finished ones first, then the longest, or as streamed."""
        if self._texts.has_index:
            order = longest_first(self._texts.sizes(), self.setup.batch_size, self._per_chunk)
            for number in sorted(order, key=lambda number: number not in self._finished):
                end = min((number + 1) * self._per_chunk, self._texts.total or 0)
                yield number, partial(self._texts.between, number * self._per_chunk, end)
            return
        source, number = iter(self._texts), 0
        while group := list(islice(source, self._per_chunk)):
            yield number, group.copy
            number += 1
            self.num_chunks = max(self.num_chunks, number)

    def _steps_of(self, number: int, texts: Callable[[], list[Text]]) -> Iterator[Step]:
        """The batches of a chunk, if this process can claim it."""
        while self._has_chunk() and not self._closed and self._others_need_chunks():
            time.sleep(_SECONDS_TO_NEXT_CHUNK)
        if self._closed:
            return
        lock = self.capture.lock_chunk(number)
        if lock is None:
            self.saw_others = True
            return
        claim = Claim(self.capture, [*self.tables.values()], number, lock)
        self._claims.append(claim)
        path = segment_path(self.capture.folder, number)
        segment, group = read_segment(path), texts()
        if not claim.is_held:  # the capture was stopped while the texts were read
            return
        if (segment is not None and self._is_done(segment, group)) or not self.capture.is_open:
            claim.release()
            return
        for old in (path, *path.parent.glob(f".{path.name}.part-*")):
            shutil.rmtree(old, ignore_errors=True)
        self._seen.add(number)
        size = self.setup.batch_size
        parts = [group[start : start + size] for start in range(0, len(group), size)]
        claim.steps = len(parts)
        for part in parts:
            yield Step(claim, make_batch(self.setup, part[0].example_id // size, part))

    def _has_chunk(self) -> bool:
        """Whether this process has a chunk that is not saved."""
        self._claims = [claim for claim in self._claims if claim.is_held]
        return bool(self._claims)

    def _others_need_chunks(self) -> bool:
        """Whether others may lack a chunk if this process claimed its next one early."""
        missing = {*range(self.num_chunks)} - saved_chunks(self.capture.folder)
        return self._others > 0 and len(missing) <= _FEW * (self._others + 1)

    def _is_done(self, segment: Segment, texts: Sequence[Text]) -> bool:
        """Whether a segment has all these texts. Raises an error if they have changed."""
        if len(segment.examples) > len(texts):
            raise ConfigError(
                f"dataset.path: {self.setup.config.dataset.path}: has fewer texts than when this "
                "capture began; use another output.data_root, or overwrite to start again"
            )
        for text, example in zip(texts, segment.examples, strict=False):
            if example.text_digest != text.digest:
                raise ConfigError(
                    f"dataset.path: text {text.example_id} (id {text.original_id!r}) has changed "
                    "since this capture began; use another output.data_root, or overwrite to start "
                    "again"
                )
        return len(segment.examples) == len(texts)


def longest_first(sizes: Sequence[int], batch_size: int, per_chunk: int) -> list[int]:
    """The numbers of all chunks, ordered by the sizes of the longest text of every batch."""
    longest = [max(sizes[start : start + batch_size]) for start in range(0, len(sizes), batch_size)]
    step = per_chunk // batch_size
    costs = [sum(longest[start : start + step]) for start in range(0, len(longest), step)]
    return sorted(range(len(costs)), key=lambda number: (-costs[number], number))
