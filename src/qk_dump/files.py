"""Writing a file so that a reader sees the old one or the new one, never a part of either."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from qk_dump.errors import ConfigError, OutputError


def user_path(text: str | os.PathLike[str]) -> Path:
    """A path as a person gives it, with `~` resolved."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{text}: {error}") from error


DRAFT_PATTERN = ".*.part-*"
"""Names of unfinished files, for cleaning up after a process that was killed."""


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a path beside `target` to write to; rename it onto `target` when the block succeeds.

    The block must bring what it writes to the disk (`write_through`, `sync`). Any failure removes
    the unfinished file and leaves `target` as it was. Errors of the operating system (disk full,
    no permission) become an `OutputError` that names the target.
    """
    draft = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        with suppress(OSError):
            draft.unlink()


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


def cannot_write(target: Path, error: OSError) -> OutputError:
    """Say which file could not be written, why, and that nothing earlier was harmed."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free some space" if full else "choose another place"
    return OutputError(
        f"{target}: cannot be written: {reason}. What was written before is intact; {way_out}, "
        "then run the same command again."
    )
