"""The tables of a comparison in LaTeX, for papers of two columns. Only booktabs is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from attention_plasticity.comparison.captions import sample_sentences
from attention_plasticity.comparison.cautions import texts_about
from attention_plasticity.comparison.cells import (
    CORRELATION_HEADINGS,
    CORRELATIONS_NOTE,
    DIFFERENCE_HEADINGS,
    OTHER_HEADS,
    UNEQUAL,
    DifferenceCells,
    difference_cells,
    differences_note,
    error_cells,
    errors_note,
    headings,
    value_cells,
)
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.latex_text import breakable, escaped, width_of
from attention_plasticity.comparison.names import full_names, part_words, short_names
from attention_plasticity.comparison.runs import ALL_LAYERS, kinds_of, main_of
from attention_plasticity.comparison.scores import correlation_values
from attention_plasticity.metrics import FIFTH_NAMES
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, PlasticityColumns
from attention_plasticity.tables.names import clean

_PACKAGE = r"% in the preamble: \usepackage{booktabs}"
_MEANS = (
    "mean over heads, mean in each fifth of the context, and drop from the first to the last fifth."
)
_COLUMN, _PAGE = 229.0, 468.0  # points; widths of a column and of the text in two columns
_SPACE, _INDENT = 8.0, 9.0  # points; between columns, and of a type of layers
_SMALL = 0.88  # width of \scriptsize relative to \small
_MARKS = UNEQUAL + OTHER_HEADS  # after a difference
_LONGEST_NAME, _SHORTEST_NAME = 48, 8  # characters


@dataclass(frozen=True)
class _Row:
    """A line of a table, and in small letters below it a second one, if it is not empty."""

    name: str
    cells: tuple[str, ...]
    below: tuple[str, ...] = ()
    part: bool = False  # a type of layers, below its run

    def width(self, column: int) -> float:
        """Estimated points of a cell. A minus sign is as wide as a plus sign."""
        upper, lower = (cells[column] if cells else "" for cells in (self.cells, self.below))
        signs = str.maketrans("-", "+")
        return max(width_of(upper.translate(signs)), _SMALL * width_of(lower.translate(signs)))


def comparison_latex(data: ComparisonData) -> str:
    """Floating tables: means and differences of each kind of plasticity, and correlations."""
    cautions, sample = data.cautions, sample_sentences(data)
    parts = [_PACKAGE]
    for shown in kinds_of(data.table):
        parts.append(as_latex(data.table, texts_about(cautions, "means"), sample, shown))
        lines = difference_cells(data.differences, shown)
        if lines:
            caption = f"Differences of {shown.name} from {lines[0].minus}. {sample}"
            below = [differences_note(lines), *texts_about(cautions, "means", "differences")]
            rows = [_difference_row(line) for line in lines]
            label = _label("plasticity-differences", data.table, shown)
            parts.append(_float(DIFFERENCE_HEADINGS, rows, caption, label, below))
    if data.relations:
        rows = [
            _Row(clean(found.score), (*correlation_values(found), str(found.models)))
            for found in data.relations
        ]
        name = main_of(data.table).name
        caption = f"Correlation of the drop of {name} with benchmark scores. {sample}"
        below = [CORRELATIONS_NOTE, *texts_about(cautions, "correlations", "means")]
        parts.append(_float(CORRELATION_HEADINGS, rows, caption, "plasticity-correlations", below))
    return "\n".join(parts)


def _label(name: str, compared: pd.DataFrame, shown: PlasticityColumns) -> str:
    """The label of a table. That of the second kind of plasticity has an ending."""
    if shown is main_of(compared):
        return name
    return f"{name}-{'position' if shown is AT_ONE_POSITION else 'bucket'}"


def as_latex(
    compared: pd.DataFrame,
    notes: Iterable[str] = (),
    sample: str = "",
    shown: PlasticityColumns | None = None,
) -> str:
    """The table of means. Standard errors are in a line of their own, below the values."""
    shown = shown or main_of(compared)
    types = compared.get("layer_type", [ALL_LAYERS] * len(compared))
    runs = [clean(str(run)) for run in compared["run"]]
    values = value_cells(compared, shown, with_errors=False)
    rows = []
    for run, layer_type, cells, errors in zip(
        runs, types, values, error_cells(compared, shown), strict=True
    ):
        part, lower = part_words(str(layer_type)), tuple(errors[1:]) if any(errors) else ()
        rows.append(_Row(part or run, tuple(cells[1:]), lower, bool(part)))
    names = ["mean" if name == "plasticity" else name for name in headings(shown).values()]
    below = [note for note in (errors_note(compared, shown),) if note]
    caption = " ".join(filter(None, (f"Plasticity {shown.words}: {_MEANS}", sample)))
    label = _label("attention-plasticity", compared, shown)
    return _float(names, rows, caption, label, [*below, *notes])


def _difference_row(line: DifferenceCells) -> _Row:
    """The differences, with their intervals below them, so that a column is wide enough."""
    values, intervals = [], []
    for cell in (line.plasticity, line.drop):
        bare = cell.rstrip(_MARKS)
        value, bracket, interval = bare.partition(" [")
        values.append(value + cell[len(bare) :])
        intervals.append(f"[{interval}" if bracket else "")
    below = (*intervals, "") if any(intervals) else ()
    return _Row(line.part or line.run, (*values, line.texts), below, bool(line.part))


def _float(
    headings: Sequence[str], rows: Sequence[_Row], caption: str, label: str, notes: Sequence[str]
) -> str:
    """A floating table: caption, label, tabular, and notes in small text below.

    It spans both columns of a paper if it is too wide for one. Names that are too long even then
    are shortened, and the notes have the full names.
    """
    short = _short_names(headings, rows)
    wide = _width(headings, rows, short.values()) > _COLUMN
    kind = "table*" if wide else "table"
    lines = [rf"\begin{{{kind}}}", r"\centering\sloppy", rf"\caption{{{breakable(caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", r"\smallskip", r"\small"]
    lines.append(r"\setlength{\tabcolsep}{4pt}")
    lines.append(_tabular(headings, rows, short))
    below = [*full_names(short), *notes]
    if below:
        lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}", r"\footnotesize\raggedright"]
        lines += [rf"{breakable(clean(note))}\par" for note in below]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, rf"\end{{{kind}}}"]) + "\n"


def _short_names(headings: Sequence[str], rows: Sequence[_Row]) -> dict[str, str]:
    """The names of runs or scores, as long as the width of the page allows."""
    names = list(dict.fromkeys(row.name for row in rows if not row.part))
    for limit in range(_LONGEST_NAME, _SHORTEST_NAME, -1):
        short = short_names(names, limit)
        if _width(headings, rows, short) <= _PAGE:
            break
    return dict(zip(names, short, strict=True))


def _width(headings: Sequence[str], rows: Sequence[_Row], names: Iterable[str]) -> float:
    """Estimated points of a table with these names of runs or scores."""
    parts = (_INDENT + width_of(row.name) for row in rows if row.part)
    first = max([width_of(headings[0]), *map(width_of, names), *parts])
    others = [
        max([width_of(_heading(heading)), *(row.width(column) for row in rows)])
        for column, heading in enumerate(headings[1:])
    ]
    return first + sum(others) + _SPACE * len(headings)


def _tabular(headings: Sequence[str], rows: Sequence[_Row], short: dict[str, str]) -> str:
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", r"\toprule"]
    fifths = [place for place, name in enumerate(headings) if name in FIFTH_NAMES]
    if fifths:
        first, last = fifths[0], fifths[-1]
        span = rf"\multicolumn{{{last - first + 1}}}{{c}}{{part of the context (\%)}}"
        lines.append("& " * first + span + " &" * (len(headings) - 1 - last) + r" \\")
        lines.append(rf"\cmidrule(lr){{{first + 1}-{last + 1}}}")
    lines += [_line(escaped(_heading(heading)) for heading in headings), r"\midrule"]
    for row in rows:
        name = rf"\quad {escaped(row.name)}" if row.part else escaped(short[row.name])
        lines.append(_line([name, *map(_number, row.cells)]))
        if row.below:
            lines.append(_line(["", *map(_small, row.below)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _heading(heading: str) -> str:
    """Parts of the context without the sign that the heading above them has."""
    return heading.removesuffix(" %")


def _number(text: str) -> str:
    """A number with a true minus sign: `$-$0.250`."""
    signs = {"-": "$-$", "–": "--", "+": "$+$", UNEQUAL: r"\dag{}", OTHER_HEADS: r"\ddag{}"}
    return "".join(signs.get(letter, letter) for letter in text)


def _small(text: str) -> str:
    number = _number(text).replace("±", r"$\pm$")
    return rf"{{\scriptsize {number}}}" if text else ""


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
