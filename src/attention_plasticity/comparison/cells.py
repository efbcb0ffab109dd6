"""Cells of the tables of a comparison as text, for the terminal, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attention_plasticity.comparison.names import part_words, row_labels
from attention_plasticity.metrics import FIFTH_NAMES
from attention_plasticity.tables.main_plasticity import PlasticityColumns
from attention_plasticity.tables.names import clean

DIFFERENCE_HEADINGS = ("run", "plasticity", "drop", "texts")
CORRELATION_HEADINGS = ("score", "Pearson", "Spearman", "runs")
UNEQUAL, OTHER_HEADS = "†", "‡"
CORRELATIONS_NOTE = "[ ]: 95 % interval by Fisher's z, over runs."
_WHOLE = ("heads", "context")
_UNKNOWN = "–"  # in place of a difference


def headings(shown: PlasticityColumns) -> dict[str, str]:
    """The columns of a table of means, and their headings."""
    return {
        "run": "run",
        "heads": "heads",
        "context": "context",
        shown.level: "plasticity",
        **dict(zip(shown.fifths, FIFTH_NAMES, strict=True)),
        shown.drop: "drop",
    }


def value_cells(
    compared: pd.DataFrame, shown: PlasticityColumns, *, with_errors: bool
) -> list[list[str]]:
    """The cells of every row: its name, and one cell per number."""
    names = [name for name in headings(shown) if name != "run"]
    return [
        [label, *(_cell(name, row[name], _error_of(row, name, with_errors)) for name in names)]
        for label, row in zip(row_labels(compared), compared.to_dict("records"), strict=True)
    ]


def error_cells(compared: pd.DataFrame, shown: PlasticityColumns) -> list[list[str]]:
    """The standard errors of every row, `±.003`; empty texts where they are not known."""
    rows = compared.to_dict("records")
    return [[_error(_error_of(row, name, True)) for name in headings(shown)] for row in rows]


@dataclass(frozen=True)
class DifferenceCells:
    """A line of the table of differences."""

    minus: str  # the first run
    run: str
    part: str  # type of layers; empty for all layers
    plasticity: str  # `+0.031 [+0.012, +0.050]`, with marks at its end
    drop: str
    texts: str  # `same` if the runs are compared text by text

    @property
    def label(self) -> str:
        """`run` or `run · full attention`."""
        return f"{self.run} · {self.part}" if self.part else self.run


def difference_cells(differences: pd.DataFrame, shown: PlasticityColumns) -> list[DifferenceCells]:
    """One line per run and layer type; none where no error is known."""
    lines = []
    keys = ["run", "minus", "layer_type"]
    for (run, minus, layer_type), rows in differences.groupby(keys, sort=False):
        named = rows.set_index("quantity").reindex([shown.level, shown.drop])
        if named["standard_error"].notna().any():
            overall, drop = map(_interval, named.to_dict("records"))
            if drop != _UNKNOWN and not bool(named["equal_contexts"].all()):
                drop += UNEQUAL
            texts = "same" if bool(named["paired"].all()) else "other"
            names = clean(str(minus)), clean(str(run)), part_words(str(layer_type))
            lines.append(DifferenceCells(*names, overall, drop, texts))
    return lines


def differences_note(lines: Sequence[DifferenceCells]) -> str:
    """What the brackets, the column of texts and the mark in a table of differences are."""
    text = (
        "[ ]: 95 % interval. Runs on the same texts are compared text by text; runs on other texts "
        "are independent samples."
    )
    values = [value for line in lines for value in (line.plasticity, line.drop)]
    if any("[" not in value for value in values if value != _UNKNOWN):
        text += " A value without an interval has no known error."
    if any(OTHER_HEADS in value for value in values):
        text += f" {OTHER_HEADS}: the two means go over different heads."
    if any(line.drop.endswith(UNEQUAL) for line in lines):
        text += f" {UNEQUAL}: the contexts are unequal, so the drops are over other positions."
    return text


def errors_note(compared: pd.DataFrame, shown: PlasticityColumns) -> str | None:
    """What `±` is and whether values are corrected; None if no error is known."""
    if compared.reindex(columns=[f"{shown.level}_se"]).isna().to_numpy().all():
        return None
    corrected = compared["corrected"].astype(bool)
    how = "all values are corrected for bias"
    if not corrected.all():
        how = (
            "corrected for bias where it is known" if corrected.any() else "not corrected for bias"
        )
    sampled = compared.reindex(columns=["eligible_heads"])["eligible_heads"].notna()
    over = "texts"
    if sampled.any():
        over += " and the choice of heads"
        over += "" if sampled.all() else ", where heads were sampled at random"
    return f"±: standard error over {over}; {how}."


def _error_of(row: dict[Any, Any], name: str, wanted: bool) -> float:
    return float(row.get(f"{name}_se", math.nan)) if wanted else math.nan


def _error(value: float) -> str:
    """`±.003`, as wide as a value, so that names of runs keep their room."""
    return "" if math.isnan(value) else f"±{value:.3f}".replace("±0.", "±.")


def _cell(name: str, value: float, error: float) -> str:
    if math.isnan(value):
        return "–"
    if name in _WHOLE:
        return f"{value:,.0f}"
    text = f"{round(value, 3) + 0.0:.3f}"
    return text if math.isnan(error) else f"{text} ± {error:.3f}"


def _interval(row: dict[Any, Any]) -> str:
    """A difference with its interval, and a mark if the means go over different heads."""
    if math.isnan(row["difference"]):
        return _UNKNOWN
    ends = (row["low"], row["high"])
    interval = "" if any(map(math.isnan, ends)) else f" [{', '.join(map(_signed, ends))}]"
    return f"{_signed(row['difference'])}{interval}{OTHER_HEADS * (not row['same_heads'])}"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"
