"""Tables of numbers that are written as CSV and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from compression_statistics import Correlation, Interval
from findings_tables import NONE, markdown

_SPACE = "\u00a0"  # lines do not break there
Cell = str | int | float | Interval | Correlation | None


@dataclass(frozen=True)
class Column:
    """A column: its title, its cells, and how a cell is written in Markdown."""

    title: str
    cells: Sequence[Cell]
    write: Callable[..., str] = str


def as_markdown(columns: Sequence[Column]) -> str:
    """The table for a page."""
    written = [
        [NONE if cell is None else column.write(cell) for cell in column.cells]
        for column in columns
    ]
    table = markdown([column.title for column in columns], list(zip(*written, strict=True)))
    return table.replace(" ± ", f"{_SPACE}±{_SPACE}").replace(" %", f"{_SPACE}%")


def as_csv(columns: Sequence[Column]) -> str:
    """The table with all digits that mean something; an interval takes three columns."""
    found: dict[str, list[str | int | float | None]] = {}
    for column in columns:
        for cell in column.cells:
            for name, value in _parts(column.title, cell, column.cells):
                found.setdefault(name, []).append(value)
    return pd.DataFrame(found).to_csv(index=False, float_format="%.6g")


def _parts(
    title: str, cell: Cell, cells: Sequence[Cell]
) -> list[tuple[str, str | int | float | None]]:
    """(name, value) of the CSV columns of a cell."""
    kind = next((one for one in cells if isinstance(one, tuple)), None)
    if not isinstance(kind, tuple):
        assert not isinstance(cell, tuple)
        return [(title, cell)]
    interval = cell.interval if isinstance(cell, Correlation) else cell
    values = interval if isinstance(interval, tuple) else (None, None, None)
    return list(zip((title, f"{title}: low", f"{title}: high"), values, strict=True))


def plain_number(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"


def signed_number(value: float) -> str:
    """Three decimals with a sign."""
    return f"{value:+.3f}"


def with_half(interval: Interval) -> str:
    """The value and half of the width of its interval."""
    return f"{interval.value:.3f} ± {(interval.high - interval.low) / 2:.3f}"


def signed_with_half(interval: Interval) -> str:
    """A difference and half of the width of its interval."""
    return f"{interval.value:+.3f} ± {(interval.high - interval.low) / 2:.3f}"


def with_bounds(found: Correlation) -> str:
    """A correlation and its interval."""
    value, low, high = found.interval
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def p_value(p: float) -> str:
    """Two decimals, three if it is small."""
    if p < 0.001:
        return "< .001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
