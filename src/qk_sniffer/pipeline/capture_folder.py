"""The folder of a capture: its plan, its locks and its finished batches.

Finished batches are collected in memory up to a limit and then written as a segment, a folder in
`.capture/segments/` that appears in one step. When every batch is in a segment, `write_dump`
converts them to the dump. If a process is killed or the disk is full, the same command continues
from the finished segments.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from qk_dump.card import CARD_FILE, is_card
from qk_dump.dump_files import FILES_BESIDE_HEADS
from qk_dump.examples import Example
from qk_dump.layout import ATTENDED, UNFINISHED, parquet_files, parse_head
from qk_dump.manifest import (
    MANIFEST_NAME,
    json_text,
    plan_difference,
    read_manifest,
    read_plan,
)
from qk_sniffer.pipeline.blocks import Block
from qk_sniffer.pipeline.rank_locks import busy, lock_of, lock_rank, other_ranks_running, release
from qk_sniffer.pipeline.refusals import REMEDY, refuse_difference
from qk_sniffer.pipeline.segment_files import (
    DamagedSegmentError,
    finished_batches,
    read_segments,
    write_segment,
)
from qk_sniffer.pipeline.work_folder import PLAN, SEGMENTS, locked_work_folder
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import (
    DRAFT_PATTERN,
    cannot_write,
    is_locked,
    sync_folder,
    try_lock,
    write_text,
)

_FINISH_LOCK = "finish.lock"


class CaptureFolder:
    """The folder of a capture; finished batches are stored in `.capture/` as segments."""

    flush_bytes = 128 << 20  # a segment is written when the pending rows have this size,
    flush_seconds = 60.0  # or when the last segment is this old

    def __init__(
        self,
        folder: Path,
        plan: dict[str, Any],
        rank: int,
        locks: Sequence[FileLock] | None,
        parts: int = 1,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.complete = locks is None
        self.rows = 0  # of all heads, added by this process
        self._rank = rank
        self._part = (rank, parts) if parts > 1 else (0, 1)
        self._locks = locks or ()
        self.refresh()
        self._clear_pending()

    def saved_batches(self) -> frozenset[int]:
        """The batches that are in segments now, of all processes."""
        return frozenset(finished_batches(read_segments(self.folder)))

    def refresh(self) -> None:
        """Read again which batches are in segments."""
        segments = [] if self.complete else read_segments(self.folder)
        self.finished = frozenset(finished_batches(segments))
        self.digests = {
            example.example_id: example.text_digest
            for segment in segments
            for batch, examples in segment.batches.items()
            for example in examples
            if batch in self.finished
        }

    def text_lengths(self) -> frozenset[int]:
        """The numbers of tokens of all texts in segments, of all processes."""
        segments = [] if self.complete else read_segments(self.folder)
        return frozenset(e.num_tokens for segment in segments for e in segment.examples)

    def add(self, batch: int, blocks: Sequence[Block], examples: Sequence[Example]) -> None:
        """Add a finished batch; it is written together with others, at the latest by `flush`."""
        if self.complete or batch in self._batches:
            raise ValueError(f"batch {batch}: was already added")
        ids = [example.example_id for example in examples]
        for block in blocks:
            if not np.isin(block.example_id, ids).all():
                raise ValueError(f"batch {batch}: has rows of examples that are not in the batch")
        self._batches[batch] = examples
        self._blocks += [block for block in blocks if len(block.bucket)]
        self._pending_bytes += sum(block.nbytes for block in blocks)
        self.rows += sum(len(block.bucket) * len(block.heads) for block in blocks)
        waited = time.monotonic() - self._last_flush
        if self._pending_bytes >= self.flush_bytes or waited >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Write the pending batches as one segment, and sync it to disk."""
        if not self._batches:
            return
        name = f"{min(self._batches):08d}-r{self._rank}-{secrets.token_hex(4)}"
        try:
            target = self.folder / UNFINISHED / SEGMENTS / name
            write_segment(target, self._batches, self._blocks, *self._part)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        self._clear_pending()

    @property
    def total_rows(self) -> int:
        """The number of rows of all heads in the segments of all processes."""
        return sum(segment.num_rows for segment in read_segments(self.folder))

    def missing(self, num_batches: int) -> list[int]:
        """Batches that are in no segment; an empty list if another process completed the dump."""
        missing = sorted({*range(num_batches)} - finished_batches(read_segments(self.folder)))
        return [] if missing and _is_complete(self.folder, self.plan) else missing

    def lock_to_finish(self) -> FileLock | None:
        """The lock of the process that converts the segments.

        None if another process converts them, or has converted them.
        """
        with locked_work_folder(self.folder) as place:
            return try_lock(place / _FINISH_LOCK) if (place / PLAN).exists() else None

    def has_dump(self) -> bool:
        """Whether the folder holds the finished dump, which another process may have written."""
        return _is_complete(self.folder, self.plan)

    def end(self) -> None:
        """Remove `.capture/`, after the dump was written."""
        with locked_work_folder(self.folder) as place:
            (place / PLAN).unlink(missing_ok=True)
        self.complete = True

    def remove_damaged(self, error: DamagedSegmentError) -> None:
        """Remove a damaged segment; its batches are then not finished."""
        shutil.rmtree(error.path, ignore_errors=True)
        if error.path.exists():
            raise error
        self.refresh()

    def close(self) -> None:
        """Release the locks of this rank; pending batches are not written."""
        release(self._locks)

    def _clear_pending(self) -> None:
        self._batches: dict[int, Sequence[Example]] = {}
        self._blocks: list[Block] = []
        self._pending_bytes = 0
        self._last_flush = time.monotonic()


