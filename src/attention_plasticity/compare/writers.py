"""Tables of several runs as CSV, in Markdown, in LaTeX, and on a terminal.

A frame with all numbers becomes CSV. A `Table` has what a reader sees: a line per run, with numbers
and their intervals as text. All formats are made from it.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from attention_plasticity.tables.names import clean
from qk_toolkit.formatting import with_half

if TYPE_CHECKING:
    from rich.console import Console

Form = Literal["interval", "half"]
NOTES: dict[Form, str] = {
    "interval": "[ ]: 95 % interval over texts; a value without it has no known error.",
    "half": "±: half of the 95 % interval over texts; a value without it has no known error.",
}
UNKNOWN = "–"
PACKAGES = r"% in the preamble: \usepackage{booktabs,graphicx}"
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~&$#@!]")  # special characters of GitHub Markdown
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet reads text with these first characters as a formula
_NUMBER = re.compile(r"[-+±[\](),.\d\s]*\d[-+±[\](),.\d\s]*")
_MOST_INTERVALS = 5  # columns; more with `[low, high]` are wider than a page
_LONGEST_LINE = 100
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#{}"},
        "_": r"\_\allowbreak{}",
        "-": r"-\allowbreak{}",  # also keeps two hyphens from becoming a dash
        "/": r"/\allowbreak{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "`": r"\textasciigrave{}",
        "[": "{[}",  # would be read as an argument of a line end
        "*": "{*}",
        "–": "--",
        "…": r"\ldots{}",
        "·": r"\textperiodcentered{}",
        "±": r"$\pm$",
        "†": r"\dag{}",
        "‡": r"\ddag{}",
    }
)


@dataclass(frozen=True)
class Table:
    """A table for readers. The first cell of a line is its name."""

    caption: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""  # below the table


def number_words(
    value: float, low: float, high: float, digits: int = 3, form: Form = "interval"
) -> str:
    """`0.481 [0.470, 0.492]`, or `0.481 ± 0.011`; the value alone if its error is not known."""
    if math.isnan(value):
        return UNKNOWN
    shown, *ends = (_rounded(number, digits) for number in (value, low, high))
    if math.isnan(low) or math.isnan(high):
        return shown
    if form == "half":
        return with_half(value, (high - low) / 2.0)
    return f"{shown} [{', '.join(ends)}]"


def _rounded(number: float, digits: int) -> str:
    return f"{round(number, digits) + 0.0:.{digits}f}"  # no -0.000


def summary_table(
    frame: pd.DataFrame,
    caption: str,
    columns: Literal["metric", "group"] = "metric",
    headings: Mapping[str, str] | None = None,
    *,
    form: Form | None = None,
    digits: int = 3,
    note: str = "",
) -> Table:
    """A summary for readers: a line per run, and a column per metric or per group.

    The columns are those of `headings`, in their order; by default all. Differences have lines
    named `run minus other`. With many columns, `±` is shown in place of the interval.
    """
    shown = dict(headings) if headings else {name: name for name in dict.fromkeys(frame[columns])}
    form = form or ("half" if len(shown) > _MOST_INTERVALS else "interval")
    cells: dict[str, dict[str, str]] = {}
    for row in frame.to_dict("records"):
        name = f"{row['run']} minus {row['minus']}" if row["minus"] else str(row["run"])
        words = number_words(row["mean"], row["low"], row["high"], digits, form)
        cells.setdefault(clean(name), {})[str(row[columns])] = words
    lines = tuple(
        (name, *(own.get(column, UNKNOWN) for column in shown)) for name, own in cells.items()
    )
    below = " ".join(filter(None, [NOTES[form] if lines else "", note]))
    return Table(caption, ("run", *shown.values()), lines, below)


def csv_text(frame: pd.DataFrame) -> str:
    """CSV with full precision and original column names. Texts are never formulas."""
    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    escaped = {name: [_without_formula(str(text)) for text in frame[name]] for name in texts}
    return frame.assign(**escaped).to_csv(index=False, na_rep="nan", lineterminator="\n")


def _without_formula(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would read as a formula."""
    line = clean(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def markdown_text(text: str) -> str:
    """Text with the special characters of GitHub Markdown escaped."""
    return _MARKDOWN.sub(r"\\\g<0>", text)


def markdown_table(table: Table) -> str:
    """Caption, table and note in GitHub Markdown."""
    rules = ("---", *["---:"] * (len(table.headings) - 1))
    rows = [map(markdown_text, table.headings), rules]
    rows += [map(markdown_text, line) for line in table.lines]
    body = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    note = f"\n{markdown_text(table.note)}\n" if table.note else ""
    return f"{markdown_text(table.caption)}\n\n{body}{note}"


def latex_table(table: Table, label: str) -> str:
    """A floating table with booktabs: caption, label, tabular, and the note in small text.

    A tabular that is wider than the text is resized to its width.
    """
    kinds = "l" + "r" * (len(table.headings) - 1)
    lines = [
        r"\begin{table}",
        r"\centering\sloppy",
        rf"\caption{{{latex_text(table.caption)}}}",
    ]
    lines += [rf"\label{{tab:{label}}}", r"\smallskip", r"\small"]
    lines.append(r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%")
    lines += [
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        _latex_row(table.headings),
        r"\midrule",
    ]
    lines += [_latex_row(line) for line in table.lines]
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if table.note:
        lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}"]
        lines += [rf"\footnotesize\raggedright {latex_text(table.note)}\par", r"\end{minipage}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(text: str) -> str:
    """A cell; numbers have true minus signs."""
    escaped = latex_text(text)
    if not _NUMBER.fullmatch(text):
        return escaped
    for sign, number in ((r"-\allowbreak{}", "$-$"), ("+", "$+$"), ("{[}", "[")):
        escaped = escaped.replace(sign, number)
    return escaped


def latex_text(text: str) -> str:
    """Text with the special characters of LaTeX escaped. Names can break after `-`, `_` and `/`."""
    return clean(text).translate(_LATEX)


def table_files(
    name: str, frame: pd.DataFrame, tables: Sequence[Table], label: str | None = None
) -> dict[str, str]:
    """`name.csv` and, if there are tables for readers, `name.md` and `name.tex`, as texts.

    `label` is that of the first float in LaTeX, by default the name.
    """
    files = {f"{name}.csv": csv_text(frame)}
    if tables:
        first = (label or name).replace("_", "-")
        floats = (
            latex_table(table, first if place == 1 else f"{first}-{place}")
            for place, table in enumerate(tables, start=1)
        )
        files[f"{name}.md"] = "\n".join(map(markdown_table, tables))
        files[f"{name}.tex"] = "\n".join([PACKAGES, *floats])
    return files


def print_table(table: Table, console: Console) -> None:
    """Print a table. On a narrow terminal its lines wrap, but no digit is cut."""
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.HORIZONTALS, padding=0, pad_edge=False, show_edge=False)
    for place, (heading, *cells) in enumerate(zip(table.headings, *table.lines, strict=True)):
        width = max(map(len, (*cells, *heading.split())))
        words = textwrap.fill(heading, width, break_long_words=False)
        grid.add_column(words, justify="right" if place else "left", no_wrap=True)
    for line in table.lines:
        grid.add_row(*map(Text, line))
    print_lines(console, table.caption)
    width, options = console.width, console.options.update(max_width=10_000)
    console.width = max(width, Measurement.get(console, options, grid).maximum)
    console.print(grid)
    console.width = width
    print_lines(console, table.note)


def print_lines(console: Console, *texts: str, first: str = "") -> None:
    """Print texts in the width of the terminal; each begins with `first`."""
    from rich.text import Text

    indent: Any = {"initial_indent": first, "subsequent_indent": " " * len(first)}
    for text in filter(None, texts):
        width = min(console.width, _LONGEST_LINE)
        console.print(Text(textwrap.fill(text, width, break_on_hyphens=False, **indent)))
