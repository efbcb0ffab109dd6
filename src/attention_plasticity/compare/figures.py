"""Figures of several runs: profiles, trajectory over training, drop against scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.columns import FIFTHS
from attention_plasticity.compare.runs import Correlation
from attention_plasticity.plots.intervals import whiskers
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
    footnote,
    line_shades,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.metric_words import FIFTH_NAMES
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_MARKERS = "osD^vP*X"


def profiles_figure(compared: pd.DataFrame) -> Figure:
    """Draw the mean profile of every run by fifths."""
    values, halves = _columns(compared, FIFTHS)  # (runs, 5)
    _require_values(values)
    known = bool(np.isfinite(halves).any())
    shifts = _shifts(len(values)) if known else np.zeros(len(values))  # (runs,)
    with figure_style():
        few = len(values) <= len(PALETTE)
        size = () if few else (WIDTH + 2.0, max(HEIGHT, 0.7 + 0.17 * len(values)))  # for the legend
        figure, axes = new_figure(*size)
        shades = line_shades("viridis")(np.linspace(0, 1, len(values)))
        for number, (label, profile) in enumerate(zip(compared["run"], values, strict=True)):
            places = np.arange(len(FIFTHS)) + shifts[number]
            colour = PALETTE[number] if few else tuple(shades[number])
            whiskers(axes, places, profile, halves[number], colour)
            axes.plot(
                places,
                profile,
                color=colour,
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=3 if known else 4,
                linewidth=1.0 if known else 1.4,
                label=figure_text(label),
            )
        plasticity_axis(axes)
        _zoom(axes, values, halves)
        axes.set_xticks(range(len(FIFTHS)), FIFTH_NAMES)
        axes.set_xlabel("part of the observed context")
        axes.set_title("Plasticity over the context")
        if few:
            axes.legend(loc="best")
        else:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        footnote(figure, *_notes(halves))
    return figure


def trajectory_figure(compared: pd.DataFrame) -> Figure:
    """Draw plasticity and its first and last fifth over the runs, in the given order."""
    values, halves = _columns(compared, ("ap_overall", "ap_first20", "ap_last20"))  # (runs, 3)
    _require_values(values)
    places = np.arange(len(values))
    shift = 0.015 * len(values) if np.isfinite(halves).any() else 0.0  # whiskers side by side
    with figure_style():
        figure, axes = new_figure()
        axes.fill_between(places, values[:, 1], values[:, 2], color=FAINT, alpha=0.5, linewidth=0)
        lines = (("all of the context", INK), ("first fifth", BLUE), ("last fifth", VERMILION))
        for column, (label, colour) in enumerate(lines):
            marker = _MARKERS[column]
            x = places + (column - 1) * shift
            whiskers(axes, x, values[:, column], halves[:, column], colour)
            axes.plot(x, values[:, column], color=colour, label=label, marker=marker, ms=4)
        plasticity_axis(axes)
        _zoom(axes, values, halves)
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
        footnote(figure, *_notes(halves))
    return figure


def scores_figure(
    compared: pd.DataFrame, scores: pd.DataFrame, found: Sequence[Correlation]
) -> Figure:
    """Draw the drop of plasticity against the score of each benchmark, one point per model."""
    drop, halves = _columns(compared, ("ap_drop",))  # (runs, 1)
    _require_values(drop)
    with figure_style():
        figure, grid = new_figure(max(WIDTH, 3.4 * len(found)), ncols=len(found), squeeze=False)
        for axes, correlation in zip(grid[0], found, strict=True):
            values = scores[correlation.score].to_numpy(dtype=np.float64)
            axes.scatter(drop[:, 0], values, color=BLUE, s=22, linewidths=0)
            whiskers(axes, drop[:, 0], values, halves[:, 0], BLUE, horizontal=True)
            for label, x, y in zip(compared["run"], drop[:, 0], values, strict=True):
                name = figure_text(label)
                axes.annotate(name, (x, y), (4, 3), textcoords="offset points", fontsize=7)
            axes.set_xlabel("plasticity drop, first to last fifth")
            axes.set_ylabel(figure_text(correlation.score))
            axes.margins(0.15)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.grid(color=FAINT, linewidth=0.4)
            axes.set_axisbelow(True)
            axes.set_title(_title(correlation), fontweight="normal", fontsize=8.5)
        footnote(figure, *_notes(halves))
    return figure


def _columns(compared: pd.DataFrame, names: Sequence[str]) -> tuple[Floats, Floats]:
    """Values and half widths of their intervals, (runs, names); NaN if an error is not known."""
    errors = compared.reindex(columns=[f"{name}_se" for name in names])
    groups = compared.reindex(columns=["n_text_groups"]).to_numpy(dtype=np.float64)  # (runs, 1)
    values = compared[list(names)].to_numpy(dtype=np.float64)
    return values, half_width(errors.to_numpy(dtype=np.float64), groups)


def _notes(halves: Floats) -> tuple[str, ...]:
    """What the whiskers are, for half widths of (runs, names)."""
    known = int(np.isfinite(halves).any(axis=1).sum())
    if not known:
        return ()
    missing = len(halves) - known
    some = (f"not known for {missing:,} of {len(halves):,} runs",) if missing else ()
    return ("corrected for bias", "whiskers: 95 % interval over texts", *some)


def _shifts(runs: int) -> Floats:
    """(runs,) small shifts along x, so that whiskers of several runs do not cover each other."""
    widest = min(0.2, 0.04 * (runs - 1))
    return np.linspace(-widest, widest, runs)


def _title(found: Correlation) -> str:
    if np.isnan(found.pearson):
        return f"{found.models} models: too few to correlate"
    return f"Pearson {found.pearson:.2f}, Spearman {found.spearman:.2f}, {found.models} models"


def _zoom(axes: Axes, values: Floats, halves: Floats) -> None:
    """Reduce the y range if all curves and whiskers are close to each other."""
    reach = np.nan_to_num(halves)
    low, high = float(np.nanmin(values - reach)), float(np.nanmax(values + reach))
    if high - low < 0.3:
        room = max(0.05, 0.25 * (high - low))
        ticks = np.linspace(0, 1, 21)
        axes.set_yticks(ticks, [f"{tick:.2f}" for tick in ticks])
        axes.set_ylim(max(-0.02, low - room), min(1.02, high + room))


def _require_values(values: Floats) -> None:
    if np.isnan(values).all():
        raise ConfigError("compare: every value is NaN, so there is nothing to draw")
