"""A log file for the output that workers print."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qk_toolkit.formatting import index_ranges

if TYPE_CHECKING:
    from attention_plasticity.run.plan import Group

MOST_BYTES = 1 << 20
_END = b"The rest is left out.\n"


def group_name(group: Group | None) -> str:
    """Which heads a worker was computing, for the log."""
    if group is None:
        return "between two groups of heads"
    heads = index_ranges(group.q_heads)
    return f"layer {group.layer}, key head {group.k_head}, query heads {heads}"


class WorkerLog:
    """A file of bounded size. It is created at the first entry.

    If it cannot be written, the run continues.
    """

    def __init__(self, path: Path, limit: int = MOST_BYTES) -> None:
        self.path = path
        self.written = False
        self._bytes_left = limit

    def begin(self) -> None:
        """Delete the log of an earlier run."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def add(self, where: str, text: bytes) -> None:
        """Append the output that a worker printed while it computed the heads `where`."""
        text = text.strip()
        if not text or self._bytes_left <= 0:
            return
        entry = f"{where}:\n".encode() + text + b"\n\n"
        if len(entry) > self._bytes_left:
            entry = entry[: self._bytes_left] + b"\n" + _END
        self._bytes_left -= len(entry)
        with suppress(OSError), self.path.open("ab") as file:
            file.write(entry)
            self.written = True
