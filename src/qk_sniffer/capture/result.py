"""What a capture has done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qk_dump.hub.publish import Pushed


@dataclass(frozen=True)
class SentDump:
    """Number of files that were sent to a URL, and their bytes."""

    files: int
    size: int


@dataclass(frozen=True)
class CaptureResult:
    """What a process of a capture has done."""

    folder: Path
    left_to_others: bool = False  # another process completes the dump
    was_complete: bool = False  # an earlier process had completed the dump
    published: Pushed | None = None
    url: str | None = None  # of the dump; `folder` is only its work folder then
    sent: SentDump | None = None  # None if the URL had the dump already

    @property
    def complete(self) -> bool:
        """Whether the dump is complete."""
        return not self.left_to_others
