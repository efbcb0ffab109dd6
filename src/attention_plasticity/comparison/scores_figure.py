"""The drop of plasticity against benchmark scores, one panel per benchmark."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attention_plasticity.comparison.cautions import Caution
from attention_plasticity.comparison.drawn import Floats, drawn_drops
from attention_plasticity.comparison.layout import (
    MARKERS,
    ROUND_STEPS,
    caution_notes,
    legend_names,
    notes_and_legend,
    require_values,
    whisker_notes,
)
from attention_plasticity.comparison.scores import FEW_RUNS, Correlation, correlation_values
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.style import (
    FAINT,
    HEIGHT,
    PALETTE,
    WIDTH,
    figure_style,
    figure_text,
    new_figure,
)

_PANELS_IN_A_ROW = 3
_PANEL_WIDTH = 2.9  # inches
_LABEL_LINE = 26  # characters of a label at an axis


def scores_figure(
    compared: pd.DataFrame,
    scores: pd.DataFrame,
    found: Sequence[Correlation],
    cautions: Sequence[Caution] = (),
) -> Figure:
    """Draw the drop of plasticity against the score of each benchmark, one point per run.

    Runs have a colour and a marker of their own, which the legend below the panels names.

    `compared` is `Comparison.table`, with one row per run and layer type. `scores` has one row per
    run, and `found` one correlation per benchmark: `Comparison.scores` and `Comparison.relations`.

    Examples:
        >>> import pandas as pd
        >>> from attention_plasticity import compare, open_run
        >>> from attention_plasticity.plots import scores_figure
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[layer]) for layer in (0, 14, 29)]
        >>> scores = pd.DataFrame({"model": ["a", "b", "c"], "ruler": [80, 60, 70]})
        >>> found = compare(parts, labels=["a", "b", "c"], scores=scores)
        >>> scores_figure(found.table, found.scores, found.relations).axes[0].get_ylabel()
        'ruler'
    """
    drawn = drawn_drops(compared)
    require_values(drawn)
    drop, halves = drawn.values[:, 0], drawn.halves[:, 0]  # (runs,)
    looks = [_look(place) for place in range(len(drop))]
    columns = min(len(found), _PANELS_IN_A_ROW)
    lines = math.ceil(len(found) / columns)
    with figure_style():
        size = (max(WIDTH, _PANEL_WIDTH * columns), HEIGHT * lines)
        figure, grid = new_figure(*size, ncols=columns, nrows=lines, squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        for axes, correlation in zip(grid.flat, found, strict=False):
            values = scores[correlation.score].to_numpy(dtype=np.float64)
            _points(axes, drop, values, halves, looks)
            axes.set_xlabel(f"drop of plasticity\n{drawn.shown.words}")
            axes.set_ylabel(_wrapped(figure_text(correlation.score)))
            axes.set_title(_title(correlation), fontweight="normal", fontsize=8)
        names = legend_names(drawn.runs)
        handles = [
            Line2D([], [], linestyle="", markersize=5, label=name, **look)
            for name, look in zip(names, looks, strict=True)
        ]
        notes = [
            *whisker_notes(drawn),
            *caution_notes(cautions, drawn.runs, "means", "correlations"),
        ]
        notes_and_legend(figure, notes, handles)
    return figure


def _points(axes: Axes, x: Floats, y: Floats, halves: Floats, looks: Sequence[Any]) -> None:
    for place, look in enumerate(looks):
        one = slice(place, place + 1)
        whiskers(axes, x[one], y[one], halves[one], look["color"], horizontal=True)
        axes.plot(x[one], y[one], linestyle="", markersize=5, **look)
    axes.margins(0.15)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS, min_n_ticks=3))
    axes.grid(color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def _look(place: int) -> dict[str, Any]:
    """Colour and marker of a run; 56 runs have different ones."""
    return {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)]}


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _LABEL_LINE)


def _title(found: Correlation) -> str:
    if not found.is_known:
        return f"{found.obstacle}: no correlation"
    pearson, spearman = correlation_values(found)
    runs = f"{found.models} runs"
    if math.isnan(found.pearson_low):
        runs += ": no interval"
    elif found.models < FEW_RUNS:
        runs = f"only {runs}, 95 % intervals"
    return f"Pearson {pearson}\nSpearman {spearman}\n{runs}"
