"""Means over the layers of each kind, one row per model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attention_plasticity.comparison.figures import MARKERS, ROUND_STEPS
from attention_plasticity.comparison.runs import ComparedRun, short_names
from attention_plasticity.family.layer_kinds import BY_ATTENTION
from attention_plasticity.family.panels import (
    INTERVALS,
    WIDE,
    finish,
    half_widths,
    interval_words,
    models_caption,
    panels,
    require_rows,
)
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.shown import column_label
from attention_plasticity.plots.style import FAINT, PALETTE, figure_style, figure_text, label_lines

_ROW, _AROUND = 0.22, 1.0  # inches
_BAND = "#f3f3f3"
_LONGEST_NAME = 18  # characters
_ROOM = 0.2  # of a row, above and below its middle


def layer_kinds_figure(
    table: pd.DataFrame, runs: Sequence[ComparedRun], divided: str, *, width: float = WIDE
) -> Figure:
    """Draw the means of `kind_table` by kinds of layers, one panel per metric."""
    own = table[(table["divided"] == divided) & ~table["kind"].str.contains(" minus ")]
    require_rows(own, "layers")
    labels = [run.label for run in runs if run.label in set(own["run"])]
    names = [figure_text(name) for name in short_names(labels, _LONGEST_NAME)]
    kinds, metrics = sorted(set(own["kind"])), list(dict.fromkeys(own["metric"]))
    shifts = np.linspace(-_ROOM, _ROOM, len(kinds)) if len(kinds) > 1 else np.zeros(1)
    looks: list[Any] = [
        {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)]}
        for place in range(len(kinds))
    ]
    with figure_style():
        figure, places = panels(len(metrics), width, _AROUND + _ROW * max(3, len(labels)))
        for axes, metric in zip(places, metrics, strict=True):
            for kind, shift, look in zip(kinds, shifts, looks, strict=True):
                chosen = (own["metric"] == metric) & (own["kind"] == kind)
                rows = own[chosen].set_index("run").reindex(labels)
                x, y = rows["mean"].to_numpy(np.float64), np.arange(len(labels)) + shift
                whiskers(axes, x, y, half_widths(rows), look["color"], horizontal=True, cap=2.0)
                axes.plot(x, y, linestyle="", markersize=4, **look)
            for place in range(1, len(labels), 2):  # every second model on grey
                axes.axhspan(place - 0.5, place + 0.5, color=_BAND, linewidth=0, zorder=0.1)
            axes.set_yticks(range(len(labels)), names)
            axes.set_ylim(len(labels) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=ROUND_STEPS, min_n_ticks=3))
            axes.grid(axis="x", color=FAINT, linewidth=0.4)
            axes.set_axisbelow(True)
            axes.set_xlabel(label_lines(column_label(metric), 2.0))
        handles = [
            Line2D([], [], linestyle="", markersize=4, label=figure_text(kind), **look)
            for kind, look in zip(kinds, looks, strict=True)
        ]
        what = "full attention and windows" if divided == BY_ATTENTION else "with and without RoPE"
        caption = models_caption(
            f"Means over the heads of layers of each kind ({', '.join(kinds)}), one row per model. "
            "The table layer_kinds has the differences between kinds, with intervals.",
            runs,
            [INTERVALS],
        )
        title = f"Means over heads, by layers: {what}"
        return finish(figure, title, [interval_words(own)], handles, caption)
