"""Reading files that others wrote, and writing files in one step.

Reading: regular files only, of bounded size. Writing: a reader sees the old file or the new one,
never a part of either. Also folders that appear in one step, and a folder that processes take turns
in.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from qk_toolkit.errors import ConfigError, OutputError, in_short

if TYPE_CHECKING:
    from filelock import FileLock


def user_path(text: str | os.PathLike[str]) -> Path:
    """A path as a person gives it, with `~` resolved."""
    try:
        if b"\0" in os.fsencode(text):
            raise ValueError("it holds the character NUL")
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
_DEEPEST = 100  # levels of lists and mappings in JSON
_TOO_DEEP = f"it is nested more than {_DEEPEST} deep"
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def resolved(path: Path) -> Path:
    """The path with its links followed; links that lead in a circle are left as they are."""
    return Path(os.path.realpath(path))


class UnusableFileError(OSError):
    """A file that is not read: it is not a regular file, or it is too large."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def require_regular(path: Path) -> None:
    """Refuse what is not a regular file, or a link to one, without opening it.

    Opening a named pipe waits for a writer, and reading a device may never end.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        raise UnusableFileError(errno.EINVAL, f"is {kind}, not a regular file", str(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; anything else is refused, see `require_regular`."""
    require_regular(path)
    return path.open("rb")


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; one that is larger than `most_bytes` is refused."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UnusableFileError(errno.EFBIG, f"is larger than {most_bytes:,} bytes", str(path))
    return content


def read_json(path: Path, *, most_bytes: int = MOST_JSON_BYTES, int64: bool = False) -> Any:
    """The value in a JSON file.

    Raises an `OSError` when the file cannot be read, and a `ValueError` that says why when its
    content is not one JSON value in UTF-8, gives a key twice, or is nested more than 100 deep.
    `int64` also refuses integers that 64 bits do not hold.
    """
    text = read_bounded(path, most_bytes).decode("utf-8")
    try:
        value = json.loads(
            text, object_pairs_hook=_without_repeats, parse_int=_int64 if int64 else None
        )
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if text.count("[") + text.count("{") > _DEEPEST:
        _require_flat(value)
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{in_short(twice)} is given twice")
    return found


def _require_flat(value: Any) -> None:
    """Refuse deep nesting, level by level: whoever walks the value later may recurse."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [item for members in inner for item in members if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise ValueError(f"an integer of {len(digits.lstrip('-')):,} digits is too large")
    return int(digits)


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
        if target.exists() and not target.is_dir():  # nothing can be renamed onto a folder
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
    """Write UTF-8 as it stands, all the way to the disk: a full one is noticed here.

    What UTF-8 cannot hold, as in odd file names, becomes an escape that JSON understands.
    """
    with path.open("wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))
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


def link_to(source: Path, target: Path) -> None:
    """Make `target` a link to `source`, in one step; a copy where links cannot be made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    try:
        try:
            draft.symlink_to(os.path.relpath(source, target.parent))
        except OSError:
            shutil.copyfile(source, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def cannot_write(target: Path, error: OSError) -> OutputError:
    """Say which file could not be written, why, and that nothing earlier was harmed."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free some space" if full else "choose another place"
    return OutputError(
        f"{target}: cannot be written: {reason}. What was written before is intact; {way_out}, "
        "then run the same command again."
    )
