"""Plasticity over the context: one line per head, and the mean."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attention_plasticity.plots.captions import Caption
from attention_plasticity.plots.intervals import band
from attention_plasticity.plots.profile_grid import ProfileGrid
from attention_plasticity.plots.references import (
    Baselines,
    draw_references,
    references_reach,
    references_sentence,
)
from attention_plasticity.plots.shown import (
    capitalised,
    first_part_sentence,
    phase_note,
    phase_sentence,
)
from attention_plasticity.plots.style import (
    BLUE,
    INK,
    QUIET,
    SEQUENTIAL,
    VERMILION,
    figure_style,
    layer_bar,
    legend_above,
    line_shades,
    new_figure,
    plasticity_axis,
    require_colormap,
)
from attention_plasticity.plots.texts import texts_note, texts_sentence
from attention_plasticity.plots.words import TextOptions, Words
from qk_dump.buckets import BucketGeometry
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_MOST_BANDS = 6  # heads that are drawn with a band each
_TREND_COLOURS = {"rising": BLUE, "falling": VERMILION, "neither": QUIET}


def plasticity_figure(
    cells: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    geometry: BucketGeometry | None = None,
    pair_sampling: str | None = None,
    at_starts: bool = False,
    eligible_heads: int | None = None,
    baselines: Baselines | None = None,
    color_by_layer: bool = False,
    color_trend: bool = False,
    trend_threshold: float = 0.5,
    alpha: float | None = None,
    line_width: float = 0.6,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the plasticity of every head per bin or query bucket, and the mean over heads.

    The table of bins gives plasticity at one position, the table of cells plasticity over a bucket.
    A point is at the mean query position of its bucket, or at the start of the bucket with
    `at_starts` and for tables without positions. `color_trend` colours a head by the rank
    correlation of its plasticity with position. With the table of `influences` of the run, bands
    show 95 % intervals of bins: of the mean, and of each head if there are at most 6. Buckets have
    no errors. If the heads were sampled at random from `eligible_heads` heads, the interval of the
    mean is that of the mean over all these heads. A strip above the x axis has the number of texts
    in each bin or bucket. Lines with bands show the means of `baselines`, such as `Run.baselines`.

    `cells` has one row per query head, bin of queries and bin of keys, such as
    `Run.table("bins")`, or per
    query head, query bucket and key bucket, such as `Run.bucket_plasticity`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import plasticity_figure
        >>> run = open_run("results/sample")
        >>> figure = plasticity_figure(run.table("bins"), influences=run.influences)
        >>> figure.axes[0].get_xlabel()
        'query position (tokens)'
    """
    words = Words(**texts)
    if color_by_layer and color_trend:
        raise ConfigError("color_by_layer: cannot be used together with color_trend; choose one")
    require_colormap(cmap)
    grid = ProfileGrid(cells, influences, geometry, pair_sampling, at_starts, eligible_heads)
    references = grid.references(baselines or {})
    with figure_style():
        figure, axes = new_figure()
        opacity = alpha if alpha is not None else min(0.7, 0.3 + 6.0 / len(grid.heads))
        lines = _traces(grid.x, grid.values, linewidth=line_width, alpha=opacity)
        axes.add_collection(lines)
        if color_by_layer:
            _colour_by_layer(figure, axes, lines, grid.heads["layer"].to_numpy(), cmap)
        elif color_trend:
            _colour_by_trend(axes, lines, grid.values, trend_threshold)
        else:
            lines.set_color(BLUE)
        _draw_mean(axes, grid)
        _head_bands(axes, grid, lines)
        draw_references(axes, references)
        _axes(axes, grid, references_reach(references))
        rows = _legend(axes, color_by_layer, color_trend)
        grid.draw_texts(axes)
        colours = "layer" if color_by_layer else "trend with position" if color_trend else None
        notes = [
            words.heads(len(grid.heads)),
            grid.gaps_note,
            grid.interval_note,
            _width_of_a_head(grid),
            texts_note(grid.texts, grid.part),
            phase_note(grid.shown),
        ]
        told = references_sentence(references, baselines or {})
        caption = _caption(words, grid, colours, told)
        words.write(figure, axes, capitalised(grid.shown.name), notes, caption, rows)
    return figure


