"""What workers print beside their results, kept in the run's folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MOST_BYTES = 1 << 20
_END = b"The rest is left out.\n"


class WorkerLog:
    """A file of bounded size that exists only when there is something to say.

    It is a help, not a result: when it cannot be written, the run goes on.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        self.path = path
        self.written = False
        self._room = most
        with suppress(OSError):
            path.unlink(missing_ok=True)  # of heads that are computed again

    def add(self, where: str, text: bytes) -> None:
        """Keep what a worker printed while it was at work on `where`."""
        text = text.strip()
        if not text or self._room <= 0:
            return
        entry = f"{where}:\n".encode() + text + b"\n\n"
        if len(entry) > self._room:
            entry = entry[: self._room] + b"\n" + _END
        self._room -= len(entry)
        with suppress(OSError), self.path.open("ab") as file:
            file.write(entry)
            self.written = True
