"""A dump being made: finished batches lie in segments until all are there and become the dump.

A capture hands over whole batches. They wait in memory up to a limit and are then written as a
*segment*, a folder in `.capture/segments/` that appears in one step. When every batch lies in a
segment, each head's rows are put in order of example and written as its Parquet file; `dump.json`
comes last. A process may be killed, or the disk fill up, at any moment: the same command goes on
from the finished segments, and the files of the dump do not show where it was interrupted, how
many processes took part, or where segments began and ended.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import FileLock

from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.examples import EXAMPLES_FILE, Example, write_examples
from qk_dump.layout import UNFINISHED, HeadId, parquet_files, parse_head
from qk_dump.manifest import (
    MANIFEST_NAME,
    DumpManifest,
    json_text,
    plan_difference,
    read_manifest,
    read_plan,
    write_manifest,
)
from qk_dump.schema import TOKEN, VECTOR, WINDOW, written_schema
from qk_dump.writer import write_heads
from qk_sniffer.pipeline.blocks import (
    Block,
    DamagedSegmentError,
    Segment,
    read_segment,
    write_segment,
)
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.files import (
    DRAFT_PATTERN,
    cannot_write,
    exclusive_folder,
    is_locked,
    remove_drafts,
    remove_exclusive_folder,
    sync_folder,
    try_lock,
    write_text,
)

__all__ = ["Block", "CaptureFolder", "Example", "ExpectedHead", "finish_capture", "open_capture"]

_PLAN = "plan.json"
_SEGMENTS = "segments"
_WAY_OUT = "choose another output.data_root, or add --overwrite to {}."

ExpectedHead = tuple[HeadId, int, int | None]
"""A head the dump shall have, the width of its vectors, and its sliding window."""


class CaptureFolder:
    """A dump being made: finished batches lie in `.capture/` as segments until all are there."""

    flush_bytes = 128 << 20  # of waiting rows, at which a segment is written
    flush_seconds = 60.0  # since the last segment, at which the next is written

    def __init__(
        self, folder: Path, plan: dict[str, Any], rank: int, lock: FileLock | None
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.complete = lock is None
        self.rows = 0  # of all heads, added by this process
        self._rank = rank
        self._lock = lock
        self.look_again()
        self._forget()

    def look_again(self) -> None:
        """Find out which batches lie in segments now."""
        segments = [] if self.complete else _read_segments(self.folder)
        self.finished = frozenset(_batches(segments))
        self.digests = {
            example.example_id: example.text_digest
            for segment in segments
            for example in segment.examples
        }

    def add(self, batch: int, blocks: Sequence[Block], examples: Sequence[Example]) -> None:
        """Take over a finished batch; it is written with others, at the latest at `flush`."""
        if self.complete or batch in self._batches:
            raise ValueError(f"batch {batch}: is there already")
        ids = [example.example_id for example in examples]
        for block in blocks:
            if not np.isin(block.example_id, ids).all():
                raise ValueError(f"batch {batch}: rows of examples that are not in the batch")
        self._batches[batch] = examples
        self._blocks += [block for block in blocks if len(block.bucket)]
        self._waiting_bytes += sum(block.nbytes for block in blocks)
        self.rows += sum(len(block.bucket) * len(block.heads) for block in blocks)
        waited = time.monotonic() - self._last_flush
        if self._waiting_bytes >= self.flush_bytes or waited >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Write the batches that wait as one segment, all the way to the disk, in one step."""
        if not self._batches:
            return
        name = f"{min(self._batches):08d}-r{self._rank}-{secrets.token_hex(4)}"
        try:
            write_segment(self.folder / UNFINISHED / _SEGMENTS / name, self._batches, self._blocks)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        self._forget()

    @property
    def total_rows(self) -> int:
        """Rows of all heads in the segments of every process."""
        return sum(segment.num_rows for segment in _read_segments(self.folder))

    def missing(self, num_batches: int) -> list[int]:
        """Batches that lie in no segment now; none when another process completed the dump."""
        missing = sorted({*range(num_batches)} - _batches(_read_segments(self.folder)))
        return [] if missing and _is_complete(self.folder, self.plan) else missing

    def close(self) -> None:
        """Let another process take this rank. What still waits is not written."""
        if self._lock is not None:
            self._lock.release()

    def _forget(self) -> None:
        self._batches: dict[int, Sequence[Example]] = {}
        self._blocks: list[Block] = []
        self._waiting_bytes = 0
        self._last_flush = time.monotonic()


def open_capture(
    folder: Path,
    plan: Mapping[str, Any],
    *,
    rank: int = 0,
    overwrite: bool = False,
) -> CaptureFolder:
    """Start the capture that `plan` describes in `folder`, or continue it where it was left.

    `plan` holds all that decides the dump's content, in values JSON can hold. A capture or a dump
    made by another plan is refused. `overwrite` discards what the folder holds of a dump, and no
    other file; processes of one capture may all ask for it, as only the first finds it idle.
    """
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{folder}: is a file, not a folder. Choose another output.data_root."
            )
        lock = None
        if overwrite or not _is_complete(folder, plain) or (folder / UNFINISHED).exists():
            with _turn(folder):
                lock = _take_part(folder, plain, rank, overwrite)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return CaptureFolder(folder, plain, rank, lock)


