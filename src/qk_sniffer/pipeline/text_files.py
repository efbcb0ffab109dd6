"""Text files that are read one by one, for a look at the first texts of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

_KEPT = 1_000  # texts; the first ones are looked at more than once


class TextFiles:
    """A row per text file, as `datasets` gives it. A file is opened when its row is needed.

    `datasets` resolves and opens every file of a folder first, and copies all texts. This takes a
    minute for 100,000 files.
    """

    column_names = ("text",)

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._text = lru_cache(_KEPT)(_text)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[dict[str, str]]:
        for file in self._files:
            yield {"text": self._text(file)}


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
