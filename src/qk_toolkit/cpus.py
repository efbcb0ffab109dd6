"""The number of CPUs that this process may use: its CPU affinity, limited by the container's quota.

Linux stores the quota in cgroups, version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`). Parent groups
limit a group as well. Inside a container the path of the process's group may not be mounted. The
mounted root is then the container's group.
"""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def available_cpus(root: Path = _ROOT, own: Path = _OWN) -> int:
    """The number of CPUs that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return min(count, quota_cpus(root, own) or count)


def quota_cpus(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """The quota in whole CPUs, at least 1; None without a quota."""
    shares = [_share(folder) for folder in _groups(root, own)]
    known = [share for share in shares if share is not None]
    return max(1, int(min(known))) if known else None


def _groups(root: Path, own: Path) -> list[Path]:
    """Folders of the process's cgroups and of their parents, up to the mounted root."""
    found = []
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if controllers == "":
            mounts = [root]
        elif "cpu" in controllers.split(","):
            mounts = [root / "cpu", root / controllers]
        else:
            continue
        inside = Path(*(part for part in Path(path).parts[1:] if part != ".."))
        for mount in mounts:
            found += [mount / inside, *(mount / parent for parent in inside.parents)]
    return found


def _share(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not period:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # `max` means no limit
        return None
    return share if share > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except (OSError, ValueError):
        return ""
