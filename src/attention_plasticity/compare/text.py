"""The table of a comparison as text for a terminal, CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.columns import FIFTHS, MEAN_COLUMNS
from attention_plasticity.compare.runs import Correlation
from attention_plasticity.tables.metric_words import FIFTH_NAMES
from attention_plasticity.tables.names import clean

_HEADINGS = {
    "run": "run",
    "heads": "heads",
    "context": "context",
    "ap_overall": "plasticity",
    **dict(zip(FIFTHS, FIFTH_NAMES, strict=True)),
    "ap_drop": "drop",
}
_WHOLE = ("heads", "context")
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~&$#@!]")  # special characters of GitHub Markdown
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet reads text with these first characters as a formula
_LATEX = {
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
}


def print_comparison(
    compared: pd.DataFrame,
    differences: pd.DataFrame,
    found: Sequence[Correlation],
    console: Console,
) -> None:
    """Print the table, the differences from the first run and the correlations with scores."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    short = {**_HEADINGS, "ap_overall": "mean"}
    for name, heading in short.items():
        left = name == "run"  # long names are folded, numbers are not
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(
            heading.removesuffix(" %"), justify=justify, no_wrap=not left, overflow="fold"
        )
    console.print(Text("Attention plasticity: mean, and by parts of the context (%)"))
    for cells, errors in zip(_cells(compared, with_errors=()), _error_cells(compared), strict=True):
        table.add_row(*(Text(cell) for cell in cells))
        if any(errors):
            table.add_row(*(Text(cell, "dim") for cell in errors))
    console.print(table)
    if compared["ap_overall_se"].notna().any():
        all_values = "all values are corrected" if compared["corrected"].all() else "corrected"
        where = "" if compared["corrected"].all() else " where it is known"
        console.print(Text(f"± standard error over texts; {all_values} for bias{where}"))
    for text in difference_texts(differences):
        console.print(Text(text))
    for correlation in found:
        console.print(Text(correlation_text(correlation)))


def difference_texts(differences: pd.DataFrame) -> list[str]:
    """`large minus small: plasticity 0.031 [0.012, 0.050], drop …`, one line per run."""
    lines = []
    for (run, minus), rows in differences.groupby(["run", "minus"], sort=False):
        named = rows.set_index("quantity")
        if named.loc[["ap_overall", "ap_drop"], "standard_error"].isna().any():
            continue
        parts = [
            f"{_HEADINGS[name]} {_signed(named.loc[name, 'difference'])} "
            f"[{_signed(named.loc[name, 'low'])}, {_signed(named.loc[name, 'high'])}]"
            for name in ("ap_overall", "ap_drop")
        ]
        how = "text by text" if bool(named["paired"].all()) else "independent samples"
        lines.append(f"{clean(str(run))} minus {clean(str(minus))}: {', '.join(parts)} ({how})")
    if lines:
        lines.append("[ ]: 95 % interval")
    return lines


def _signed(value: Any) -> str:
    return f"{round(float(value), 3) + 0.0:+.3f}"


def correlation_text(found: Correlation) -> str:
    """`drop against ruler: Pearson 0.71, Spearman 0.80, 5 models`."""
    text = f"drop against {found.score}: "
    if math.isnan(found.pearson):
        return text + f"{found.models} models, too few or equal values: no correlation"
    return text + (
        f"Pearson {found.pearson:.2f}, Spearman {found.spearman:.2f}, {found.models} models"
    )


def as_csv(compared: pd.DataFrame) -> str:
    """CSV with full precision and original column names. Labels are never formulas."""
    table = compared.assign(run=[escape_formula(label) for label in compared["run"]])
    return table.to_csv(index=False, na_rep="nan", lineterminator="\n")


def escape_formula(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would read as a formula."""
    line = clean(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def as_markdown(compared: pd.DataFrame) -> str:
    """A table in GitHub Markdown."""
    lines = [_row(_HEADINGS.values()), _row(["---", *["---:"] * (len(_HEADINGS) - 1)])]
    for label, *numbers in _cells(compared):
        lines.append(_row([_MARKDOWN.sub(r"\\\g<0>", label), *numbers]))
    return "\n".join(lines) + "\n"


def as_latex(compared: pd.DataFrame) -> str:
    """A LaTeX tabular with the booktabs package."""
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(_HEADINGS) - 1)}}}", r"\toprule"]
    lines += [_latex_row(map(_latex, _HEADINGS.values())), r"\midrule"]
    for label, *numbers in _cells(compared):
        lines.append(_latex_row([_latex(label), *map(_latex_number, numbers)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _cells(compared: pd.DataFrame, with_errors: Sequence[str] = MEAN_COLUMNS) -> list[list[str]]:
    return [
        [
            _cell(name, row[name], row.get(f"{name}_se") if name in with_errors else None)
            for name in _HEADINGS
        ]
        for row in compared.to_dict(orient="records")
    ]


def _error_cells(compared: pd.DataFrame) -> list[list[str]]:
    """A row of standard errors per run; empty texts where they are not known."""
    return [
        [_error(row.get(f"{name}_se", math.nan)) for name in _HEADINGS]
        for row in compared.to_dict(orient="records")
    ]


def _error(value: float) -> str:
    """`±.003`, as wide as a value, so that names of runs keep their room."""
    return "" if math.isnan(value) else f"±{value:.3f}".replace("±0.", "±.")


def _cell(name: str, value: object, error: float | None = None) -> str:
    if not isinstance(value, int | float):
        return clean(str(value))
    if math.isnan(value):
        return "–"
    if name in _WHOLE:
        return f"{value:,.0f}"
    text = f"{round(value, 3) + 0.0:.3f}"
    return text if error is None or math.isnan(error) else f"{text} ± {error:.3f}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _latex_number(text: str) -> str:
    return text.replace("–", "--").replace("±", r"$\pm$")


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
