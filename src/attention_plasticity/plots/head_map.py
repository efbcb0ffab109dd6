"""Map of one metric of every head, layer × head."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.plots.style import (
    QUIET,
    SEQUENTIAL,
    SIGNED,
    figure_style,
    figure_text,
    footnote,
    headline,
    new_figure,
    require_colormap,
)
from attention_plasticity.tables.csv_tables import require_columns, require_values
from attention_plasticity.tables.metric_words import METRIC_WORDS


def head_map_figure(
    metrics: pd.DataFrame,
    *,
    metric: str = "ap_overall",
    cmap: str | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    title: str | None = None,
    model_name: str | None = None,
) -> Figure:
    """Draw a metric of every head. Heads that are not in the table are blank.

    Plasticity has the range 0 to 1. Signed metrics have two colours with zero in the middle.
    """
    require_columns(metrics, [metric], "the table of heads")
    require_values(metrics, metric, "the table of heads")
    words = METRIC_WORDS.get(metric)
    grid = head_grid(metrics, metric)
    low, high, shades = _range(grid, metric, bool(words and words.signed))
    low, high = low if vmin is None else vmin, high if vmax is None else vmax
    shades = require_colormap(cmap) if cmap is not None else shades
    layers, heads = grid.shape
    with figure_style():
        figure, axes = new_figure(height=min(6.5, max(2.6, 1.4 + 0.085 * layers)))
        drawn = axes.imshow(
            grid, cmap=shades, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
        )
        axes.set_xlabel("query head")
        axes.set_ylabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
        label = words.label if words else metric
        bar = figure.colorbar(drawn, ax=axes, label=figure_text(label), pad=0.02)
        bar.outline.set_visible(False)
        headline(axes, title, label[:1].upper() + label[1:] + " by head", model_name)
        _mark_missing(axes, grid)
        missing = int(np.isnan(grid).sum())
        blank = f"{missing:,} without a value or not captured: dots" if missing else None
        footnote(figure, f"{layers * heads - missing:,} heads", blank)
    return figure


def head_grid(metrics: pd.DataFrame, metric: str) -> npt.NDArray[np.float64]:
    """(layers × heads); NaN if the table has no value."""
    grid = np.full((metrics["layer"].max() + 1, metrics["q_head"].max() + 1), np.nan)
    grid[metrics["layer"], metrics["q_head"]] = metrics[metric]
    return grid


def _mark_missing(axes: Axes, grid: npt.NDArray[np.float64]) -> None:
    layer, head = np.nonzero(np.isnan(grid))
    axes.scatter(head, layer, s=1.5, color=QUIET, linewidths=0)


def _range(grid: npt.NDArray[np.float64], metric: str, signed: bool) -> tuple[float, float, str]:
    if signed:
        largest = float(np.nanmax(np.abs(grid))) or 1.0
        return -largest, largest, SIGNED
    if metric.startswith("ap_"):
        return 0.0, 1.0, SEQUENTIAL
    return float(np.nanmin(grid)), float(np.nanmax(grid)), SEQUENTIAL
