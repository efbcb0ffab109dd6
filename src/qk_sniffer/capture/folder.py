"""The folder of a capture: who may write there, its plan, and what its processes share.

`.capture/` says how far the capture is:

    plan.json               it has begun, with these settings
    outline.json            what its end needs to know
    chunks/00003.lock       locked: a process runs this chunk of batches
    segments/00003/         this chunk is done; its rows
    finish.lock             locked: a process writes the files of the heads

The operating system releases the locks of a process that ends. After `dump.json`, which is the last
file of the dump, `.capture/` is removed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from qk_dump.card import is_card
from qk_dump.heads import ATTENDED, CARD_FILE, parse_head
from qk_dump.layout import FILES_BESIDE_HEADS, PLAN, UNFINISHED, parquet_files
from qk_dump.manifest import MANIFEST_NAME, json_text, plan_difference, read_manifest, read_plan
from qk_sniffer.capture.outline import Outline
from qk_sniffer.capture.refusals import REMEDY, refuse_difference
from qk_sniffer.capture.segments import SEGMENTS, saved_chunks
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import (
    DRAFT_PATTERN,
    cannot_write,
    is_locked,
    remove_folder,
    sync_folder,
    try_lock,
    write_first,
)

_CHUNKS = "chunks"  # a lock for every chunk, held by the process that runs it
_FINISH_LOCK = "finish.lock"


class CaptureFolder:
    """The folder of a capture, which other processes may share."""

    def __init__(self, folder: Path, plan: dict[str, Any], outline: Outline | None) -> None:
        """`outline` is None if the dump is complete."""
        self.folder = folder
        self.plan = plan
        self.outline = outline

    @property
    def complete(self) -> bool:
        """Whether the dump was complete when the folder was opened, or this process has ended."""
        return self.outline is None

    @property
    def chunk_size(self) -> int:
        """The number of batches of a chunk."""
        return 1 if self.outline is None else self.outline.chunk_size

    @property
    def is_open(self) -> bool:
        """Whether no process has completed the dump.

        A `ConfigError` is raised if another capture has begun in the folder.
        """
        return not _is_complete(self.folder, self.plan)

    def lock_chunk(self, number: int) -> FileLock | None:
        """The lock of a chunk; None if another process has it, or has completed the dump."""
        return self._lock(_lock_of(self.folder, number))

    def has_free_chunk(self, numbers: Collection[int]) -> bool:
        """Whether no process has locked one of these chunks."""
        locks = [_lock_of(self.folder, number) for number in numbers]
        return any(not (lock.exists() and is_locked(lock)) for lock in locks)

    def lock_to_finish(self) -> FileLock | None:
        """The lock of the process that writes the dump.

        None if another process writes it, or has written it.
        """
        return self._lock(self.folder / UNFINISHED / _FINISH_LOCK)

    def _lock(self, path: Path) -> FileLock | None:
        if not path.parent.is_dir() and not self.is_open:
            return None
        try:
            lock = try_lock(path)
        except ConfigError:
            if self.is_open:
                raise
            return None
        if lock is not None and not self.is_open:
            lock.release()
            return None
        return lock

    def end(self) -> None:
        """Remove `.capture/`, after the dump was written."""
        remove_folder(self.folder / UNFINISHED)
        self.outline = None


def _lock_of(folder: Path, chunk: int) -> Path:
    return folder / UNFINISHED / _CHUNKS / f"{chunk:05d}.lock"


def plan_in(folder: Path) -> dict[str, Any] | None:
    """The plan of the capture that has begun in the folder, or that made its dump; else None."""
    if not folder.is_dir():
        return None
    plan = read_plan(folder / UNFINISHED / PLAN)
    if plan is not None:
        return plan
    manifest = read_manifest(folder / MANIFEST_NAME)
    return manifest.capture if manifest else None


def _is_running(folder: Path) -> bool:
    """Whether a process runs a chunk, or writes the dump."""
    place = folder / UNFINISHED
    return any(map(is_locked, [*(place / _CHUNKS).glob("*.lock"), *place.glob(_FINISH_LOCK)]))


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make the folder before the model is loaded, so that a wrong path fails early.

    After an error, new folders are removed if nothing is in them.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output.data_root: {folder}: cannot be used as a folder: {error.strerror or error}"
        ) from error
    try:
        yield
    except BaseException:  # raised again
        with suppress(OSError):
            for path in new:
                path.rmdir()
        raise


def open_capture(
    folder: Path, plan: Mapping[str, Any], outline: Outline, *, overwrite: bool = False
) -> CaptureFolder:
    """Start or continue the capture with this plan in `folder`.

    `plan` holds all settings that determine the dump's content, as JSON values. A folder with a
    capture or dump of another plan is refused. `overwrite` removes the files of a dump from the
    folder, and no other files. It is refused while another process runs a capture there.
    """
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    place = folder / UNFINISHED
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{folder}: is a file, not a folder. Choose another output.data_root."
            )
        if place.is_symlink():  # its removal would delete files of another place
            raise ConfigError(
                f"{place}: is a symbolic link, not a folder. Remove it, or choose another "
                "output.data_root."
            )
        if overwrite:
            _discard(folder)
        if not _is_complete(folder, plain):
            begun = _begin(folder, plain, outline)
            if not _is_complete(folder, plain):  # another process may have ended meanwhile
                return CaptureFolder(folder, plain, begun)
        remove_folder(place)  # a process was killed after it had written the dump
        return CaptureFolder(folder, plain, None)
    except OSError as error:
        raise cannot_write(folder, error) from error


def unfinished_capture(folder: Path) -> CaptureFolder:
    """The capture that has begun in the folder, to be ended with what is on disk."""
    plan = read_plan(folder / UNFINISHED / PLAN)
    if plan is None:
        manifest = read_manifest(folder / MANIFEST_NAME)
        if manifest is None or manifest.capture is None:
            raise ConfigError(f"finish: {folder}: holds no capture; leave finish out to begin one")
        return CaptureFolder(folder, manifest.capture, None)
    return CaptureFolder(folder, plan, Outline.read(folder / UNFINISHED))


def _begin(folder: Path, plan: dict[str, Any], outline: Outline) -> Outline:
    """Make `.capture/`, unless another process has made it. The outline with its size of chunks."""
    place = folder / UNFINISHED
    known = (place / PLAN).exists() or (folder / MANIFEST_NAME).exists()
    if saved_chunks(folder) and not known:
        raise ConfigError(
            f"{place}: has rows of texts, but no {PLAN}. Remove this folder, or choose another "
            "output.data_root."
        )
    for name in (SEGMENTS, _CHUNKS):
        (place / name).mkdir(parents=True, exist_ok=True)
    write_first(place / PLAN, json_text(plan))
    refuse_difference(folder, plan_difference(read_plan(place / PLAN), plan))
    begun = outline.begin(place)
    sync_folder(place)
    sync_folder(folder)
    return begun


def _is_complete(folder: Path, plan: dict[str, Any]) -> bool:
    """Whether the folder holds the finished dump of this plan.

    False if the capture may start or continue there. A `ConfigError` is raised if the folder holds
    something else. A finished dump of other library versions counts as the same.
    """
    if not folder.is_dir():
        return False
    begun = read_plan(folder / UNFINISHED / PLAN)  # first: it is removed after dump.json is written
    manifest = read_manifest(folder / MANIFEST_NAME)
    finished = manifest.capture if manifest else None
    if begun is not None and plan_difference(finished, begun):
        refuse_difference(folder, plan_difference(begun, plan))
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
    """Remove the files of a finished or unfinished dump, and no other files.

    dump.json and the plan go last: with them, a dump that was removed in part is recognized.
    """
    if _is_running(folder):
        raise ConfigError(
            f"{folder}: a capture is writing here. Wait until it ends, or choose another "
            "output.data_root."
        )
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
    for name in sorted(FILES_BESIDE_HEADS, key=MANIFEST_NAME.__eq__):
        (folder / name).unlink(missing_ok=True)
    remove_folder(folder / UNFINISHED)
