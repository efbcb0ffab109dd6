"""The folder `.capture/` of an unfinished capture, which all its processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qk_dump.folder_kinds import PLAN, UNFINISHED
from qk_dump.manifest import MANIFEST_NAME, read_manifest, read_plan
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import exclusive_folder, remove_exclusive_folder

SEGMENTS = "segments"  # the rows of finished chunks
CHUNKS = "chunks"  # a lock for every chunk, held by the process that runs it
PROCESSES = "processes"  # a lock for every process, held while it works here
ENDED = "ended.json"  # texts during which processes ended


@contextmanager
def locked_work_folder(folder: Path) -> Iterator[Path]:
    """Lock `.capture/` for the block; remove it afterwards if there is no unfinished capture.

    A link is refused, because its removal would delete files of another place.
    """
    place = folder / UNFINISHED
    if place.is_symlink():
        raise ConfigError(
            f"{place}: is a symbolic link, not a folder. Remove it, or choose another "
            "output.data_root."
        )
    with exclusive_folder(place):
        try:
            yield place
        finally:
            if not (place / PLAN).exists():
                remove_exclusive_folder(place)


def plan_in(folder: Path) -> dict[str, Any] | None:
    """The plan of the capture that has begun in the folder, or that made its dump; else None."""
    if not folder.is_dir():
        return None
    plan = read_plan(folder / UNFINISHED / PLAN)
    if plan is not None:
        return plan
    manifest = read_manifest(folder / MANIFEST_NAME)
    return manifest.capture if manifest else None
