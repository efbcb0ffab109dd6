"""Shares of rotary bands, one line per model, and differences of pairs of models."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.comparison.runs import ALL_LAYERS, ComparedRun
from attention_plasticity.family.panels import (
    INTERVALS,
    WIDE,
    category_lines,
    finish,
    interval_words,
    models_caption,
    panels,
    plain_axis,
    require_rows,
)
from attention_plasticity.plots.style import figure_style, figure_text, label_lines

_WHAT = (
    "Share of the variance of the logit by eighths of the rotary bands, from the fastest to the "
    "slowest, as a mean over heads, one line per model. A rotary band is a pair of dimensions that "
    "RoPE turns with one frequency. The shares of a head sum to 1 with that of the dimensions that "
    "RoPE does not turn; they pool all distances, and a share can be negative."
)
_ROOM = 1.6  # inches beside a panel
_DIFFERENCES = "The second panel has the difference of the same heads from {minus}."


def bands_figure(
    table: pd.DataFrame, runs: Sequence[ComparedRun], *, width: float = WIDE
) -> Figure:
    """Draw the shares of `band_table` and, if it has pairs, their differences."""
    table = table[table["layer_type"] == ALL_LAYERS]
    means, differences = table[table["minus"] == ""], table[table["minus"] != ""]
    require_rows(means, "bands")
    parts = list(dict.fromkeys(means["eighth"]))
    labels = [run.label for run in runs]
    with figure_style():
        number = 1 if differences.empty else 2
        figure, places = panels(number, width)
        handles = category_lines(places[0], _named(means), labels, parts)
        plain_axis(places[0], "share of the variance", zero=True)
        details = [INTERVALS, _wavelengths(means)]
        if number == 2:
            category_lines(places[1], _named(differences), labels, parts)
            others = list(dict.fromkeys(differences["minus"]))
            minus = others[0] if len(others) == 1 else "the first of the family"
            label = label_lines(f"difference from {figure_text(minus)}", _ROOM)
            plain_axis(places[1], label, zero=True)
            details.append(_DIFFERENCES.format(minus=minus))
        for axes in places:
            axes.set_xlabel("eighth of the rotary bands")
        caption = models_caption(_WHAT, runs, details)
        title = "Rotary bands: share of the variance of the logit"
        notes = [interval_words(means), "1: the shortest wavelengths, 8: the longest"]
        return finish(figure, title, notes, handles, caption)


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.rename(columns={"eighth": "part"})


def _wavelengths(means: pd.DataFrame) -> str:
    """The wavelengths of the eighths in every model."""
    words = []
    for label, own in means[means["longest"].notna()].groupby("run", sort=False):
        ends = ", ".join(
            f"{low:,.0f}–{high:,.0f}"
            for low, high in zip(own["shortest"], own["longest"], strict=True)
        )
        words.append(f"{label}: {ends}")
    return f"Wavelengths of the eighths in tokens: {'; '.join(words)}." if words else ""
