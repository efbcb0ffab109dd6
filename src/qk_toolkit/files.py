"""Reading files safely, and writing files and folders in one step.

Reading accepts only regular files of bounded size. Writing goes to a temporary file that is
renamed: another process sees the old file or the complete new file. Also locks.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from qk_toolkit.errors import ConfigError, OutputError, in_short
from qk_toolkit.urls import is_url, without_file_scheme

if TYPE_CHECKING:
    from filelock import FileLock


def user_path(text: str | os.PathLike[str]) -> Path:
    """The path that a user gave, with `~` expanded."""
    text = without_file_scheme(os.fspath(text))
    if is_url(text):
        raise ConfigError(f"{text}: is a URL; a path on this machine is needed here")
    try:
        if b"\0" in os.fsencode(text):
            raise ValueError("it contains the character NUL")
        path = Path(text).expanduser()
        path.lstat()
    except ValueError as error:
        raise ConfigError(f"{text}: no file can have this name ({error})") from error
    except RuntimeError as error:
        raise ConfigError(f"{text}: {error}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{text}: no file can have this name (it is too long)") from error
    return path


MOST_JSON_BYTES = 256 << 20


def resolved(path: Path) -> Path:
    """The path with its links followed; circular links stay as they are."""
    return Path(os.path.realpath(path))


def same_place(one: str, other: str) -> bool:
    """Whether two texts are one path: `texts/` and `../here/texts`, or equal names and URLs."""
    if one == other:
        return True
    if is_url(one) or is_url(other):
        return False
    return resolved(user_path(one)) == resolved(user_path(other))


class UnusableFileError(OSError):
    """The path is not a regular file, or the file is too large."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def require_regular(path: Path) -> None:
    """Raise an error unless the path is a regular file or a link to one. The file is not opened.

    Opening a named pipe would wait for a writer, and reading a device may never end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise UnusableFileError(errno.EINVAL, "is not a regular file", str(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading."""
    require_regular(path)
    return path.open("rb")


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most `most_bytes`."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UnusableFileError(errno.EFBIG, f"is larger than {most_bytes:,} bytes", str(path))
    return content


def read_json(path: Path, *, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """The value in a JSON file.

    Raises an `OSError` when the file cannot be read, and a `ValueError` when the content is not one
    JSON value in UTF-8, or has a duplicate key.
    """
    return parsed_json(read_bounded(path, most_bytes))


def parsed_json(content: bytes) -> Any:
    """The value of a JSON text; raises a `ValueError` as `read_json` does."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{in_short(key)} is given twice")
        found[key] = value
    return found


DRAFT_PATTERN = ".*.part-*"
"""Names of temporary files, which a killed process leaves behind."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links say."""


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` when the block succeeds.

    The block must sync the file to disk (`write_through`, `sync`). After a failure the temporary
    file is removed and `target` is unchanged. An `OSError` becomes an `OutputError` that names the
    target.
    """
    draft = _draft_of(target)
    try:
        _make_folder(target.parent)
        if target.exists() and not target.is_dir():  # renaming to a folder fails by itself
            require_regular(target)
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

    The block must sync its files to disk. After a failure the temporary folder is removed. An
    `OSError` is not converted.
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


def write_first(target: Path, text: str) -> None:
    """Write `text` to `target` in one step if there is no such file.

    Of several processes that do this at the same time, one writes the file.
    """
    draft = _draft_of(target)
    try:
        write_through(draft, text)
        os.link(draft, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not target.exists():
            draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step: another process finds all of it or nothing."""
    with suppress(FileNotFoundError):
        folder.rename(_draft_of(folder))
    for draft in folder.parent.glob(f".{folder.name}.part-*"):
        shutil.rmtree(draft, ignore_errors=True)


def remove_drafts(target: Path) -> None:
    """Remove temporary files and folders that killed processes left beside `target`."""
    for draft in target.parent.glob(f".{target.name}.part-*"):
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft)
        else:
            draft.unlink()


def require_writable(target: Path, remedy: str, setting: str = "") -> None:
    """Raise a `ConfigError` before any work if `target` cannot be written as a file."""
    try:
        if target.is_dir():
            raise ConfigError(f"{setting}{target}: is a folder, not a file. {remedy}")
        try_writing(target)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{setting}{target}: cannot be written: {reason}. {remedy}") from error


def try_writing(target: Path) -> None:
    """Raise the `OSError` that writing `target` would raise. Creates the parent folders."""
    draft = _draft_of(target)
    _make_folder(target.parent)
    draft.touch()
    draft.unlink()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        reason = os.strerror(errno.ENOTDIR)
        raise NotADirectoryError(errno.ENOTDIR, reason, error.filename) from error


def lack_of_room(place: Path, needed: float) -> list[str]:
    """A warning if so many bytes do not fit on the disk of a path, which may not exist yet."""
    there = next(path for path in (place.absolute(), *place.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if needed <= free:
        return []
    sizes = f"{needed / 1e9:,.3g} GB are needed, and {there} has {free / 1e9:,.3g} GB free"
    return [f"warning: {sizes}"]


def _draft_of(target: Path) -> Path:
    """A unique name. Process ids alone repeat in containers that share a folder."""
    return target.with_name(f".{target.name}.part-{os.getpid()}-{os.urandom(4).hex()}")


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target` in one step."""
    with staged(target) as draft:
        write_through(draft, text)


def write_through(path: Path, text: str) -> None:
    """Write UTF-8 and sync it to disk, so that a full disk raises an error here.

    Characters that UTF-8 cannot encode become escapes that are valid in JSON.
    """
    with path.open("wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))
        sync(file)


def sync(file: IO[bytes]) -> None:
    """Wait until the written bytes are on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until new and renamed entries of the folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not possible on some file systems
            raise
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> FileLock | None:
    """Acquire the lock at `path`; None when another process holds it.

    The lock is held until it is released or the process ends. Raises a `ConfigError` if the path
    cannot be a lock, for example because it is a folder.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as error:
        raise cannot_lock(path, error, "Remove it, or choose another folder.") from error
    return lock


def cannot_lock(path: Path, error: OSError, remedy: str) -> ConfigError:
    """The error that names the lock, the reason and what to do."""
    return ConfigError(f"{path}: cannot be locked: {error.strerror or error}. {remedy}")


def is_locked(path: Path) -> bool:
    """Whether a running process holds the lock at `path`."""
    lock = try_lock(path)
    if lock is None:
        return True
    lock.release()
    return False


def cannot_write(target: Path, error: OSError) -> OutputError:
    """The error that names the file, the reason and what to do."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    action = "free some space" if full else "choose another place"
    return OutputError(
        f"{target}: cannot be written: {reason}. What was written before is intact; {action}, "
        "then run the same command again."
    )
