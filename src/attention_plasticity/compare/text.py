"""The table of a comparison as text: for a terminal, CSV, Markdown, LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.compare.runs import Correlation
from attention_plasticity.metric_words import FIFTH_NAMES, FIFTHS

_HEADINGS = {
    "run": "run",
    "heads": "heads",
    "context": "context",
    "ap_overall": "plasticity",
    **dict(zip(FIFTHS, FIFTH_NAMES, strict=True)),
    "ap_drop": "drop",
}
_WHOLE = ("heads", "context")
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
}


def print_comparison(
    compared: pd.DataFrame, found: Sequence[Correlation], console: Console
) -> None:
    """The table, and correlations with scores below it."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    short = {**_HEADINGS, "ap_overall": "mean"}
    for name, heading in short.items():
        left = name == "run"  # a long name is folded, a number never
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(
            heading.removesuffix(" %"), justify=justify, no_wrap=not left, overflow="fold"
        )
    console.print(Text("Attention plasticity: mean, and by parts of the context (%)"))
    for cells in _cells(compared):
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for one in found:
        console.print(Text(in_words(one)))


def in_words(one: Correlation) -> str:
    """`drop against ruler: Pearson 0.71, Spearman 0.80, 5 models`."""
    if math.isnan(one.pearson):
        return f"drop against {one.score}: {one.models} models, too few or too alike to correlate"
    return (
        f"drop against {one.score}: Pearson {one.pearson:.2f}, Spearman {one.spearman:.2f}, "
        f"{one.models} models"
    )


def as_csv(compared: pd.DataFrame) -> str:
    """Full precision, under the columns' own names."""
    return compared.to_csv(index=False, na_rep="nan", lineterminator="\n")


def as_markdown(compared: pd.DataFrame) -> str:
    """A table of GitHub's Markdown."""
    lines = [_row(_HEADINGS.values()), _row(["---", *["---:"] * (len(_HEADINGS) - 1)])]
    lines += [_row(cell.replace("|", r"\|") for cell in cells) for cells in _cells(compared)]
    return "\n".join(lines) + "\n"


def as_latex(compared: pd.DataFrame) -> str:
    """A tabular of the booktabs package."""
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(_HEADINGS) - 1)}}}", r"\toprule"]
    lines += [_latex_row(_HEADINGS.values()), r"\midrule"]
    lines += [_latex_row(cells) for cells in _cells(compared)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _cells(compared: pd.DataFrame) -> list[list[str]]:
    return [
        [_cell(name, row[name]) for name in _HEADINGS] for row in compared.to_dict(orient="records")
    ]


def _cell(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if name in _WHOLE else f"{round(value, 3) + 0.0:.3f}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_row(cells: Iterable[str]) -> str:
    escaped = ("".join(_LATEX.get(sign, sign) for sign in cell) for cell in cells)
    return " & ".join(escaped) + r" \\"
