"""The tables of a comparison: their cells as text, as CSV, in Markdown, and on a terminal."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from attention_plasticity.comparison.cautions import Concerned, texts_about
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.key_heads import NOTE, SHOWN
from attention_plasticity.comparison.runs import (
    ALL_LAYERS,
    full_names,
    kinds_of,
    main_of,
    part_words,
    short_names,
)
from attention_plasticity.comparison.scores import (
    Correlation,
    correlation_text,
    correlation_values,
)
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.main_plasticity import FIFTH_WORDS, PlasticityColumns
from attention_plasticity.tables.names import clean

UNEQUAL, OTHER_HEADS = "†", "‡"
_UNKNOWN = "–"
_INTERVALS = (
    "[ ]: 95 % interval. Runs on the same texts are compared text by text; runs on other texts "
    "are independent samples."
)
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~&$#@!]")  # special characters of GitHub Markdown
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet reads text with these first characters as a formula
_LEAST_NAME = 12  # characters, on a terminal of any width
_LONGEST_LINE = 100


class Cell(NamedTuple):
    """A number as text, or a text."""

    value: str
    beside: str = ""  # `± 0.006`, or an interval `[+0.012, +0.050]`
    marks: str = ""  # of `UNEQUAL` and `OTHER_HEADS`
    is_text: bool = False  # its hyphens are no minus signs

    @property
    def whole(self) -> str:
        """`+0.031 [+0.012, +0.050]‡`."""
        return " ".join(filter(None, (self.value, self.beside))) + self.marks

    @property
    def below(self) -> str:
        """What a narrow table has below the value: `±.003`, or the interval."""
        return self.beside.replace("± 0.", "±.").replace("± ", "±")


class Line(NamedTuple):
    """A line of a table."""

    name: str  # of a run or a score
    part: str  # type of layers; empty for all layers
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class WrittenTable:
    """A table of means, differences, correlations or models of a study, for every format."""

    kind: Concerned | Literal["key_heads", "study"]
    shown: PlasticityColumns
    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str = ""  # about the signs in the table
    minus: str = ""  # the first run, in a table of differences

    @property
    def narrow_headings(self) -> list[str]:
        """Headings of a narrow table, where `mean` is enough."""
        shown = {"plasticity": "mean"} if self.kind == "means" else {}
        return [shown.get(heading, heading) for heading in self.headings]


def written_tables(data: ComparisonData) -> list[WrittenTable]:
    """Means and differences of each kind of plasticity, key heads, and the correlations."""
    found: list[WrittenTable | None] = []
    for shown in kinds_of(data.table):
        found += [means_table(data.table, shown), differences_table(data.differences, shown)]
    found.append(key_heads_table(data.key_heads, main_of(data.table)))
    if data.relations:
        found.append(correlations_table(data.relations, main_of(data.table)))
    return [table for table in found if table is not None]


def means_table(compared: pd.DataFrame, shown: PlasticityColumns) -> WrittenTable:
    """The means over heads, with half of their intervals, of every run and type of layers."""
    headings = {"heads": "heads", "context": "context", shown.level: "plasticity"}
    if shown.drop is not None:
        headings |= {**dict(zip(shown.fifths, FIFTH_WORDS, strict=True)), shown.drop: "drop"}
    lines = tuple(
        Line(
            clean(str(row["run"])),
            part_words(str(row.get("layer_type", ALL_LAYERS))),
            tuple(_mean(name, row) for name in headings),
        )
        for row in compared.to_dict("records")
    )
    note = _errors_note(compared, shown)
    return WrittenTable("means", shown, ("run", *headings.values()), lines, note)


def key_heads_table(means: pd.DataFrame, shown: PlasticityColumns) -> WrittenTable | None:
    """The means over key heads, one line per run; None if no run has them."""
    if means.empty:
        return None
    lines = tuple(
        Line(
            clean(str(row["run"])),
            "",
            (
                Cell(f"{row['key_heads']:,}"),
                *(_mean(name, row) for name in SHOWN),
            ),
        )
        for row in means.to_dict("records")
    )
    return WrittenTable("key_heads", shown, ("run", "key heads", *SHOWN.values()), lines, NOTE)


def _mean(name: str, row: Mapping[Any, Any]) -> Cell:
    """A column of a row of means, with half of its 95 % interval."""
    value = row[name]
    if math.isnan(value):
        return Cell(_UNKNOWN)
    if name in ("heads", "context"):
        return Cell(f"{value:,.0f}")
    error, freedom = (row.get(f"{name}_{end}", math.nan) for end in ("se", "df"))
    half = float(half_width(error, freedom + 1.0))
    beside = "" if math.isnan(half) else f"± {half:.3f}"
    return Cell(f"{round(value, 3) + 0.0:.3f}", beside)


def _errors_note(compared: pd.DataFrame, shown: PlasticityColumns) -> str:
    """What `±` is; empty if no error is known."""
    if compared.reindex(columns=[f"{shown.level}_se"]).isna().to_numpy().all():
        return ""
    sampled = compared.reindex(columns=["eligible_heads"])["eligible_heads"].notna()
    over = "texts"
    if sampled.any():
        over += " and the choice of heads"
        over += "" if sampled.all() else ", where heads were sampled at random"
    return f"±: half of the 95 % interval over {over}."


def differences_table(differences: pd.DataFrame, shown: PlasticityColumns) -> WrittenTable | None:
    """One line per run and type of layers with a known error; None if there is no such line."""
    if shown.drop is None:
        return None  # this plasticity has no errors
    lines, first = [], ""
    keys = ["run", "minus", "layer_type"]
    for (run, minus, layer_type), rows in differences.groupby(keys, sort=False):
        named = rows.set_index("quantity").reindex([shown.level, shown.drop])
        if named["standard_error"].notna().any():
            overall, drop = map(_difference, named.to_dict("records"))
            if drop.value != _UNKNOWN and not bool(named["equal_contexts"].all()):
                drop = drop._replace(marks=drop.marks + UNEQUAL)
            texts = Cell("same" if bool(named["paired"].all()) else "other")
            name, part = clean(str(run)), part_words(str(layer_type))
            lines.append(Line(name, part, (overall, drop, texts)))
            first = clean(str(minus))
    if not lines:
        return None
    headings, note = ("run", "plasticity", "drop", "texts"), _differences_note(lines)
    return WrittenTable("differences", shown, headings, tuple(lines), note, first)


def _difference(row: dict[Any, Any]) -> Cell:
    """A difference with its interval, and a mark if the means go over different heads."""
    value, *ends = (row[name] for name in ("difference", "low", "high"))
    if math.isnan(value):
        return Cell(_UNKNOWN)
    shown, low, high = (f"{round(number, 3) + 0.0:+.3f}" for number in (value, *ends))
    interval = "" if any(map(math.isnan, ends)) else f"[{low}, {high}]"
    return Cell(shown, interval, OTHER_HEADS * (not row["same_heads"]))


def _differences_note(lines: Sequence[Line]) -> str:
    """What the brackets, the column of texts and the marks in a table of differences are."""
    known = [cell for line in lines for cell in line.cells[:2] if cell.value != _UNKNOWN]
    marks = "".join(cell.marks for cell in known)
    text = _INTERVALS
    if not all(cell.beside for cell in known):
        text += " A value without an interval has no known error."
    if OTHER_HEADS in marks:
        text += f" {OTHER_HEADS}: the two means go over different heads."
    if UNEQUAL in marks:
        text += f" {UNEQUAL}: the contexts are unequal, so the drops are over other positions."
    return text


def correlations_table(relations: Sequence[Correlation], shown: PlasticityColumns) -> WrittenTable:
    """One line per score: both correlations with their intervals, and the number of runs."""
    headings = ("score", "Pearson", "Spearman", "runs")
    lines = tuple(
        Line(
            clean(found.score),
            "",
            tuple(map(Cell, (*correlation_values(found), str(found.models)))),
        )
        for found in relations
    )
    note = "[ ]: 95 % interval by Fisher's z, over runs."
    return WrittenTable("correlations", shown, headings, tuple(lines), note)


def as_csv(table: pd.DataFrame) -> str:
    """CSV with full precision and original column names. Texts are never formulas."""
    texts = [name for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    escaped = {name: [_without_formula(str(text)) for text in table[name]] for name in texts}
    return table.assign(**escaped).to_csv(index=False, na_rep="nan", lineterminator="\n")


def _without_formula(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would read as a formula."""
    line = clean(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def comparison_markdown(data: ComparisonData) -> str:
    """All tables in GitHub Markdown, and the notes as a list."""
    parts = []
    for table in written_tables(data):
        titles = {
            "means": f"Plasticity {table.shown.words}:",
            "differences": f"Plasticity {table.shown.words}, difference from {table.minus}:",
            "key_heads": "Means over key heads:",
            "correlations": f"Correlation of the drop of {table.shown.name} with scores:",
        }
        parts += [f"{markdown_text(titles[table.kind])}\n", markdown_table(table)]
        parts += [f"{markdown_text(table.note)}\n"] if table.note else []
    listed = "".join(f"- {markdown_text(clean(caution.text))}\n" for caution in data.cautions)
    if listed:
        parts.append(f"Notes:\n\n{listed}")
    return "\n".join(parts)


def markdown_table(table: WrittenTable) -> str:
    """One table in GitHub Markdown."""
    rows: list[Iterable[str]] = [table.headings, ("---", *["---:"] * (len(table.headings) - 1))]
    for name, part, cells in table.lines:
        label = f"{name} · {part}" if part else name
        rows.append(map(markdown_text, (label, *(cell.whole for cell in cells))))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def markdown_text(text: str) -> str:
    """Text with the special characters of GitHub Markdown escaped."""
    return _MARKDOWN.sub(r"\\\g<0>", text)


def print_comparison(data: ComparisonData, console: Console) -> None:
    """Print the means, the differences, the correlations and all notes, in the terminal's width."""
    tables = written_tables(data)
    room = min(_room(table, console.width) for table in tables if table.kind != "correlations")
    labels = list(dict.fromkeys(line.name for line in tables[0].lines))
    short = dict(zip(labels, short_names(labels, room), strict=True))
    for table in tables:
        if table is not tables[0]:
            console.print()
        if table.kind == "correlations":
            _print_lines(console, *map(correlation_text, data.relations), table.note)
            _print_lines(console, *texts_about(data.cautions, "correlations"))
            continue
        ending = f", minus {short[table.minus]}" if table.minus else ": mean over heads"
        title = f"Plasticity {table.shown.words}{ending}"
        console.print(Text("Means over key heads" if table.kind == "key_heads" else title))
        _print_table(console, table, short)
        _print_lines(console, table.note)
    _print_list(console, "Names", list(full_names(short)))
    _print_list(console, "Notes", texts_about(data.cautions, "means", "differences"))


def _room(table: WrittenTable, width: int) -> int:
    """Characters that are left for the names of runs beside the numbers."""
    rows = [table.narrow_headings[1:], *(_texts_of(table, line) for line in table.lines)]
    taken = sum(1 + max(map(len, cells)) for cells in zip(*rows, strict=True))
    return max(_LEAST_NAME, width - taken)


def _texts_of(table: WrittenTable, line: Line) -> list[str]:
    """The cells of a line on a terminal. Errors of means have a line of their own."""
    is_means = table.kind in ("means", "key_heads")
    return [cell.value if is_means else cell.whole for cell in line.cells]


def _print_table(console: Console, written: WrittenTable, short: dict[str, str]) -> None:
    """Print a table as wide as it is. On a narrow terminal its lines wrap, but no digit is cut.

    There is one space between columns, so that eight numbers and a name fit in 80.
    """
    table = Table(box=box.HORIZONTALS, padding=0, pad_edge=False, show_edge=False)
    for place, heading in enumerate(written.narrow_headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    is_means = written.kind in ("means", "key_heads")
    for line in written.lines:
        name, part, cells = line
        shown = _texts_of(written, line)
        table.add_row(*map(Text, (f"  {part}" if part else short[name], *shown)))
        if is_means and any(cell.beside for cell in cells):
            table.add_row("", *(Text(cell.below, "dim") for cell in cells))
    width = console.width
    options = console.options.update(max_width=10_000)
    console.width = max(width, Measurement.get(console, options, table).maximum)
    console.print(table)
    console.width = width


def _print_list(console: Console, title: str, items: Sequence[str]) -> None:
    if items:
        console.print(Text(f"\n{title}"))
        for item in items:
            _print_lines(console, item, first="- ")


def _print_lines(console: Console, *texts: str, first: str = "") -> None:
    width = min(console.width, _LONGEST_LINE)
    for text in filter(None, texts):
        indent = " " * len(first)
        wrapped = textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
        )
        console.print(Text(wrapped))
