"""Figures of several runs: profiles, trajectory over training, drop against scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.compare.runs import Correlation
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    HEIGHT,
    INK,
    PALETTE,
    VERMILION,
    WIDTH,
    figure_style,
    figure_text,
    line_shades,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.tables.metric_words import FIFTH_NAMES, FIFTHS
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_MARKERS = "osD^vP*X"


def profiles_figure(compared: pd.DataFrame) -> Figure:
    """Draw the mean profile of every run by fifths."""
    values = compared[list(FIFTHS)].to_numpy(dtype=np.float64)  # (runs, 5)
    _require_values(values)
    with figure_style():
        few = len(values) <= len(PALETTE)
        size = () if few else (WIDTH + 2.0, max(HEIGHT, 0.7 + 0.17 * len(values)))  # for the legend
        figure, axes = new_figure(*size)
        shades = line_shades("viridis")(np.linspace(0, 1, len(values)))
        for number, (label, profile) in enumerate(zip(compared["run"], values, strict=True)):
            axes.plot(
                range(len(FIFTHS)),
                profile,
                color=PALETTE[number] if few else tuple(shades[number]),
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=4,
                linewidth=1.4,
                label=figure_text(label),
            )
        plasticity_axis(axes)
        _zoom(axes, values)
        axes.set_xticks(range(len(FIFTHS)), FIFTH_NAMES)
        axes.set_xlabel("part of the observed context")
        axes.set_title("Plasticity over the context")
        if few:
            axes.legend(loc="best")
        else:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def trajectory_figure(compared: pd.DataFrame) -> Figure:
    """Draw plasticity and its first and last fifth over the runs, in the given order."""
    values = compared[["ap_overall", "ap_first20", "ap_last20"]].to_numpy(dtype=np.float64)
    _require_values(values)
    places = np.arange(len(values))
    with figure_style():
        figure, axes = new_figure()
        axes.fill_between(places, values[:, 1], values[:, 2], color=FAINT, alpha=0.5, linewidth=0)
        lines = (("all of the context", INK), ("first fifth", BLUE), ("last fifth", VERMILION))
        for column, (label, colour) in enumerate(lines):
            marker = _MARKERS[column]
            axes.plot(places, values[:, column], color=colour, label=label, marker=marker, ms=4)
        plasticity_axis(axes)
        _zoom(axes, values)
        labels = [figure_text(label) for label in compared["run"]]
        long = len(labels) > 6 or max(map(len, labels)) > 9
        step = max(1, -(-len(labels) // 16))
        axes.set_xticks(
            places[::step],
            labels[::step],
            rotation=35 if long else 0,
            ha="right" if long else "center",
        )
        axes.set_xlabel("checkpoint")
        axes.legend(loc="best")
        axes.set_title("Plasticity over training")
    return figure


def scores_figure(
    compared: pd.DataFrame, scores: pd.DataFrame, found: Sequence[Correlation]
) -> Figure:
    """Draw the drop of plasticity against the score of each benchmark, one point per model."""
    drop = compared["ap_drop"].to_numpy(dtype=np.float64)
    _require_values(drop)
    with figure_style():
        figure, grid = new_figure(max(WIDTH, 3.4 * len(found)), ncols=len(found), squeeze=False)
        for axes, correlation in zip(grid[0], found, strict=True):
            values = scores[correlation.score].to_numpy(dtype=np.float64)
            axes.scatter(drop, values, color=BLUE, s=22, linewidths=0)
            for label, x, y in zip(compared["run"], drop, values, strict=True):
                name = figure_text(label)
                axes.annotate(name, (x, y), (4, 3), textcoords="offset points", fontsize=7)
            axes.set_xlabel("plasticity drop, first to last fifth")
            axes.set_ylabel(figure_text(correlation.score))
            axes.margins(0.15)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.grid(color=FAINT, linewidth=0.4)
            axes.set_axisbelow(True)
            axes.set_title(_title(correlation), fontweight="normal", fontsize=8.5)
    return figure


def _title(found: Correlation) -> str:
    if np.isnan(found.pearson):
        return f"{found.models} models: too few to correlate"
    return f"Pearson {found.pearson:.2f}, Spearman {found.spearman:.2f}, {found.models} models"


def _zoom(axes: Axes, values: Floats) -> None:
    """Reduce the y range if all curves are close to each other."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if high - low < 0.3:
        room = max(0.05, 0.25 * (high - low))
        axes.set_yticks(np.linspace(0, 1, 21))
        axes.set_ylim(max(-0.02, low - room), min(1.02, high + room))


def _require_values(values: Floats) -> None:
    if np.isnan(values).all():
        raise ConfigError("compare: every value is NaN, so there is nothing to draw")
