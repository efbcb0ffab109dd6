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
from matplotlib.ticker import MaxNLocator

from attention_plasticity.plots.captions import Caption, interval_sentence
from attention_plasticity.plots.intervals import band, correction_note, interval_note
from attention_plasticity.plots.references import (
    Baselines,
    Reference,
    draw_references,
    known_references,
    references_reach,
    references_sentence,
)
from attention_plasticity.plots.shown import (
    capitalised,
    first_part_sentence,
    parts_of,
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
    position_axis,
    require_colormap,
)
from attention_plasticity.plots.texts import (
    draw_texts,
    texts_by_bucket,
    texts_note,
    texts_sentence,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.bin_cells import (
    bin_cells,
    bin_geometry,
    has_bins,
    quantity_of,
)
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import bucket_rows, corrected, mean_of_buckets
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, PlasticityColumns
from attention_plasticity.tables.profiles import HEAD, head_profiles, heads_with_gaps
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
    correlation of its plasticity with position. Values are corrected for bias if it is known. With
    the table of `influences` of the run, bands show 95 % intervals: of the mean, and of each head
    if there are at most 6. If the heads were sampled at random from `eligible_heads` heads, the
    interval of the mean is that of the mean over all these heads. A strip
    above the x axis has the number of texts in each bucket. Lines with bands show the means of
    `baselines`, such as `Run.baselines`.

    `cells` has one row per query head, bin of queries and bin of keys, such as `Run.bins`, or per
    query head, query bucket and key bucket, such as `Run.bucket_plasticity`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import plasticity_figure
        >>> run = open_run("results/sample")
        >>> figure = plasticity_figure(run.bins, influences=run.influences)
        >>> figure.axes[0].get_xlabel()
        'query position (tokens)'
    """
    words = Words(**texts)
    if color_by_layer and color_trend:
        raise ConfigError("color_by_layer: cannot be used together with color_trend; choose one")
    require_colormap(cmap)
    require_values(cells, "plasticity", "the table of cells")
    shown, part = parts_of(cells)
    errors = None if influences is None else bucket_rows(influences, quantity_of(cells))
    geometry = bin_geometry(cells) if has_bins(cells) else geometry
    cells = bin_cells(cells, pair_sampling)
    grid = _Grid(cells, errors, geometry, at_starts, eligible_heads)
    references = _references(baselines or {}, shown, geometry, at_starts)
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
        _axes(axes, grid, geometry, shown, references_reach(references))
        rows = _legend(axes, color_by_layer, color_trend)
        reached = texts_by_bucket(cells).reindex(grid.buckets).dropna()
        draw_texts(axes, reached, *_borders(grid, geometry, reached.index.to_numpy()))
        colours = "layer" if color_by_layer else "trend with position" if color_trend else None
        notes = [*_notes(words, cells, grid, reached, part), phase_note(shown)]
        told = references_sentence(references, baselines or {})
        caption = _caption(words, cells, grid, reached, colours, shown, told)
        words.write(figure, axes, capitalised(shown.name), notes, caption, rows)
    return figure


def _references(
    baselines: Baselines,
    shown: PlasticityColumns,
    geometry: BucketGeometry | None,
    at_starts: bool,
) -> list[Reference]:
    """The means over heads of the baselines, in the bins or buckets of the figure."""
    found = []
    for words, run in baselines.items():
        in_bins = shown is AT_ONE_POSITION
        if in_bins and not run.has_bins:
            continue
        table = run.bins if in_bins else run.bucket_plasticity
        errors = None if run.influences is None else bucket_rows(run.influences, quantity_of(table))
        cells = bin_cells(table, run.pair_sampling)
        grid = _Grid(cells, errors, geometry, at_starts, run.eligible_heads)
        found.append(Reference(words, grid.mean_x, grid.mean, grid.mean_half))
    return known_references(found)


def _notes(
    words: Words, cells: pd.DataFrame, grid: _Grid, reached: pd.Series[float], part: str
) -> list[str | None]:
    gaps = heads_with_gaps(cells)
    return [
        words.heads(len(grid.heads)),
        f"{gaps:,} of them have cells without key pairs, left as gaps" if gaps else None,
        correction_note(cells, "plasticity"),
        interval_note("band", grid.mean_half, grid.eligible),
        _width_of_a_head(grid),
        texts_note(reached, part),
    ]


def _caption(
    words: Words,
    cells: pd.DataFrame,
    grid: _Grid,
    reached: pd.Series[float],
    colours: str | None,
    shown: PlasticityColumns,
    references: str | None,
) -> Caption:
    known = np.isfinite(grid.mean_half)
    sentence = interval_sentence(
        "The band is the 95 % interval of the mean,",
        grid.groups,
        complete=bool(known.all()),
        eligible=grid.eligible,
    )
    return words.caption(
        len(grid.heads),
        f"{capitalised(shown.name)}, by query position: one line per head"
        + (f", coloured by {colours}, " if colours else " ")
        + "and the mean over heads (black).",
        phase_sentence(shown),
        first_part_sentence(cells, "bin" if shown is AT_ONE_POSITION else "bucket"),
        sentence if known.any() else None,
        references,
        texts_sentence(reached, "bin" if shown is AT_ONE_POSITION else "query bucket"),
        correction=correction_note(cells, "plasticity"),
        plasticity=shown,
    )


class _Grid:
    """Values and x positions, heads × query buckets."""

    def __init__(
        self,
        cells: pd.DataFrame,
        errors: pd.DataFrame | None,
        geometry: BucketGeometry | None,
        at_starts: bool,
        eligible: int | None,
    ):
        self.eligible = eligible  # heads from which the heads were sampled at random, or None
        profiles = head_profiles(cells.assign(plasticity=corrected(cells, "plasticity")))
        values = profiles.pivot(index=HEAD, columns="q_bucket", values="plasticity")
        self.heads = values.index.to_frame(index=False)
        self.buckets = values.columns.to_numpy()
        self.values: Floats = values.to_numpy(dtype=np.float64)  # (heads, buckets)
        self.from_table = "q_position" in profiles and not at_starts
        if self.from_table:
            positions = profiles.pivot(index=HEAD, columns="q_bucket", values="q_position")
            self.x: Floats = positions.to_numpy(dtype=np.float64)  # (heads, buckets)
        else:
            starts = geometry.starts(self.buckets) if geometry else self.buckets
            self.x = np.broadcast_to(starts.astype(np.float64), self.values.shape)
        known = ~np.isnan(self.values)
        self.mean: Floats = _column_mean(self.values, known)
        self.mean_x: Floats = _column_mean(self.x, known)
        self.half: Floats = np.full(self.values.shape, np.nan)  # (heads, buckets)
        self.mean_half: Floats = np.full(len(self.buckets), np.nan)  # (buckets,)
        self.groups: Floats = np.empty(0)  # (buckets,) groups of texts behind the mean
        if errors is not None:
            self._add_intervals(profiles, errors.drop(columns=["value", "bias"]))

    def _add_intervals(self, profiles: pd.DataFrame, errors: pd.DataFrame) -> None:
        """Half widths of the intervals of the drawn heads and of their mean."""
        drawn = profiles[[*HEAD, "q_bucket"]].assign(value=profiles["plasticity"], bias=0.0)
        rows = drawn.merge(errors, on=[*HEAD, "q_bucket"], how="left")
        half = rows.pivot(index=HEAD, columns="q_bucket", values="half_width")
        self.half = half.to_numpy(dtype=np.float64)
        mean = mean_of_buckets(rows, self.eligible).set_index("q_bucket").reindex(self.buckets)
        self.mean_half = mean["half_width"].to_numpy(dtype=np.float64)
        self.groups = mean["n_groups"].to_numpy(dtype=np.float64)


def _column_mean(values: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _traces(x: Floats, values: Floats, **options: Any) -> LineCollection:
    """One line per head. It has a gap at NaN, and skips buckets that the head does not have."""
    paths = []
    for head_x, head_values in zip(x, values, strict=True):
        known = ~np.isnan(head_x)
        paths.append(np.column_stack([head_x[known], head_values[known]]))
    return LineCollection(paths, **options)


def _draw_mean(axes: Axes, grid: _Grid) -> None:
    """Draw the mean and its interval.

    The band has a white ground, so that it is distinct from the lines of heads.
    """
    x, y, half = grid.mean_x, grid.mean, grid.mean_half
    known = bool(np.isfinite(half).any())
    width = 1.2 if known else 1.8
    axes.plot(x, y, color=INK, linewidth=width, zorder=2.2, label="mean over heads")
    band(axes, x, y, half, color="white", alpha=0.75, zorder=2.1)
    band(axes, x, y, half, color=INK, alpha=0.35, zorder=2.1, label="95 % interval")


def _head_bands(axes: Axes, grid: _Grid, lines: LineCollection) -> None:
    """Draw the interval of every head, if there are few heads."""
    if len(grid.heads) > _MOST_BANDS:
        return
    colours = np.broadcast_to(lines.get_color(), (len(grid.heads), 4))  # rgba
    for x, y, half, colour in zip(grid.x, grid.values, grid.half, colours, strict=True):
        known = ~np.isnan(x)
        band(axes, x[known], y[known], half[known], color=colour, alpha=0.18)


def _width_of_a_head(grid: _Grid) -> str | None:
    if len(grid.heads) <= _MOST_BANDS or np.isnan(grid.half).all():
        return None
    return f"95 % interval of one head: ± {np.nanmedian(grid.half):.3f} (median)"


def _axes(
    axes: Axes,
    grid: _Grid,
    geometry: BucketGeometry | None,
    shown: PlasticityColumns,
    others: Floats,
) -> None:
    """Set up both axes; `others` are values that are drawn beside those of heads."""
    axes.autoscale_view()
    reach = np.nan_to_num(grid.half) if len(grid.heads) <= _MOST_BANDS else 0.0
    plasticity_axis(axes, shown.name, grid.values - reach, grid.values + reach, others)
    if grid.from_table or geometry is not None:
        log = geometry is not None and geometry.type == "log"
        position_axis(axes, grid.x[np.isfinite(grid.x)], log)
    else:
        axes.set_xlabel("query bucket")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


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


def _borders(
    grid: _Grid, geometry: BucketGeometry | None, buckets: npt.NDArray[Any]
) -> tuple[Floats, Floats]:
    """Left and right border of buckets on the x axis: as captured, or halfway between points."""
    if geometry is not None:
        return (
            geometry.starts(buckets).astype(np.float64),
            geometry.ends(buckets).astype(np.float64) + 1.0,
        )
    x = grid.mean_x[np.isin(grid.buckets, buckets)]
    if len(x) < 2:
        return x - 0.5, x + 0.5
    halves = 0.5 * (x[1:] + x[:-1])
    edges = np.concatenate([[2 * x[0] - halves[0]], halves, [2 * x[-1] - halves[-1]]])
    return edges[:-1], edges[1:]


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