def _caption(
    words: Words, grid: ProfileGrid, colours: str | None, references: str | None
) -> Caption:
    return words.caption(
        len(grid.heads),
        f"{capitalised(grid.shown.name)}, by query position: one line per head"
        + (f", coloured by {colours}, " if colours else " ")
        + "and the mean over heads (black).",
        phase_sentence(grid.shown),
        first_part_sentence(grid.cells, grid.part),
        grid.interval_sentence,
        references,
        texts_sentence(grid.texts, grid.part),
        plasticity=grid.shown,
    )


def _traces(x: Floats, values: Floats, **options: Any) -> LineCollection:
    """One line per head. It has a gap at NaN, and skips buckets that the head does not have."""
    paths = []
    for head_x, head_values in zip(x, values, strict=True):
        known = ~np.isnan(head_x)
        paths.append(np.column_stack([head_x[known], head_values[known]]))
    return LineCollection(paths, **options)


def _draw_mean(axes: Axes, grid: ProfileGrid) -> None:
    """Draw the mean and its interval.

    The band has a white ground, so that it is distinct from the lines of heads.
    """
    x, y, half = grid.mean_x, grid.mean, grid.mean_half
    known = bool(np.isfinite(half).any())
    width = 1.2 if known else 1.8
    axes.plot(x, y, color=INK, linewidth=width, zorder=2.2, label="mean over heads")
    band(axes, x, y, half, color="white", alpha=0.75, zorder=2.1)
    band(axes, x, y, half, color=INK, alpha=0.35, zorder=2.1, label="95 % interval")


def _head_bands(axes: Axes, grid: ProfileGrid, lines: LineCollection) -> None:
    """Draw the interval of every head, if there are few heads."""
    if len(grid.heads) > _MOST_BANDS:
        return
    colours = np.broadcast_to(lines.get_color(), (len(grid.heads), 4))  # rgba
    for x, y, half, colour in zip(grid.x, grid.values, grid.half, colours, strict=True):
        known = ~np.isnan(x)
        band(axes, x[known], y[known], half[known], color=colour, alpha=0.18)


def _width_of_a_head(grid: ProfileGrid) -> str | None:
    if len(grid.heads) <= _MOST_BANDS or np.isnan(grid.half).all():
        return None
    return f"95 % interval of one head: ± {np.nanmedian(grid.half):.3f} (median)"


def _axes(axes: Axes, grid: ProfileGrid, others: Floats) -> None:
    """Set up both axes; `others` are values that are drawn beside those of heads."""
    axes.autoscale_view()
    reach = np.nan_to_num(grid.half) if len(grid.heads) <= _MOST_BANDS else 0.0
    plasticity_axis(axes, grid.shown.name, grid.values - reach, grid.values + reach, others)
    grid.position_axis(axes)


def _colour_by_layer(
    figure: Figure, axes: Axes, lines: LineCollection, layers: Floats, cmap: str
) -> None:
    shades = ScalarMappable(
        Normalize(layers.min(), max(layers.max(), layers.min() + 1)), line_shades(cmap)
    )
    lines.set_color(list(map(tuple, shades.to_rgba(layers))))
    layer_bar(figure, shades, axes, layers)


def _colour_by_trend(axes: Axes, lines: LineCollection, values: Floats, threshold: float) -> None:
    trends = [trend_of(row, threshold) for row in values]
    lines.set_color([_TREND_COLOURS[trend] for trend in trends])
    for trend, colour in _TREND_COLOURS.items():
        label = f"{trend} ({trends.count(trend):,})"
        axes.add_line(Line2D([], [], color=colour, linewidth=1.2, label=label))


def _legend(axes: Axes, color_by_layer: bool, color_trend: bool) -> int:
    """Draw the legend above the axes. Returns its number of rows."""
    handles, labels = axes.get_legend_handles_labels()
    if not (color_by_layer or color_trend):
        handles.insert(0, Line2D([], [], color=BLUE, linewidth=1.0, alpha=0.7))
        labels.insert(0, "a head")
    return legend_above(axes, handles, labels, colour_bar=color_by_layer)


def trend_of(values: Floats, threshold: float) -> str:
    """`rising`, `falling` or `neither`, by the Spearman correlation with the bucket order."""
    known = values[~np.isnan(values)]
    if len(known) < 3 or np.ptp(known) == 0:
        return "neither"
    ranks = pd.Series(known).rank()
    correlation = float(np.corrcoef(np.arange(len(known)), ranks)[0, 1])
    if abs(correlation) < threshold:
        return "neither"
    return "rising" if correlation > 0 else "falling"
