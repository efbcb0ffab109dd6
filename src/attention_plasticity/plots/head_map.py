"""Map of one metric of every head, layer × head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from attention_plasticity.columns import ATTENDED, ATTENDED_COUNTED, MEAN_COLUMNS
from attention_plasticity.plots.intervals import correction_note
from attention_plasticity.plots.style import (
    FAINT,
    INK,
    QUIET,
    SEQUENTIAL,
    SIGNED,
    WIDTH,
    figure_style,
    figure_text,
    footnote,
    headline,
    new_figure,
    require_colormap,
)
from attention_plasticity.tables.csv_tables import require_columns, require_values
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    corrected,
    head_half_width,
    p_values,
)
from attention_plasticity.tables.metric_words import METRIC_WORDS
from attention_plasticity.tables.profiles import HEAD

_SHARES = ("attn_sink_mass", "attn_distant_mass")  # of attention
_DOT, _RING = 2.4, 5.5  # points; diameters of the marks in large cells
_LEGEND = 0.35  # inches; height of the legend of the marks


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

    Plasticity and shares of attention have the range 0 to 1. Signed metrics have two colours with
    zero in the middle. Values are corrected for bias if it is known. A dot marks a head whose 95 %
    interval of the drop excludes 0, and a ring one that is significant at a false discovery rate of
    5 %.
    """
    require_columns(metrics, [metric], "the table of heads")
    require_values(metrics, metric, "the table of heads")
    words = METRIC_WORDS.get(metric)
    tests = DropTests.of(metrics) if metric == "ap_drop" else None
    grid = head_grid(metrics.assign(**{metric: corrected(metrics, metric)}), metric)
    low, high, shades = _range(grid, metric, bool(words and words.signed))
    low, high = low if vmin is None else vmin, high if vmax is None else vmax
    shades = require_colormap(cmap) if cmap is not None else shades
    layers, heads = grid.shape
    with figure_style():
        height = min(6.5, max(2.6, 1.4 + 0.085 * layers)) + (_LEGEND if tests else 0.0)
        figure, axes = new_figure(height=height)
        drawn = axes.imshow(
            grid, cmap=shades, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
        )
        axes.set_xlabel("query head")
        axes.set_ylabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
        label = words.label if words else metric
        bar = figure.colorbar(drawn, ax=axes, label=figure_text(label), pad=0.02)
        bar.outline.set_visible(False)
        headline(axes, title, label[:1].upper() + label[1:] + " by head", model_name)
        missing = int(np.isnan(grid).sum())
        sign = "dashes" if tests else "dots"
        _mark_missing(axes, grid, sign)
        if tests:
            _mark_tests(figure, axes, tests, drawn)
            _test_legend(figure, axes, tests)
        footnote(
            figure,
            f"{layers * heads - missing:,} heads",
            f"{missing:,} without a value or not captured: {sign}" if missing else None,
            correction_note(metrics, metric),
        )
    return figure


def head_grid(metrics: pd.DataFrame, metric: str) -> npt.NDArray[np.float64]:
    """(layers × heads); NaN if the table has no value."""
    grid = np.full((metrics["layer"].max() + 1, metrics["q_head"].max() + 1), np.nan)
    grid[metrics["layer"], metrics["q_head"]] = metrics[metric]
    return grid


@dataclass(frozen=True)
class DropTests:
    """Which heads have a drop that differs from 0."""

    heads: npt.NDArray[np.int64]  # (tested, 2) layer and query head
    values: npt.NDArray[np.float64]  # (tested,) corrected drop
    excluded: npt.NDArray[np.bool_]  # (tested,) 0 is outside the 95 % interval
    significant: npt.NDArray[np.bool_]  # (tested,) after Benjamini-Hochberg at 5 %

    @classmethod
    def of(cls, metrics: pd.DataFrame) -> DropTests | None:
        """The tests of a table of heads; None if no head has a standard error."""
        p = p_values(metrics, "ap_drop")
        tested = ~np.isnan(p)
        if not tested.any():
            return None
        drop = corrected(metrics, "ap_drop").to_numpy(np.float64)
        return cls(
            metrics[HEAD].to_numpy(np.int64)[tested],
            drop[tested],
            (np.abs(drop) > head_half_width(metrics, "ap_drop"))[tested],
            benjamini_hochberg(p)[tested],
        )


def _mark_tests(figure: Figure, axes: Axes, tests: DropTests, drawn: AxesImage) -> None:
    """Draw dots and rings. They are white in dark cells."""
    layers, heads = drawn.get_size()
    cell = 72.0 * min(0.7 * figure.get_figheight() / layers, 0.7 * WIDTH / heads)  # points
    dot, ring = min(_DOT, 0.4 * cell), min(_RING, 0.75 * cell)  # diameters
    dark = drawn.to_rgba(tests.values) @ [0.299, 0.587, 0.114, 0.0] < 0.5  # (tested,)
    colours = np.where(dark, "white", INK)
    layer, head = tests.heads[tests.excluded].T
    axes.scatter(head, layer, s=dot**2, color=colours[tests.excluded].tolist(), linewidths=0)
    layer, head = tests.heads[tests.significant].T
    edges = colours[tests.significant].tolist()
    axes.scatter(head, layer, s=ring**2, facecolors="none", edgecolors=edges, linewidths=0.7)


def _test_legend(figure: Figure, axes: Axes, tests: DropTests) -> None:
    """Explain the marks below the axes, with the numbers of heads."""
    dot = Line2D([], [], linestyle="", marker="o", color=INK, markersize=_DOT, markeredgewidth=0)
    ring = Line2D([], [], linestyle="", marker="o", color=INK, markersize=_RING, fillstyle="none")
    excluded, significant = int(tests.excluded.sum()), int(tests.significant.sum())
    below = axes.transAxes + ScaledTranslation(0, -0.45, figure.dpi_scale_trans)
    axes.legend(
        [dot, ring],
        [
            f"{excluded:,} of {len(tests.heads):,} tested: 95 % interval without 0",
            f"{significant:,} of them: false discovery rate of 5 %",
        ],
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        borderaxespad=0,
        borderpad=0,
        handletextpad=0.2,
        fontsize=7.5,
    )


def _mark_missing(axes: Axes, grid: npt.NDArray[np.float64], sign: str) -> None:
    layer, head = np.nonzero(np.isnan(grid))
    if sign == "dashes":
        axes.scatter(head, layer, s=6, color=FAINT, marker="_", linewidths=0.7)
    else:
        axes.scatter(head, layer, s=1.5, color=QUIET, linewidths=0)


def _range(grid: npt.NDArray[np.float64], metric: str, signed: bool) -> tuple[float, float, str]:
    if signed:
        largest = float(np.nanmax(np.abs(grid))) or 1.0
        return -largest, largest, SIGNED
    if metric in (*MEAN_COLUMNS, "ap_counted", ATTENDED, ATTENDED_COUNTED, *_SHARES):
        return 0.0, 1.0, SEQUENTIAL
    return float(np.nanmin(grid)), float(np.nanmax(grid)), SEQUENTIAL