def finish_capture(
    capture: CaptureFolder,
    num_batches: int,
    manifest: DumpManifest,
    heads: Sequence[ExpectedHead],
    *,
    on_head: Callable[[int, int], None] | None = None,
) -> bool:
    """Make the dump out of the segments, once all batches are there; False when one is damaged.

    A damaged segment is removed: its batches are to be captured again. When several processes come
    here, one does the work and the others wait for it. `manifest` is completed by the plan and the
    number of examples; `on_head` hears how many heads are written, and of how many.
    """
    if capture.complete:
        return True
    capture.flush()
    try:
        with _turn(capture.folder) as place:
            if not _is_complete(capture.folder, capture.plan):
                segments = _read_segments(capture.folder)
                _require_batches(capture.folder, segments, num_batches)
                _make_dump(capture, segments, manifest, heads, on_head)
            (place / _PLAN).unlink(missing_ok=True)
    except DamagedSegmentError as error:
        shutil.rmtree(error.path, ignore_errors=True)
        if error.path.exists():
            raise
        capture.look_again()
        return False
    except OSError as error:
        raise cannot_write(capture.folder, error) from error
    capture.complete = True
    return True


@contextmanager
def _turn(folder: Path) -> Iterator[Path]:
    """Hold `.capture/` for the block, and remove it when no capture is under way afterwards."""
    place = folder / UNFINISHED
    with exclusive_folder(place):
        try:
            yield place
        finally:
            if not (place / _PLAN).exists():
                remove_exclusive_folder(place)


def _take_part(folder: Path, plan: dict[str, Any], rank: int, overwrite: bool) -> FileLock | None:
    """Make `.capture/` ready for this rank and lock the rank; None when the dump is complete."""
    place = folder / UNFINISHED
    busy = ConfigError(
        f"{folder}: another capture is writing here. Wait for it, or choose another "
        "output.data_root."
    )
    lock = try_lock(_lock_of(place, rank))
    if lock is None:
        raise busy
    try:
        if overwrite and not _others_at_work(place, rank):
            _discard(folder)
        elif overwrite and plan_difference(read_plan(place / _PLAN), plan):
            raise busy
        if _is_complete(folder, plan):
            (place / _PLAN).unlink(missing_ok=True)
            lock.release()
            return None
        if not (place / _PLAN).exists():
            shutil.rmtree(place / _SEGMENTS, ignore_errors=True)
            (place / _SEGMENTS).mkdir()
            write_text(place / _PLAN, json_text(plan))
            sync_folder(place)
            sync_folder(folder)
        _remove_dead_drafts(place, rank)
    except BaseException:
        lock.release()
        raise
    return lock


def _lock_of(place: Path, rank: int) -> Path:
    return place / f"rank-{rank}.lock"


def _others_at_work(place: Path, rank: int) -> bool:
    locks = {*place.glob("rank-*.lock")} - {_lock_of(place, rank)}
    return any(is_locked(lock) for lock in locks)


def _remove_dead_drafts(place: Path, rank: int) -> None:
    """Remove what killed processes were writing; what a living one writes now stays."""
    for draft in (place / _SEGMENTS).glob(DRAFT_PATTERN):
        match = re.search(r"-r(\d+)-", draft.name)
        writer = int(match[1]) if match else rank
        if writer == rank or not is_locked(_lock_of(place, writer)):
            shutil.rmtree(draft, ignore_errors=True)


def _is_complete(folder: Path, plan: dict[str, Any]) -> bool:
    """Whether the folder holds the finished dump of this plan.

    False when the capture may begin or continue there; a `ConfigError` when something else is
    there. A finished dump made by other versions of the tools counts as the same.
    """
    if not folder.is_dir():
        return False
    manifest = read_manifest(folder / MANIFEST_NAME)
    made = manifest.capture if manifest else None
    begun = read_plan(folder / UNFINISHED / _PLAN)
    if begun is not None and plan_difference(made, begun):
        _refuse_difference(folder, plan_difference(begun, plan))
        return False
    if made is not None:
        _refuse_difference(folder, plan_difference(made, plan, ignored="versions"))
        return True
    found = [name for name in (MANIFEST_NAME, EXAMPLES_FILE) if (folder / name).exists()]
    found += [head.name for head in _head_folders(folder) if parquet_files(head)]
    if found:
        raise ConfigError(
            f"{folder}: holds another dump ({found[0]}); {_WAY_OUT.format('discard it')}"
        )
    return False


def _refuse_difference(folder: Path, difference: str | None) -> None:
    if difference is not None:
        raise ConfigError(
            f"{folder}: holds a capture that differs in {difference}; "
            f"{_WAY_OUT.format('start anew')}"
        )


