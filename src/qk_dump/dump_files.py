"""Which files belong to a dump: those beside the heads, and the Parquet files of the heads."""

from __future__ import annotations

from pathlib import Path

from qk_dump.examples import EXAMPLES_FILE
from qk_dump.folder_kinds import UNFINISHED
from qk_dump.heads import parse_folder, parse_head
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.tokens import TOKENS_FILE
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved

FILES_BESIDE_HEADS = (MANIFEST_NAME, EXAMPLES_FILE, TOKENS_FILE)
_CARD = "README.md"


def is_dump_file(path: str) -> bool:
    """Whether the file with this path in a folder, with slashes, belongs to a dump."""
    folder, _, name = path.rpartition("/")
    if not folder:
        return name in FILES_BESIDE_HEADS
    return parse_folder(folder) is not None and name.endswith(".parquet")


def refuse_inside_dump(path: Path) -> None:
    """Raise if a file would be in the folder of a head, or would replace a file of a dump."""
    target = resolved(path)
    in_head = any(parse_head(part) for part in target.parts)
    own = target.name in (*FILES_BESIDE_HEADS, _CARD) and _is_dump(target.parent)
    if in_head or own or UNFINISHED in target.parts:
        raise ConfigError(f"{path}: is inside a dump; choose another path for results")


def _is_dump(folder: Path) -> bool:
    try:
        return any(
            parse_head(entry.name) or entry.name == MANIFEST_NAME for entry in folder.iterdir()
        )
    except OSError:
        return False
