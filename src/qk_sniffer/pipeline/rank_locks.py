"""The locks in `.capture/` of the processes that share a capture, one per rank.

A single process runs all batches without asking others. So it holds one lock more, and a folder is
never shared by a single process and others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from qk_dump.layout import UNFINISHED
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import is_locked, try_lock

_ALONE_LOCK = "alone.lock"


def lock_rank(folder: Path, rank: int, alone: bool) -> list[FileLock]:
    """Lock a rank; refuse if it is locked, or if a single process would share the folder."""
    place = folder / UNFINISHED
    own = try_lock(lock_of(place, rank))
    if own is None:
        raise busy(folder)
    single = try_lock(place / _ALONE_LOCK)
    if single is None:
        own.release()
        raise ConfigError(
            f"{folder}: a single process is writing here, and others cannot join it. Wait until "
            "it ends, or stop it and start all processes together."
        )
    if not alone:
        single.release()
        return [own]
    if other_ranks_running(place, rank):
        release([own, single])
        raise ConfigError(
            f"{folder}: several processes are writing here, and a single process cannot join them. "
            "Wait until they end, or give this one a RANK and a WORLD_SIZE."
        )
    return [own, single]


def release(locks: Sequence[FileLock]) -> None:
    """Release the locks of a rank."""
    for lock in locks:
        lock.release()


def busy(folder: Path) -> ConfigError:
    """The error of a folder in which another capture runs."""
    return ConfigError(
        f"{folder}: another capture is writing here. Wait until it ends, or choose another "
        "output.data_root."
    )


def lock_of(place: Path, rank: int) -> Path:
    """The lock file of a rank; `place` is `.capture/`."""
    return place / f"rank-{rank}.lock"


def other_ranks_running(place: Path, rank: int) -> bool:
    """Whether a process of another rank is running."""
    locks = {*place.glob("rank-*.lock")} - {lock_of(place, rank)}
    return any(is_locked(lock) for lock in locks)