def _head_folders(folder: Path) -> list[Path]:
    return [
        entry
        for entry in sorted(folder.iterdir())
        if entry.is_dir() and parse_head(entry.name) is not None
    ]


def _discard(folder: Path) -> None:
    """Remove what belongs to a dump, finished or not, and nothing else."""
    shutil.rmtree(folder / UNFINISHED / _SEGMENTS, ignore_errors=True)
    for name in (f"{UNFINISHED}/{_PLAN}", MANIFEST_NAME, EXAMPLES_FILE):
        (folder / name).unlink(missing_ok=True)
    if is_card(folder / CARD_FILE):
        (folder / CARD_FILE).unlink()
    for head in _head_folders(folder):
        if head.is_symlink():
            head.unlink()
            continue
        for file in (*parquet_files(head), *head.glob(DRAFT_PATTERN)):
            file.unlink()
        with suppress(OSError):  # a file of somebody else's lies in it
            head.rmdir()


def _read_segments(folder: Path) -> list[Segment]:
    """The whole segments by their first example; a batch that lies in two counts once."""
    known: set[int] = set()
    found = []
    paths: list[Path] = []
    with suppress(FileNotFoundError):  # another process has just completed the dump
        paths = sorted((folder / UNFINISHED / _SEGMENTS).iterdir())
    for path in paths:
        segment = None if path.name.startswith(".") else read_segment(path)
        if segment is None or segment.batches.keys() <= known:
            continue
        repeated = [segment.batches[batch] for batch in segment.batches.keys() & known]
        known |= segment.batches.keys()
        ids = frozenset(example.example_id for examples in repeated for example in examples)
        found.append(replace(segment, repeated=ids))
    return sorted(found, key=lambda segment: segment.first_example)


def _batches(segments: Sequence[Segment]) -> set[int]:
    return {batch for segment in segments for batch in segment.batches}


def _require_batches(folder: Path, segments: Sequence[Segment], num_batches: int) -> None:
    there, wanted = _batches(segments), {*range(num_batches)}
    if wanted - there:
        raise OutputError(
            f"{folder}: {len(wanted - there)} of {num_batches} batches are not captured yet "
            f"(the first: {min(wanted - there)}). Run the same command again."
        )
    if there - wanted:
        raise ConfigError(
            f"{folder}: holds {len(there)} batches of texts, of which the dataset now has only "
            f"{num_batches}; {_WAY_OUT.format('start anew')}"
        )


def _make_dump(
    capture: CaptureFolder,
    segments: Sequence[Segment],
    manifest: DumpManifest,
    heads: Sequence[ExpectedHead],
    on_head: Callable[[int, int], None] | None,
) -> None:
    folder = capture.folder
    schemas = _schemas(segments, heads)
    windows = {head: window for head, _, window in heads}
    write_heads(folder, schemas, partial(_pieces, segments, windows), on_head)
    examples = {example.example_id: example for segment in segments for example in segment.examples}
    facts = {"capture": capture.plan, "num_examples": len(examples)}
    manifest = manifest.model_copy(update=facts)
    for name in (EXAMPLES_FILE, CARD_FILE, MANIFEST_NAME):
        remove_drafts(folder / name)
    write_examples(folder, examples.values())
    if is_card(folder / CARD_FILE) or not (folder / CARD_FILE).exists():
        write_text(folder / CARD_FILE, card(manifest, sorted(schemas), examples=True))
    sync_folder(folder)
    write_manifest(folder, manifest)
    sync_folder(folder)


def _schemas(segments: Sequence[Segment], heads: Sequence[ExpectedHead]) -> dict[HeadId, pa.Schema]:
    """The columns of every head: those of the rows at hand, in the width announced."""
    files = [file for segment in segments for file in segment.files.values()]
    unexpected = {name for file in files for name in file.places} - {
        head.folder for head, _, _ in heads
    }
    if unexpected:
        raise ValueError(f"rows of heads that were not announced: {sorted(unexpected)}")
    rows = files[0].schema if files else written_schema(1, pa.float32())
    vector_type, tokens = rows.field(VECTOR).type.value_type, TOKEN in rows.names
    return {
        head: written_schema(width, vector_type, token_strings=tokens) for head, width, _ in heads
    }


def _pieces(
    segments: Sequence[Segment],
    windows: Mapping[HeadId, int | None],
    head: HeadId,
    schema: pa.Schema,
) -> Iterator[tuple[pa.Table, int | None]]:
    """The head's rows of each segment, with the first example of the next."""
    limits = [segment.first_example for segment in segments[1:]]
    for segment, limit in zip_longest(segments, limits):
        rows = segment.rows(head, schema)
        if rows.num_rows and rows[WINDOW][0].as_py() != windows[head]:
            raise ValueError(f"{head.folder}: rows have another sliding window than announced")
        yield rows, limit
