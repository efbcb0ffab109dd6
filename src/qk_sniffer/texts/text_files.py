"""Text files that are read one by one.

`datasets` resolves and opens every file of a folder first, and copies all texts. This takes a
minute for 100,000 files, and its errors do not name the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qk_toolkit.errors import SettingError


class TextFiles:
    """A row per text file, as `datasets` gives it. A file is opened when its row is needed."""

    column_names = ("text",)

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[dict[str, str]]:
        for file in self._files:
            yield {"text": _text(file)}

    def __getitem__(self, rows: Sequence[int]) -> dict[str, list[str]]:
        return {"text": [_text(self._files[row]) for row in rows]}

    def sizes(self) -> list[int]:
        """The bytes of every file."""
        return [file.stat().st_size for file in self._files]


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SettingError(
            "dataset.path", f"{file}: is not a text in UTF-8; remove it or convert it"
        )
    return text
