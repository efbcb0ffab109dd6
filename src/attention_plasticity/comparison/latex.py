"""The tables of a comparison in LaTeX. Only the package booktabs is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from attention_plasticity.comparison.cautions import texts_about
from attention_plasticity.comparison.cells import (
    CORRELATION_HEADINGS,
    CORRELATIONS_NOTE,
    DIFFERENCE_HEADINGS,
    HEADINGS,
    DifferenceCells,
    difference_cells,
    differences_note,
    error_cells,
    errors_note,
    value_cells,
)
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.names import part_words
from attention_plasticity.comparison.runs import ALL_LAYERS
from attention_plasticity.comparison.scores import correlation_values
from attention_plasticity.tables.names import clean

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",  # two hyphens would become a dash
    "[": "{[}",  # would be read as an argument of a line end
    "*": "{*}",
    "–": "--",
    "…": r"\ldots{}",
    "·": r"\textperiodcentered{}",
    "±": r"$\pm$",
    "†": r"\dag{}",
}
_PACKAGE = r"% in the preamble: \usepackage{booktabs}"
_MEANS = (
    "Attention plasticity: mean over heads, mean in each fifth of the context, and drop from the "
    "first to the last fifth."
)


def comparison_latex(data: ComparisonData) -> str:
    """A `table` for the means, one for the differences and one for the correlations."""
    cautions = data.cautions
    parts = [_PACKAGE, as_latex(data.table, texts_about(cautions, "means"))]
    lines = difference_cells(data.differences)
    if lines:
        rows = [[escaped(line.label), *_numbers(line)] for line in lines]
        caption = f"Differences of attention plasticity from {lines[0].minus}."
        table = _tabular(DIFFERENCE_HEADINGS, map(_line, rows))
        below = [differences_note(lines), *texts_about(cautions, "means", "differences")]
        parts.append(_float(table, caption, "plasticity-differences", below))
    if data.relations:
        rows = [
            [escaped(clean(it.score)), *map(_number, correlation_values(it)), str(it.models)]
            for it in data.relations
        ]
        caption = "Correlation of the drop of attention plasticity with benchmark scores."
        table = _tabular(CORRELATION_HEADINGS, map(_line, rows))
        below = [CORRELATIONS_NOTE, *texts_about(cautions, "correlations", "means")]
        parts.append(_float(table, caption, "plasticity-correlations", below))
    return "\n".join(parts)


def as_latex(compared: pd.DataFrame, notes: Iterable[str] = ()) -> str:
    """The table of means. Standard errors are in a line of their own, below the values."""
    lines = []
    types = compared.get("layer_type", [ALL_LAYERS] * len(compared))
    values = value_cells(compared, with_errors=False)
    for layer_type, cells, errors in zip(types, values, error_cells(compared), strict=True):
        label, *numbers = cells
        part = part_words(str(layer_type))
        name = rf"\quad {escaped(part)}" if part else escaped(label)
        lines.append(_line([name, *map(_number, numbers)]))
        if any(errors):
            lines.append(_line(_small(error) for error in errors))
    table = _tabular(list(HEADINGS.values()), lines)
    below = [note for note in (errors_note(compared),) if note]
    return _float(table, _MEANS, "attention-plasticity", [*below, *notes])


def _numbers(line: DifferenceCells) -> list[str]:
    return [_number(line.plasticity), _number(line.drop), line.texts]


def _float(table: str, caption: str, label: str, notes: Sequence[str]) -> str:
    """A floating table: caption, label, tabular, and notes in small text below."""
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escaped(caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", r"\small", r"\setlength{\tabcolsep}{4pt}", table]
    if notes:
        lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}", r"\footnotesize"]
        lines += [rf"{escaped(clean(note))}\par" for note in notes]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _tabular(headings: Sequence[str], lines: Iterable[str]) -> str:
    begin = rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}"
    heading = _line(map(escaped, headings))
    return "\n".join(
        [begin, r"\toprule", heading, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    )


def escaped(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    return "".join(_SPECIAL.get(sign, sign) for sign in text)


def _number(text: str) -> str:
    """A number with a true minus sign: `$-$0.250`."""
    return text.replace("-", "$-$").replace("–", "--").replace("+", "$+$").replace("†", r"\dag{}")


def _small(error: str) -> str:
    return rf"{{\scriptsize {escaped(error)}}}" if error else ""


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
