"""Map of one metric of every head, layer × head."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle

from attention_plasticity.metrics import (
    ALIGNED_COUNTED,
    ALIGNED_DROP,
    CHUNKED_ATTENTION,
    FULL_ATTENTION,
    METRICS,
    SLIDING_ATTENTION,
)
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.drop_tests import LEGEND, DropTests, legend_of_tests, mark_tests
from attention_plasticity.plots.layer_rows import label_axes, layers_left_out, mark_gaps
from attention_plasticity.plots.shown import (
    NONE_AT_ONE_POSITION,
    capitalised,
    column_label,
    phase_note,
    phase_sentence,
)
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    QUIET,
    SEQUENTIAL,
    SIGNED,
    beside_axes,
    figure_style,
    figure_text,
    label_lines,
    legend_above,
    new_figure,
    require_colormap,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_columns, require_values
from attention_plasticity.tables.intervals import head_half_width, quantity_groups
from attention_plasticity.tables.layer_types import layer_types, layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DROP = "drop"
"""Metric of a map: the drop at one position."""
_AROUND, _LEGEND_ROW = 1.05, 0.3  # inches; height of the texts around a map, and of a legend
_STRIP, _SPACE = 5.0, 2.0  # points; width of the strip of layer types, space beside it
_TYPE_COLOURS = {FULL_ATTENTION: QUIET, SLIDING_ATTENTION: ORANGE, CHUNKED_ATTENTION: GREEN}


def map_figure(
    metrics: pd.DataFrame,
    *,
    metric: str | None = None,
    influences: pd.DataFrame | None = None,
    cmap: str | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    fade: bool = True,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a metric of every head. Heads that are not in the table are blank.

    The default is plasticity at one position, or over a bucket if no head has it. `metric="drop"`
    is the drop at one position over the context.
    Rows are the layers of the table; a dashed line marks layers that are left out between them. If
    their types differ, a strip at the left marks the types.
    Plasticity and shares of attention have the range 0 to 1. Signed metrics have two colours with
    zero in the middle. A dot marks a head whose 95 % interval of the drop excludes 0, and a ring
    one that is significant at a false discovery rate of 5 %. With `fade`, the heads whose interval
    of the drop contains 0 are faded. With the table of `influences` of the run, the intervals have
    the degrees of freedom of the drop, else those of the head.

    `metrics` has one row per query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import map_figure
        >>> run = open_run("results/sample")
        >>> figure = map_figure(run.head_metrics, metric="drop", influences=run.influences)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('query head', 'layer')
    """
    words = Words(**texts)
    main = main_plasticity(metrics)
    if metric == DROP:
        metric = ALIGNED_DROP
    metric = metric or main.level
    if main is OVER_BUCKETS and _settings_of(metric) is AT_ONE_POSITION:
        raise ConfigError(f"the table of heads: {NONE_AT_ONE_POSITION}")
    require_columns(metrics, [metric], "the table of heads")
    if not pd.api.types.is_numeric_dtype(metrics[metric]):
        raise ConfigError(f"metric: {metric}: holds words, not numbers; choose another column")
    require_values(metrics, metric, "the table of heads")
    is_drop = metric == ALIGNED_DROP
    tests = DropTests.of(metrics, metric, influences, fade=fade) if is_drop else None
    layers = np.unique(metrics["layer"].to_numpy(np.int64))
    grid = head_grid(metrics, metric)
    with figure_style():
        height = min(6.5, max(2.6, 1.4 + 0.085 * len(layers)))
        figure, axes = new_figure(height=height + (LEGEND if tests else 0.0))
        drawn = _draw_grid(axes, grid, metric, cmap, (vmin, vmax))
        label_axes(axes, layers)
        bar = figure.colorbar(drawn, ax=axes, pad=0.02)
        bar.outline.set_visible(False)
        sign = "dashes" if tests else "dots"
        mark_missing(axes, grid, sign)
        if tests:
            mark_tests(figure, axes, tests, drawn, layers)
            legend = legend_of_tests(figure, axes, tests)
        mark_gaps(axes, layers)
        rows = mark_types(axes, layer_types(metrics), layers)
        room = height - _AROUND - _LEGEND_ROW * rows
        bar.set_label(label_lines(figure_text(column_label(metric)), room))
        if tests and rows:  # two legends
            axes.add_artist(legend)
            legend.set_clip_on(False)
        errors = _errors(metrics, metric, influences)
        _write_words(words, figure, axes, metrics, metric, tests, errors, grid, rows)
    return figure


def head_grid(metrics: pd.DataFrame, metric: str) -> Floats:
    """(layers of the table × heads); NaN if the table has no value."""
    layers, row = np.unique(metrics["layer"].to_numpy(np.int64), return_inverse=True)
    grid = np.full((len(layers), metrics["q_head"].max() + 1), np.nan)
    grid[row, metrics["q_head"]] = metrics[metric]
    return grid


def _draw_grid(
    axes: Axes,
    grid: Floats,
    metric: str,
    cmap: str | None,
    limits: tuple[float | None, float | None],
) -> AxesImage:
    words = METRICS.get(metric)
    low, high, shades = _range(grid, metric, bool(words and words.signed))
    vmin, vmax = limits
    if vmin is not None or vmax is not None:
        low, high = low if vmin is None else vmin, high if vmax is None else vmax
        if low >= high:
            raise ConfigError(f"vmin: must be below vmax, got {low:g} and {high:g}")
    return axes.imshow(
        grid,
        cmap=require_colormap(cmap) if cmap is not None else shades,
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )


