"""The folder `.capture/` of an unfinished capture, which all its processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qk_dump.layout import UNFINISHED
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import exclusive_folder, remove_exclusive_folder

PLAN = "plan.json"
SEGMENTS = "segments"
CLAIMS = "claims"


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
