"""Shares of rotary bands by wavelength, one line per model, and differences of pairs of models."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.comparison.runs import ComparedRun
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
    turned_ticks,
)
from attention_plasticity.plots.style import figure_style, figure_text

_WHAT = (
    "Share of the variance of the logit by wavelength of RoPE, as a mean over heads, one line per "
    "model. A rotary band is a pair of dimensions that RoPE turns with one frequency; the shares "
    "of all bands of a head sum to 1. A band belongs to the wavelength that it has in the model, "
    "so scaling RoPE can move it. K is 1,024 tokens."
)
_DIFFERENCES = "The lower panel has the difference of each model from {minus}."


def bands_figure(
    table: pd.DataFrame, runs: Sequence[ComparedRun], *, width: float = WIDE
) -> Figure:
    """Draw the shares of `band_table` and, if it has pairs, their differences."""
    means, differences = table[table["minus"] == ""], table[table["minus"] != ""]
    require_rows(means, "bands")
    ordered = means.sort_values("start", kind="stable", na_position="last")
    parts = list(dict.fromkeys(ordered["wavelength"]))
    labels = [run.label for run in runs]
    with figure_style():
        number = 1 if differences.empty else 2
        figure, places = panels(number, width, columns=1)
        handles = category_lines(places[0], _named(means), labels, parts)
        plain_axis(places[0], "share of the variance", zero=True)
        details = [INTERVALS]
        if number == 2:
            category_lines(places[1], _named(differences), labels, parts)
            others = list(dict.fromkeys(differences["minus"]))
            minus = others[0] if len(others) == 1 else "the first of the family"
            plain_axis(places[1], f"difference from\n{figure_text(minus)}", zero=True)
            details.append(_DIFFERENCES.format(minus=minus))
        for axes in places:
            turned_ticks(axes)
            axes.set_xlabel("wavelength (tokens)")
        caption = models_caption(_WHAT, runs, details)
        title = "Rotary bands: share of the variance of the logit"
        return finish(figure, title, [interval_words(means)], handles, caption)


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.rename(columns={"wavelength": "part"})
