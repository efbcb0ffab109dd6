"""How far the queries and the keys of every head drift with position, before and after RoPE."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention_plasticity.metrics import BEFORE_ROPE
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.scatter import MOST_WHISKERS, draw_diagonal, draw_heads
from attention_plasticity.plots.style import (
    FAINT,
    QUIET,
    SEQUENTIAL,
    figure_style,
    layer_bar,
    new_figure,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.intervals import row_half_width
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError

_FRAMES = {BEFORE_ROPE: "before RoPE", "": "after RoPE"}
"""Endings of the columns, and what they are, in the order of the panels."""
_HEIGHTS = {1: 3.6, 2: 3.1}  # inches, by panels
_LEAST = -0.1  # where the axes begin at the latest


def drift_figure(
    drift: pd.DataFrame, *, cmap: str = SEQUENTIAL, **texts: Unpack[TextOptions]
) -> Figure:
    """Draw the drift of queries against that of keys, one point per head, coloured by layer.

    Drift is the correlation with position along the axis of the drift, which comes from other
    texts: 0 on average without drift, 1 if position decides the place on the axis. There is a panel
    before RoPE and one after RoPE, as the vectors enter the attention, if both are known. With at
    most 400 heads, each has its 95 % intervals.

    `drift` has one row per query head, such as `Run.table("drift")`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import drift_figure
        >>> figure = drift_figure(open_run("results/sample").table("drift"))
        >>> [axes.get_title() for axes in figure.axes[:2]]
        ['before RoPE', 'after RoPE']
    """
    words = Words(**texts)
    panels = {frame: _points(drift, ending) for ending, frame in _FRAMES.items()}
    panels = {frame: table for frame, table in panels.items() if len(table)}
    if not panels:
        raise ConfigError("the table of drift: no head has both values; there is nothing to draw")
    heads = max(map(len, panels.values()))
    known = any(
        np.isfinite(table[["x_half", "y_half"]]).any(axis=None) for table in panels.values()
    )
    lines = heads <= MOST_WHISKERS and known
    smallest = min(table[["x", "y"]].to_numpy(np.float64).min() for table in panels.values())
    least = min(_LEAST, smallest - 0.02)
    with figure_style():
        number = len(panels)
        figure, grid = new_figure(height=_HEIGHTS[number], ncols=number, sharey=True, squeeze=False)
        for axes, (frame, table) in zip(grid[0], panels.items(), strict=True):
            draw_diagonal(axes)
            drawn = draw_heads(axes, table, cmap, lines=lines)
            axes.set_title(frame, loc="center", fontweight="normal", fontsize=9.0)
            axes.set_xlabel("drift of queries (r)")
            _axes(axes, least)
        grid[0][0].set_ylabel("drift of keys (r)")
        layers = pd.concat([table["layer"] for table in panels.values()])
        coloured = layer_bar(figure, drawn, grid[0], layers)
        notes = [
            words.heads(heads, len(drift)),
            "r: correlation with position along an axis from other texts",
            "lines: 95 % intervals over texts" if lines else None,
        ]
        caption = words.caption(
            heads,
            f"Drift of queries against drift of keys, {' and '.join(panels)}, one point per "
            f"head{coloured}.",
            "Drift is the correlation with position of the projection on the axis of the drift. "
            "The axis comes from the other groups of texts, so that it is 0 on average without "
            "drift. Dashes: equal values.",
            interval_sentence("Lines are 95 % intervals,", drift["n_groups"]) if lines else None,
        )
        words.write(figure, None, "Drift with position", notes, caption)
    return figure


def _points(drift: pd.DataFrame, ending: str) -> pd.DataFrame:
    """The heads with both values in one frame: layer, q_head, x, y and half widths."""
    names = {"x": f"q_drift_r{ending}", "y": f"k_drift_r{ending}"}
    table = drift.reindex(columns=[*HEAD, *names.values()])
    columns = {axis: table[name] for axis, name in names.items()}
    for axis, name in names.items():
        columns[f"{axis}_half"] = pd.Series(row_half_width(drift, name), drift.index)
    return table[HEAD].assign(**columns).dropna(subset=["x", "y"])


def _axes(axes: Axes, least: float) -> None:
    """Set up both axes, from the least value to 1."""
    for limits in (axes.set_xlim, axes.set_ylim):
        limits(least, 1.02)
    for line in (axes.axhline, axes.axvline):
        line(0.0, color=QUIET, linewidth=0.6, zorder=0.5)
    axes.grid(color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
