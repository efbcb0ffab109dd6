"""The folder of a capture: who may write there, its plan, and what its processes share.

`.capture/` has the plan, a lock for every process that works there and for every chunk of batches,
and the rows of finished chunks. If a process is killed or the disk is full, the same command
continues from them.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from qk_dump.card import CARD_FILE, is_card
from qk_dump.dump_files import FILES_BESIDE_HEADS
from qk_dump.folder_kinds import PLAN, UNFINISHED
from qk_dump.heads import ATTENDED, parse_head
from qk_dump.layout import parquet_files
from qk_dump.manifest import MANIFEST_NAME, json_text, plan_difference, read_manifest, read_plan
from qk_sniffer.capture.refusals import REMEDY, refuse_difference
from qk_sniffer.capture.segments import saved_chunks
from qk_sniffer.capture.work_folder import (
    CHUNKS,
    ENDED,
    PROCESSES,
    SEGMENTS,
    locked_work_folder,
)
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import (
    DRAFT_PATTERN,
    cannot_write,
    is_locked,
    read_json,
    sync_folder,
    try_lock,
    write_text,
)

_FINISH_LOCK = "finish.lock"
_SIZE = "size.json"  # batches of a chunk; it stays the same when texts are added
RUNNING = "running"  # ending of the files that name the texts of a batch in the model


class CaptureFolder:
    """The folder of a capture; without a lock of this process it is complete."""

    def __init__(
        self, folder: Path, plan: dict[str, Any], lock: FileLock | None = None, chunk_size: int = 1
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.complete = lock is None
        self.chunk_size = chunk_size  # batches of a chunk
        self._lock = lock

    @property
    def _place(self) -> Path:
        return self.folder / UNFINISHED

    @property
    def _chunks(self) -> Path:
        return self._place / CHUNKS

    @property
    def is_open(self) -> bool:
        """Whether no process has completed the dump."""
        return (self._place / PLAN).exists()

    def has_others(self) -> bool:
        """Whether other processes work in the folder, or have left it without their lock."""
        return bool(self._others())

    def _others(self) -> list[Path]:
        own = None if self._lock is None else Path(self._lock.lock_file)
        return [path for path in (self._place / PROCESSES).glob("*.lock") if path != own]

    def num_others(self) -> int:
        """The number of other processes that work in the folder."""
        return sum(map(is_locked, self._others()))

    def lock_chunk(self, number: int) -> FileLock | None:
        """The lock of a chunk; None if another process has it, or has completed the dump.

        If a process ended while the chunk was in the model, this is counted for its texts.
        """
        with locked_work_folder(self.folder) as place:
            if not (place / PLAN).exists():
                return None
            lock = try_lock(self._chunks / f"{number:05d}.lock")
            if lock is not None:
                self._count_ended(number)
            return lock

    def count_ended(self) -> None:
        """Count all processes that ended while a chunk was in the model."""
        for number in {file.name.partition("-")[0] for file in self._chunks.glob(f"*.{RUNNING}")}:
            lock = self.lock_chunk(int(number))
            if lock is not None:
                lock.release()

    def num_free_chunks(self, numbers: Collection[int]) -> int:
        """How many of these chunks no process has locked."""
        with locked_work_folder(self.folder) as place:
            if not (place / PLAN).exists():
                return 0
            return sum(not is_locked(self._chunks / f"{number:05d}.lock") for number in numbers)

    def running_file(self, chunk: int, first_text: int) -> Path:
        """The file that names the texts of a batch while they are in the model."""
        return self._chunks / f"{chunk:05d}-{first_text}.{RUNNING}"

    def ended(self) -> dict[int, int]:
        """How many processes ended while a text was in the model, by the text's id."""
        try:
            found = read_json(self._place / ENDED)
            return {int(text): int(number) for text, number in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._place / ENDED}: {error}. Remove the file.") from error

    def _count_ended(self, chunk: int) -> None:
        files = list(self._chunks.glob(f"{chunk:05d}-*.{RUNNING}"))
        counts = self.ended() if files else {}
        for file in files:
            with suppress(ValueError, OSError):  # the process ended while it wrote the file
                for text in read_json(file):
                    counts[text] = counts.get(text, 0) + 1
        if files:
            write_text(self._place / ENDED, json.dumps(counts))
        for file in files:
            file.unlink()

    def lock_to_finish(self) -> FileLock | None:
        """The lock of the process that writes the dump.

        None if another process writes it, or has written it.
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

    def close(self) -> None:
        """Leave the folder. If no process has finished a chunk, `.capture/` is removed."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        lock.release()
        if self.complete:
            return
        with locked_work_folder(self.folder) as place:
            Path(lock.lock_file).unlink(missing_ok=True)
            notes = [place / ENDED, *self._chunks.glob(f"*.{RUNNING}")]
            kept = saved_chunks(self.folder) or any(path.exists() for path in notes)
            if not kept and not any(map(is_locked, self._others())):
                (place / PLAN).unlink(missing_ok=True)


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
    folder: Path, plan: Mapping[str, Any], chunk_size: int, *, overwrite: bool = False
) -> CaptureFolder:
    """Start or continue the capture with this plan in `folder`.

    `plan` holds all settings that determine the dump's content, as JSON values. A folder with a
    capture or dump of another plan is refused. `overwrite` removes the files of a dump from the
    folder, and no other files. It has no effect while another process runs the same capture, and is
    refused while another process runs another one.
    """
    plain: dict[str, Any] = json.loads(json.dumps(plan))
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{folder}: is a file, not a folder. Choose another output.data_root."
            )
        if overwrite or not _is_complete(folder, plain) or (folder / UNFINISHED).exists():
            with locked_work_folder(folder):
                joined = _join(folder, plain, chunk_size, overwrite)
                if joined is not None:
                    return CaptureFolder(folder, plain, *joined)
        return CaptureFolder(folder, plain)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _join(
    folder: Path, plan: dict[str, Any], chunk_size: int, overwrite: bool
) -> tuple[FileLock | None, int] | None:
    """Prepare `.capture/`. Returns the lock of this process and the number of batches of a chunk.

    None if the dump is complete.
    """
    place = folder / UNFINISHED
    processes = list((place / PROCESSES).glob("*.lock"))
    running = [path for path in processes if is_locked(path)]
    for path in {*processes} - {*running}:
        path.unlink()
    if overwrite and not running:
        _discard(folder)
    elif overwrite and plan_difference(read_plan(place / PLAN), plan):
        raise ConfigError(
            f"{folder}: another capture is writing here. Wait until it ends, or choose another "
            "output.data_root."
        )
    if _is_complete(folder, plan):
        (place / PLAN).unlink(missing_ok=True)
        return None
    for name in (SEGMENTS, CHUNKS, PROCESSES):
        if not (place / PLAN).exists():
            shutil.rmtree(place / name, ignore_errors=True)
        (place / name).mkdir(exist_ok=True)
    if not (place / CHUNKS / _SIZE).exists():
        write_text(place / CHUNKS / _SIZE, str(chunk_size))
    if not (place / PLAN).exists():
        write_text(place / PLAN, json_text(plan))
    sync_folder(place)
    sync_folder(folder)
    size = _chunk_size(place / CHUNKS / _SIZE)
    return try_lock(place / PROCESSES / f"{secrets.token_hex(8)}.lock"), size


def _chunk_size(file: Path) -> int:
    """The number of batches of a chunk, as the capture began with it."""
    try:
        size = read_json(file)
    except ValueError:
        size = None
    if type(size) is not int or size < 1:
        raise ConfigError(
            f"{file}: expected an integer of at least 1: the file is damaged, so the capture "
            "cannot continue. Choose another output.data_root, or add --overwrite to discard what "
            "was captured"
        )
    return size


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
    """Remove the files of a finished or unfinished dump, and no other files.

    dump.json and the plan go last: with them, a dump that was removed in part is recognized.
    """
    for name in (SEGMENTS, CHUNKS):
        shutil.rmtree(folder / UNFINISHED / name, ignore_errors=True)
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
    work = (f"{UNFINISHED}/{ENDED}", f"{UNFINISHED}/{PLAN}")
    for name in (*sorted(FILES_BESIDE_HEADS, key=MANIFEST_NAME.__eq__), *work):
        (folder / name).unlink(missing_ok=True)
