"""Writing a file so that a reader sees the old one or the new one, never a part of either.

Also folders that appear in one step, and a folder that processes take turns in.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from qk_dump.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from filelock import FileLock


def user_path(text: str | os.PathLike[str]) -> Path:
    """A path as a person gives it, with `~` resolved."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{text}: {error}") from error


DRAFT_PATTERN = ".*.part-*"
"""Names of unfinished files, for cleaning up after a process that was killed."""

_TURN = "turn.lock"


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a path beside `target` to write to; rename it onto `target` when the block succeeds.

    The block must bring what it writes to the disk (`write_through`, `sync`). Any failure removes
    the unfinished file and leaves `target` as it was. Errors of the operating system (disk full,
    no permission) become an `OutputError` that names the target.
    """
    draft = _draft_of(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        with suppress(OSError):
            draft.unlink()


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`; rename it to `target` when the block succeeds.

    The block must bring its files to the disk. Any failure removes the unfinished folder; errors
    of the operating system pass as they are, for the caller to say what could not be written.
    """
    draft = _draft_of(target)
    try:
        draft.mkdir()
        yield draft
        sync_folder(draft)
        draft.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove_drafts(target: Path) -> None:
    """Remove what processes that were killed while writing `target` left beside it."""
    for draft in target.parent.glob(f".{target.name}.part-*"):
        draft.unlink()


def probe(target: Path) -> None:
    """Make the folders of `target` and an empty draft beside it, and remove the draft.

    Raises, before any work, the `OSError` that writing `target` would meet.
    """
    draft = _draft_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft.touch()
    draft.unlink()


def _draft_of(target: Path) -> Path:
    """A name of its own: process ids repeat in containers that share a folder."""
    return target.with_name(f".{target.name}.part-{os.getpid()}-{os.urandom(4).hex()}")


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target` in one step."""
    with staged(target) as draft:
        write_through(draft, text)


def write_through(path: Path, text: str) -> None:
    """Write UTF-8 with Unix line ends, all the way to the disk: a full one is noticed here."""
    with path.open("wb") as file:
        file.write(text.encode("utf-8"))
        sync(file)


def sync(file: IO[bytes]) -> None:
    """Wait until what was written to the file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in the folder (what was made or renamed there) are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> FileLock | None:
    """The lock at `path`, held until released or the process ends; None when another holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock at `path`."""
    lock = try_lock(path)
    if lock is None:
        return True
    lock.release()
    return False


@contextmanager
def turn_in(folder: Path) -> Iterator[None]:
    """Make `folder` where it is missing and hold it for the block, after whoever holds it now.

    The block may `remove_turn` the folder. One who waited meanwhile may then hold a lock nobody
    else can see, so that the folder is looked at again before the block begins.
    """
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _TURN, thread_local=False)
    while True:
        try:
            folder.mkdir(exist_ok=True)
            seen = folder.stat()
            lock.acquire()
            if os.path.samestat(seen, folder.stat()):
                break
        except (FileNotFoundError, FileExistsError):  # removed between two of these lines
            if folder.is_file() or folder.is_symlink() or not folder.parent.is_dir():
                raise
        lock.release()
    try:
        yield
    finally:
        lock.release()


def remove_turn(folder: Path) -> None:
    """Remove a folder during one's turn in it; nobody else enters before all in it is gone."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _TURN:
            entry.unlink(missing_ok=True)
    (folder / _TURN).unlink(missing_ok=True)
    with suppress(OSError):  # somebody entered, who will find nothing left to do
        folder.rmdir()


def cannot_write(target: Path, error: OSError) -> OutputError:
    """Say which file could not be written, why, and that nothing earlier was harmed."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free some space" if full else "choose another place"
    return OutputError(
        f"{target}: cannot be written: {reason}. What was written before is intact; {way_out}, "
        "then run the same command again."
    )
