"""Which files belong to a dump: those beside the heads, and the Parquet files of the heads."""

from __future__ import annotations

from qk_dump.examples import EXAMPLES_FILE
from qk_dump.layout import parse_folder
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.tokens import TOKENS_FILE

FILES_BESIDE_HEADS = (MANIFEST_NAME, EXAMPLES_FILE, TOKENS_FILE)


def is_dump_file(path: str) -> bool:
    """Whether the file with this path in a folder, with slashes, belongs to a dump."""
    folder, _, name = path.rpartition("/")
    if not folder:
        return name in FILES_BESIDE_HEADS
    return parse_folder(folder) is not None and name.endswith(".parquet")
