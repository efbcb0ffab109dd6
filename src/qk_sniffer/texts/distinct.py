"""Which rows of a dataset are texts of a capture: empty ones are none, and equal ones are one.

A copy of a text is no independent text. It would make errors too small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from qk_toolkit.formatting import count

_MOST_NAMES = 5  # of texts in a line


def digest_of(text: str) -> bytes:
    """A hash of the content of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass
class DistinctTexts:
    """Finds the texts among the rows of a dataset, and notes those that are left out."""

    cards: list[str] = field(default_factory=list)  # files that are no texts: README.md
    empty: list[int] = field(default_factory=list)  # row numbers
    copies: list[tuple[int, int]] = field(default_factory=list)  # a copy, and the first text
    total: int = 0  # texts, if all are known

    def rows_of(self, texts: Iterable[str]) -> Iterator[int]:
        """The row numbers of the texts that are not empty and not equal to an earlier one."""
        self.empty.clear()
        self.copies.clear()
        first: dict[bytes, int] = {}
        for row, text in enumerate(texts):
            if not text.strip():
                self.empty.append(row)
                continue
            earlier = first.setdefault(digest_of(text), row)
            if earlier == row:
                yield row
            else:
                self.copies.append((row, earlier))

    def notes(self, names: Iterable[str] | None = None) -> Iterator[str]:
        """What was left out, in sentences. `names` are those of the rows, if they have some."""
        known = None if names is None else list(names)

        def name(row: int) -> str:
            return f"row {row}" if known is None else known[row]

        if self.cards:
            yield f"not a text: {_listed(self.cards)}"
        if self.empty:
            number = count(len(self.empty), "empty text")
            yield f"{number} left out: {_listed([name(row) for row in self.empty])}"
        if self.copies:
            same = [f"{name(row)} (the same as {name(first)})" for row, first in self.copies]
            copies = "1 copy" if len(same) == 1 else f"{len(same):,} copies"
            yield f"equal texts are one text; {copies} left out: {_listed(same)}"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