def mark_types(axes: Axes, types: dict[int, str], layers: Ints) -> int:
    """Mark the type of every layer at the left, if the types differ. Returns rows of the legend."""
    groups = layers_by_type(types)
    if len(groups) < 2:
        return 0
    others = iter((BLUE, "#cc79a7", "#56b4e9", *[INK] * len(groups)))
    colours = {name: _TYPE_COLOURS.get(name) or next(others) for name in groups}
    left = beside_axes(axes, "y")
    for row, layer in enumerate(layers):
        place = (-_SPACE - _STRIP, row - 0.5)
        colour = colours[types[int(layer)]]
        tile = Rectangle(
            place, _STRIP, 1.0, color=colour, linewidth=0, transform=left, clip_on=False
        )
        axes.add_artist(tile)
    axes.spines["left"].set_position(("outward", 2 * _SPACE + _STRIP))
    handles = [Patch(color=colour) for colour in colours.values()]
    return legend_above(axes, handles, [figure_text(type_words(name)) for name in colours])


def _write_words(
    words: Words,
    figure: Figure,
    axes: Axes,
    metrics: pd.DataFrame,
    metric: str,
    tests: DropTests | None,
    errors: tuple[str, Floats] | None,
    grid: Floats,
    legend_rows: int,
) -> None:
    missing = int(np.isnan(grid).sum())
    heads, sign = grid.size - missing, "dashes" if tests else "dots"
    label = capitalised(column_label(metric))
    shown = _shown(metric)
    layers = np.unique(metrics["layer"].to_numpy(np.int64))
    left_out, left_out_sentence = layers_left_out(layers)
    half, groups = errors or (None, None)
    notes = [
        words.heads(heads),
        f"{missing:,} without a value or not captured: {sign}" if missing else None,
        left_out,
        f"95 % interval of a head: ±{half} (median)" if half else None,
        "0: no change from start to end" if metric == ALIGNED_DROP else None,
        phase_note(shown) if shown else None,
    ]
    meaning = METRICS[metric].meaning if metric in METRICS else ""
    if shown and metric == shown.level:  # the next sentence tells how queries are compared
        meaning = meaning.partition("; ")[2]
    meaning += "; 0: no change from start to end" if metric == ALIGNED_DROP else ""
    meaning = f" ({meaning})" if meaning else ""
    caption = words.caption(
        heads,
        f"{label} of every query head, by layer and head{meaning}.",
        phase_sentence(shown) if shown else None,
        f"{sign.capitalize()} mark {missing:,} heads without a value." if missing else None,
        tests.sentences if tests else None,
        f"The 95 % interval of a head is ±{half} in the median over heads." if half else None,
        interval_sentence("The intervals come", groups) if groups is not None else None,
        left_out_sentence,
        "The strip at the left marks the types of layers." if legend_rows else None,
        plasticity=shown or _settings_of(metric),
    )
    words.write(figure, axes, f"{label} by head", notes, caption, legend_rows)


def _errors(
    metrics: pd.DataFrame, metric: str, influences: pd.DataFrame | None
) -> tuple[str, Floats] | None:
    """The median over heads of half the 95 % interval, and the groups of texts of every head.

    None if no error is known.
    """
    if f"{metric}_se" not in metrics:
        return None
    half = head_half_width(metrics, metric, influences)
    if not np.isfinite(half).any():
        return None
    groups = quantity_groups(metrics, metric, influences)  # (heads,)
    return f"{np.nanmedian(half):.2g}", groups[np.isfinite(half)]


def _shown(metric: str) -> PlasticityColumns | None:
    """Which plasticity a column is; None for another column."""
    if metric in (*AT_ONE_POSITION.all, ALIGNED_COUNTED):
        return AT_ONE_POSITION
    return OVER_BUCKETS if metric == OVER_BUCKETS.level else None


def _settings_of(metric: str) -> PlasticityColumns | None:
    """Whose settings concern another column of plasticity; None for other columns."""
    if metric not in METRICS or not metric.startswith("ap_"):
        return None
    return OVER_BUCKETS if metric == OVER_BUCKETS.level else AT_ONE_POSITION


def mark_missing(axes: Axes, grid: Floats, sign: str) -> None:
    """Mark the heads of a grid (layers, heads) that have no value."""
    layer, head = np.nonzero(np.isnan(grid))
    if sign == "dashes":
        axes.scatter(head, layer, s=6, color=FAINT, marker="_", linewidths=0.7)
    else:
        axes.scatter(head, layer, s=1.5, color=QUIET, linewidths=0)


def _range(grid: Floats, metric: str, signed: bool) -> tuple[float, float, str]:
    if signed:
        largest = float(np.nanmax(np.abs(grid))) or 1.0
        return -largest, largest, SIGNED
    if metric in METRICS and METRICS[metric].format == "share":
        return 0.0, 1.0, SEQUENTIAL
    return float(np.nanmin(grid)), float(np.nanmax(grid)), SEQUENTIAL
