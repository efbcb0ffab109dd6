"""A comparison on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from attention_plasticity.comparison.cautions import texts_about
from attention_plasticity.comparison.cells import (
    CORRELATIONS_NOTE,
    DIFFERENCE_HEADINGS,
    DifferenceCells,
    difference_cells,
    differences_note,
    error_cells,
    errors_note,
    headings,
    value_cells,
)
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.names import full_names, part_words, short_names
from attention_plasticity.comparison.runs import kinds_of
from attention_plasticity.comparison.scores import correlation_text
from attention_plasticity.tables.main_plasticity import PlasticityColumns

_LEAST_NAME = 12  # characters, on a terminal of any width
_LONGEST_LINE = 100
_Rows = Sequence[Sequence[str]]


def print_comparison(data: ComparisonData, console: Console) -> None:
    """Print the means, the differences, the correlations and all notes, in the terminal's width."""
    labels = list(dict.fromkeys(str(label) for label in data.table["run"]))
    kinds = kinds_of(data.table)
    widths = [_room([_headings(shown), *_values(data, shown)], console.width) for shown in kinds]
    short = dict(zip(labels, short_names(labels, min(widths)), strict=True))
    for shown in kinds:
        if shown is not kinds[0]:
            console.print()
        _print_kind(console, data, shown, short)
    if data.relations:
        console.print()
        _print_lines(console, *map(correlation_text, data.relations), CORRELATIONS_NOTE)
        _print_lines(console, *texts_about(data.cautions, "correlations"))
    _print_list(console, "Names", full_names(short))
    _print_list(console, "Notes", texts_about(data.cautions, "means", "differences"))


def _print_kind(
    console: Console, data: ComparisonData, shown: PlasticityColumns, short: dict[str, str]
) -> None:
    """Print the means and the differences of one kind of plasticity."""
    title = f"Plasticity {shown.words}: mean over heads, and by parts of the context (%)"
    console.print(Text(title))
    _print_table(console, _means(data, shown, short))
    _print_lines(console, errors_note(data.table, shown))
    lines = difference_cells(data.differences, shown)
    if lines:
        console.print(Text(f"\nPlasticity {shown.words}, minus {lines[0].minus}"))
        _print_table(console, _differences(lines, short))
        _print_lines(console, differences_note(lines))


def _headings(shown: PlasticityColumns) -> list[str]:
    found = [heading.removesuffix(" %") for heading in headings(shown).values()]
    return ["mean" if heading == "plasticity" else heading for heading in found]


def _values(data: ComparisonData, shown: PlasticityColumns) -> list[list[str]]:
    return value_cells(data.table, shown, with_errors=False)


def _room(rows: _Rows, width: int) -> int:
    """Characters that are left for the names of runs."""
    numbers = list(zip(*rows, strict=True))[1:]
    taken = sum(1 + max(map(len, cells)) for cells in numbers)
    return max(_LEAST_NAME, width - taken)


def _means(data: ComparisonData, shown: PlasticityColumns, short: dict[str, str]) -> Table:
    table = _table(_headings(shown))
    rows = zip(
        data.table["run"],
        data.table["layer_type"],
        _values(data, shown),
        error_cells(data.table, shown),
        strict=True,
    )
    for run, layer_type, (_, *numbers), errors in rows:
        part = part_words(str(layer_type))
        name = f"  {part}" if part else short[str(run)]
        table.add_row(*(Text(cell) for cell in (name, *numbers)))
        if any(errors):
            table.add_row(*(Text(cell, "dim") for cell in errors))
    return table


def _differences(lines: Sequence[DifferenceCells], short: dict[str, str]) -> Table:
    table = _table(DIFFERENCE_HEADINGS)
    for line in lines:
        name = f"  {line.part}" if line.part else short[line.run]
        cells = (name, line.plasticity, line.drop, line.texts)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _table(headings: Sequence[str]) -> Table:
    """A table with one space between columns, so that eight numbers and a name fit in 80."""
    table = Table(box=box.HORIZONTALS, padding=0, pad_edge=False, show_edge=False)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _print_table(console: Console, table: Table) -> None:
    """Print a table as wide as it is. On a narrow terminal its lines wrap, but no digit is cut."""
    width = console.width
    options = console.options.update(max_width=10_000)
    console.width = max(width, Measurement.get(console, options, table).maximum)
    console.print(table)
    console.width = width


def _print_list(console: Console, title: str, items: Iterator[str] | Sequence[str]) -> None:
    listed = list(items)
    if listed:
        console.print(Text(f"\n{title}"))
        for item in listed:
            _print_lines(console, item, first="- ")


def _print_lines(console: Console, *texts: str | None, first: str = "") -> None:
    width = min(console.width, _LONGEST_LINE)
    for text in filter(None, texts):
        indent = " " * len(first)
        wrapped = textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
        )
        console.print(Text(wrapped))
