"""How a table is set in LaTeX, so that it fits the columns or the page of an article.

Widths are estimates. Their unit is the width of a digit in small text.
"""

from __future__ import annotations

import math
import string
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from attention_plasticity.comparison.tables import Cell, WrittenTable

_LONG_TEXTS = 13.2  # a column of long texts
_COLUMN, _PAGE = 49.6, 101.4  # of an article with two columns
_GAP = 1.73  # between two columns
_SMALL = 0.86  # the numbers in smaller type below the others
_SPARE = 0.5
_SHORTEST_LINE = 9  # characters of a heading
_LONGEST_TEXT = 18.0  # of a column of texts without line breaks
_CHOICES = (  # whether the float spans the page, share of the names, whether headings have lines
    (False, 0.25, False),
    (True, 0.25, False),
    (True, 0.25, True),
    (True, 0.18, True),
)
_WIDTHS = {
    **dict.fromkeys(string.ascii_lowercase, 1.08),
    **dict.fromkeys(string.ascii_uppercase, 1.45),
    **dict.fromkeys("WM@%", 2.0),
    **dict.fromkeys("+-±−mw&", 1.55),
    **dict.fromkeys("cefrstz", 0.85),
    **dict.fromkeys(".,:;[]()|'!ijlI ", 0.55),
}


@dataclass(frozen=True)
class Layout:
    """The float of a table, the share of the line for names, and the columns of each tabular."""

    is_wide: bool
    name_share: float
    headings: tuple[tuple[str, ...], ...]  # lines of the heading of each column
    blocks: tuple[tuple[int, ...], ...]  # columns of numbers and texts, from 0

    @property
    def text_share(self) -> float:
        """Share of the line of a column with long texts."""
        return round(_LONG_TEXTS / self._line, 2)

    def may_break(self, name: str, indent: float = 0.0) -> bool:
        """Whether a name may need several lines of its column."""
        return width_of(name) + indent > 0.9 * self.name_share * self._line

    @property
    def _line(self) -> float:
        return _PAGE if self.is_wide else _COLUMN


def layout_of(table: WrittenTable) -> Layout:
    """The first layout into which the table fits; else the columns in several tabulars."""
    columns = [
        [line.cells[place] for line in table.lines] for place in range(len(table.headings) - 1)
    ]
    bodies = [_body_width(cells) for cells in columns]
    for is_wide, share, has_lines in _CHOICES:
        headings = [
            heading_lines(text, body) if has_lines else (text,)
            for text, body in zip(table.narrow_headings[1:], bodies, strict=True)
        ]
        widths = [
            max(body, *map(width_of, lines)) + _GAP
            for lines, body in zip(headings, bodies, strict=True)
        ]
        room = (_PAGE if is_wide else _COLUMN) * (1.0 - share) - _GAP - _SPARE
        if sum(widths) <= room:
            return Layout(is_wide, share, tuple(headings), (tuple(range(len(widths))),))
    return Layout(True, share, tuple(headings), tuple(_blocks(widths, room)))


def _blocks(widths: Sequence[float], room: float) -> list[tuple[int, ...]]:
    """Columns that fit beside each other, in order."""
    found: list[tuple[int, ...]] = [()]
    for place, width in enumerate(widths):
        if found[-1] and sum(widths[one] for one in found[-1]) + width > room:
            found.append(())
        found[-1] += (place,)
    return found


def is_long_text(cells: Sequence[Cell]) -> bool:
    """Whether a column has texts that need line breaks."""
    return any(cell.is_text and width_of(cell.value) > _LONGEST_TEXT for cell in cells)


def heading_lines(heading: str, body: float) -> tuple[str, ...]:
    """A heading in lines that are about as wide as the column below it."""
    longest = max(map(len, heading.split()), default=1)
    width = max(longest, math.ceil(body), _SHORTEST_LINE)
    return tuple(textwrap.wrap(heading, width, break_long_words=False))


def width_of(text: str) -> float:
    """The width of a text."""
    return sum(_WIDTHS.get(sign, 1.0) for sign in text)


def _body_width(cells: Sequence[Cell]) -> float:
    """The width of the cells of a column."""
    if is_long_text(cells):
        return _LONG_TEXTS
    return max(
        (max(width_of(one.value + one.marks), _SMALL * width_of(one.below)) for one in cells),
        default=0.0,
    )
