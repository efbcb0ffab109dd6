"""The folder `.capture/` of an unfinished capture, which all its processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qk_dump.layout import UNFINISHED
from qk_toolkit.files import exclusive_folder, remove_exclusive_folder

PLAN = "plan.json"
SEGMENTS = "segments"
CLAIMS = "claims"


@contextmanager
def locked_work_folder(folder: Path) -> Iterator[Path]:
    """Lock `.capture/` for the block; remove it afterwards if there is no unfinished capture."""
    place = folder / UNFINISHED
    with exclusive_folder(place):
        try:
            yield place
        finally:
            if not (place / PLAN).exists():
                remove_exclusive_folder(place)
