"""Which command wrote into a folder, seen from the names of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from qk_dump.heads import parse_head
from qk_dump.manifest import MANIFEST_NAME
from qk_toolkit.errors import ConfigError

UNFINISHED = ".capture"  # folder with the rows of an unfinished capture
PLAN = "plan.json"  # in it; the capture is unfinished as long as it is there
TAP = "tap"  # in the plan of what `Tap.save` writes

FolderKind = Literal["study", "run", "dump"]

_FILES: dict[FolderKind, tuple[str, ...]] = {
    "study": ("study.json", ".study.lock"),
    "run": ("run.json", "head_metrics.csv", ".heads"),
    "dump": (MANIFEST_NAME, UNFINISHED),
}
_WORDS: dict[FolderKind, str] = {
    "study": "a study",
    "run": "results of an analysis",
    "dump": "a dump",
}


def kinds_in(folder: Path) -> dict[FolderKind, str]:
    """The kinds of output in a folder, each with the name of one of its files."""
    found: dict[FolderKind, str] = {}
    for kind, names in _FILES.items():
        for name in names:
            if (folder / name).exists():
                found.setdefault(kind, name)
    if "dump" not in found and folder.is_dir():
        heads = sorted(path.name for path in folder.glob("l*h*") if parse_head(path.name))
        found |= {"dump": heads[0]} if heads else {}
    return found


def refuse_other_output(folder: Path, own: FolderKind, setting: str) -> None:
    """Raise a `ConfigError` if the output folder of one command has the output of another.

    `own` is what the command writes.
    """
    for kind, name in kinds_in(folder).items():
        if kind != own:
            raise ConfigError(
                f"{setting}: {folder}: holds {_WORDS[kind]} ({name}); choose another folder"
            )