def open_capture(
    folder: Path,
    plan: Mapping[str, Any],
    *,
    rank: int = 0,
    overwrite: bool = False,
    parts: int = 1,
    alone: bool = False,
) -> CaptureFolder:
    """Start or continue the capture with this plan in `folder`.

    `plan` holds all settings that determine the dump's content, as JSON values. A folder with a
    capture or dump of another plan is refused. `overwrite` removes the files of a dump from the
    folder, and no other files. All processes of a capture may set it: it has no effect while
    another process of the capture is running. With `parts` above 1 every rank adds its own heads
    of every batch, and a batch is finished when all ranks have saved it. A process that is `alone`
    runs all batches, so it refuses a folder in which others run, and they refuse its folder.
    """
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{folder}: is a file, not a folder. Choose another output.data_root."
            )
        locks = None
        if overwrite or not _is_complete(folder, plain) or (folder / UNFINISHED).exists():
            with locked_work_folder(folder):
                locks = _join(folder, plain, rank, overwrite, alone)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return CaptureFolder(folder, plain, rank, locks, parts)


def _join(
    folder: Path, plan: dict[str, Any], rank: int, overwrite: bool, alone: bool
) -> list[FileLock] | None:
    """Prepare `.capture/` for this rank and lock the rank; None if the dump is complete."""
    place = folder / UNFINISHED
    locks = lock_rank(folder, rank, alone)
    try:
        if overwrite and not other_ranks_running(place, rank):
            _discard(folder)
        elif overwrite and plan_difference(read_plan(place / PLAN), plan):
            raise busy(folder)
        if _is_complete(folder, plan):
            (place / PLAN).unlink(missing_ok=True)
            release(locks)
            return None
        if not (place / PLAN).exists():
            shutil.rmtree(place / SEGMENTS, ignore_errors=True)
            (place / SEGMENTS).mkdir()
            write_text(place / PLAN, json_text(plan))
            sync_folder(place)
            sync_folder(folder)
        _remove_stale_drafts(place, rank)
    except BaseException:  # raised again
        release(locks)
        raise
    return locks


def _remove_stale_drafts(place: Path, rank: int) -> None:
    """Remove unfinished segments of processes that no longer run."""
    for draft in (place / SEGMENTS).glob(DRAFT_PATTERN):
        match = re.search(r"-r(\d+)-", draft.name)
        writer = int(match[1]) if match else rank
        if writer == rank or not is_locked(lock_of(place, writer)):
            shutil.rmtree(draft, ignore_errors=True)


def _is_complete(folder: Path, plan: dict[str, Any]) -> bool:
    """Whether the folder holds the finished dump of this plan.

    False if the capture may start or continue there. A `ConfigError` is raised if the folder holds
    something else. A finished dump of other library versions counts as the same.
    """
    if not folder.is_dir():
        return False
    manifest = read_manifest(folder / MANIFEST_NAME)
    finished = manifest.capture if manifest else None
    started = read_plan(folder / UNFINISHED / PLAN)
    if started is not None and plan_difference(finished, started):
        refuse_difference(folder, plan_difference(started, plan))
        return False
    if finished is not None:
        refuse_difference(folder, plan_difference(finished, plan, ignored="versions"))
        return True
    found = [name for name in FILES_BESIDE_HEADS if (folder / name).exists()]
    found += [head.name for head in _head_folders(folder) if parquet_files(head)]
    if found:
        raise ConfigError(
            f"{folder}: holds another dump ({found[0]}); {REMEDY.format('discard it')}"
        )
    return False


def _head_folders(folder: Path) -> list[Path]:
    """The folders of heads, and of their keys drawn by attention."""
    attended = folder / ATTENDED
    entries = sorted(folder.iterdir())
    entries += sorted(attended.iterdir()) if attended.is_dir() else []
    return [entry for entry in entries if entry.is_dir() and parse_head(entry.name) is not None]


def _discard(folder: Path) -> None:
    """Remove the files of a finished or unfinished dump, and no other files."""
    shutil.rmtree(folder / UNFINISHED / SEGMENTS, ignore_errors=True)
    for name in (f"{UNFINISHED}/{PLAN}", *FILES_BESIDE_HEADS):
        (folder / name).unlink(missing_ok=True)
    if is_card(folder / CARD_FILE):
        (folder / CARD_FILE).unlink()
    for head in _head_folders(folder):
        if head.is_symlink():
            head.unlink()
            continue
        for file in (*parquet_files(head), *head.glob(DRAFT_PATTERN)):
            file.unlink()
        with suppress(OSError):  # the folder has other files
            head.rmdir()
    with suppress(OSError):  # there is none, or it has other files
        (folder / ATTENDED).rmdir()
