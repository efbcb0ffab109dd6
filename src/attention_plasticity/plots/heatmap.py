"""Plasticity by query position and key position, over heads. Types of layers have own panels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attention_plasticity.plots.settings import Agg, ColorRange, require_order
from attention_plasticity.plots.shown import (
    capitalised,
    first_part_sentence,
    parts_of,
    phase_note,
    phase_sentence,
)
from attention_plasticity.plots.style import (
    INK,
    SEQUENTIAL,
    WIDTH,
    bucket_ticks,
    figure_style,
    figure_text,
    new_figure,
    require_colormap,
    whole,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.read.layout import MOST_BUCKETS
from attention_plasticity.tables.bin_cells import bin_cells, bin_geometry, has_bins
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, PlasticityColumns
from attention_plasticity.tables.profiles import HEAD, heads_with_gaps
from qk_dump.buckets import BucketGeometry
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ACROSS = 2  # panels in a row
_HATCH = "/////"


def heatmap_figure(
    cells: pd.DataFrame,
    *,
    geometry: BucketGeometry | None = None,
    layer_types: Mapping[int, str] | None = None,
    agg: Agg = "mean",
    cmap: str = SEQUENTIAL,
    color_range: ColorRange = "data",
    vmin: float | None = None,
    vmax: float | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the mean or median over heads of every cell: query position by key position.

    The table of bins gives plasticity at one position, the table of cells plasticity over a bucket.
    Layers of several types (`layer_types`: layer → type) are drawn in panels of their own. A cell
    with values of fewer heads than its panel is hatched. Ticks are at the starts of buckets, or at
    mean positions if the `geometry` is not known. Cells with keys after the query, and cells
    without values, are blank; bins and buckets without any value are left out. Colours range over
    the values that are drawn, or from 0 to 1 (`color_range="unit"`); `vmin` and `vmax` have
    priority.

    `cells` has one row per query head, bin of queries and bin of keys, such as
    `Run.table("bins")`, or per
    query head, query bucket and key bucket, such as `Run.bucket_plasticity`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import heatmap_figure
        >>> run = open_run("results/sample")
        >>> figure = heatmap_figure(run.table("bins"))
        >>> figure.axes[0].get_xlabel()
        'query position, from (tokens)'
    """
    words = Words(**texts)
    require_colormap(cmap)
    require_values(cells, "plasticity", "the table of cells")
    shown, _ = parts_of(cells)
    geometry = bin_geometry(cells) if has_bins(cells) else geometry
    cells = bin_cells(cells)
    buckets = all_buckets(cells[cells["plasticity"].notna()])
    panels = _panels(cells, buckets, agg, layer_types)
    low, high = _limits(panels, color_range, vmin, vmax)
    with figure_style():
        figure, grid = _layout(len(panels))
        for number, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
            mesh = _draw_panel(axes, panel, {"cmap": cmap, "vmin": low, "vmax": high})
            _label_axes(axes, cells, buckets, geometry, small=len(panels) > 1)
            if len(panels) > 1:
                _label_panel(axes, panel, number, len(panels))
        label = f"{shown.name},\n{agg} over heads"
        if color_range == "data" and vmin is None and vmax is None:
            label += "\n(range of the data)" if len(panels) > 1 else " (range of the data)"
        bar = figure.colorbar(mesh, ax=grid, label=label, pad=0.02)
        bar.outline.set_visible(False)
        _write_words(words, figure, grid, panels, cells, agg, shown, (low, high))
    return figure


@dataclass(frozen=True)
class _Panel:
    """The cells of the layers of one type."""

    values: Floats  # (query buckets, key buckets)
    counts: Ints  # (query buckets, key buckets) heads with a value
    heads: int
    layer_type: str | None

    @property
    def title(self) -> str:
        words = figure_text(type_words(self.layer_type or ""))
        return f"{words}, {count(self.heads, 'head')}"

    @property
    def partial(self) -> npt.NDArray[np.bool_]:
        """Cells with some of the heads."""
        return (self.counts > 0) & (self.counts < self.heads)


def _panels(
    cells: pd.DataFrame, buckets: Ints, agg: Agg, types: Mapping[int, str] | None
) -> list[_Panel]:
    present = set(cells["layer"].tolist())
    known = {layer: name for layer, name in (types or {}).items() if layer in present}
    parts = {
        name: cells[cells["layer"].isin(layers)] for name, layers in layers_by_type(known).items()
    }
    parts = {name: part for name, part in parts.items() if part["plasticity"].notna().any()}
    if len(parts) < 2:
        return [_panel(cells, buckets, agg, None)]
    return [_panel(part, buckets, agg, name) for name, part in parts.items()]


def _panel(cells: pd.DataFrame, buckets: Ints, agg: Agg, layer_type: str | None) -> _Panel:
    values, counts = cell_grid(cells, buckets, agg)
    return _Panel(values, counts, len(cells[HEAD].drop_duplicates()), layer_type)


def _limits(
    panels: list[_Panel], color_range: ColorRange, vmin: float | None, vmax: float | None
) -> tuple[float, float]:
    """Values of the first and the last colour, which all panels share."""
    low, high = 0.0, 1.0
    if color_range == "data":
        low = min(float(np.nanmin(panel.values)) for panel in panels)
        high = max(float(np.nanmax(panel.values)) for panel in panels)
    low, high = low if vmin is None else vmin, high if vmax is None else vmax
    if low == high and vmin is None and vmax is None:  # one value
        return low - 0.01, high + 0.01
    try:
        require_order(low, high)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return low, high


def _layout(panels: int) -> tuple[Figure, list[Axes]]:
    """A figure with one square per panel, two in a row."""
    if panels == 1:
        figure, axes = new_figure(height=3.5)
        return figure, [axes]
    rows = -(-panels // _ACROSS)
    size = (WIDTH, 1.1 + 1.75 * rows)
    figure, grid = new_figure(*size, nrows=rows, ncols=_ACROSS, squeeze=False)
    figure.set_layout_engine("compressed")  # for axes with a fixed aspect
    flat = list(grid.flat)
    for unused in flat[panels:]:
        unused.remove()
    return figure, flat[:panels]


def _draw_panel(axes: Axes, panel: _Panel, colours: dict[str, Any]) -> QuadMesh:
    """Draw the cells, and hatch those with fewer heads."""
    edges = np.arange(len(panel.values) + 1) - 0.5
    mesh = axes.pcolormesh(edges, edges, panel.values.T, **colours)
    axes.set_aspect("equal")
    tiles = [Rectangle((q - 0.5, k - 0.5), 1, 1) for q, k in np.argwhere(panel.partial)]
    if tiles:
        axes.add_collection(
            PatchCollection(
                tiles, facecolor="none", edgecolor=INK, hatch=_HATCH, linewidth=0.0, alpha=0.6
            )
        )
    return mesh


def _label_panel(axes: Axes, panel: _Panel, number: int, panels: int) -> None:
    """Write the title of a panel, and keep the labels of the outer axes only."""
    axes.set_title(panel.title.replace(", ", "\n"), fontsize=8.5, fontweight="normal")
    if number + _ACROSS < panels:
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)
    if number % _ACROSS:
        axes.set_ylabel("")
        axes.tick_params(labelleft=False)


def _label_axes(
    axes: Axes,
    cells: pd.DataFrame,
    buckets: Ints,
    geometry: BucketGeometry | None,
    small: bool,
) -> None:
    for axis, side in ((axes.xaxis, "q"), (axes.yaxis, "k")):
        name = "query" if side == "q" else "key"
        limit = 7 if not small else 3 if side == "q" else 4
        means = None if geometry else mean_positions(cells, buckets, side)
        if geometry is not None:
            axis.set_label_text(f"{name} position" + ("" if small else ", from (tokens)"))
            bucket_ticks(axis, [whole(start) for start in geometry.starts(buckets)], limit)
        elif means is not None:
            axis.set_label_text(f"mean {name} position" + ("" if small else " (tokens)"))
            bucket_ticks(axis, [whole(mean) for mean in means], limit, shift=0.0)
        else:
            axis.set_label_text(f"{name} bucket")
            bucket_ticks(axis, [whole(bucket) for bucket in buckets], limit, shift=0.0)


def _write_words(
    words: Words,
    figure: Figure,
    grid: list[Axes],
    panels: list[_Panel],
    cells: pd.DataFrame,
    agg: Agg,
    shown: PlasticityColumns,
    colours: tuple[float, float],
) -> None:
    heads, gaps = sum(panel.heads for panel in panels), heads_with_gaps(cells)
    fewest = min(
        (int(panel.counts[panel.partial].min()) for panel in panels if panel.partial.any()),
        default=None,
    )
    all_heads = f"{panels[0].heads:,} heads" if len(panels) == 1 else "all heads of the panel"
    hatched = f"cells with fewer than {all_heads}, at least {fewest:,}" if fewest else None
    notes = [
        words.heads(heads),
        f"{gaps:,} of them have cells without a value, left out" if gaps else None,
        f"hatched: {hatched}" if hatched else None,
        "positions in tokens" if len(panels) > 1 else None,
        phase_note(shown),
    ]
    parts_of_table = "bin" if shown is AT_ONE_POSITION else "bucket"
    shows = f"{capitalised(shown.name)}, by query position and key position, {agg} over heads."
    if len(panels) > 1:
        parts = "; ".join(panel.title for panel in panels)
        shows += f" Types of layers have panels of their own ({parts})."
    caption = words.caption(
        heads,
        shows,
        phase_sentence(shown),
        f"Colours range from {colours[0]:.3g} to {colours[1]:.3g}.",
        "Keys after their query have no cell.",
        first_part_sentence(cells, parts_of_table),
        f"Hatched: {hatched}." if hatched else None,
        plasticity=shown,
    )
    title = f"{capitalised(shown.name)}, query × key"
    words.write(figure, grid[0] if len(panels) == 1 else None, title, notes, caption)


def all_buckets(cells: pd.DataFrame) -> Ints:
    """All buckets from the first to the last. If these are too many, those that have a cell."""
    seen = pd.concat([cells["q_bucket"], cells["k_bucket"]])
    buckets = np.unique(seen.to_numpy(dtype=np.int64))
    if buckets[-1] - buckets[0] < MOST_BUCKETS:
        return np.arange(buckets[0], buckets[-1] + 1)
    return buckets


def cell_grid(cells: pd.DataFrame, buckets: Ints, agg: Agg) -> tuple[Floats, Ints]:
    """(query buckets × key buckets) values, and numbers of heads with a value."""
    grouped = cells[cells["plasticity"].notna()].groupby(["q_bucket", "k_bucket"])["plasticity"]
    found = grouped.mean() if agg == "mean" else grouped.median()
    where = np.searchsorted(buckets, found.index.to_frame().to_numpy())  # (cells, 2)
    values = np.full((len(buckets), len(buckets)), np.nan)
    values[where[:, 0], where[:, 1]] = found.to_numpy()
    counts = np.zeros(values.shape, np.int64)
    counts[where[:, 0], where[:, 1]] = grouped.count().to_numpy()
    return values, counts


def mean_positions(cells: pd.DataFrame, buckets: Ints, side: str) -> Floats | None:
    """(buckets,) mean position of the queries (`q`) or keys (`k`) of every bucket; None if unknown.

    A bucket without queries has the mean of its keys, and the reverse.
    """
    other = "k" if side == "q" else "q"
    found = pd.Series(dtype=np.float64)
    for one in (side, other):
        if f"{one}_position" in cells:
            means = cells.groupby(f"{one}_bucket")[f"{one}_position"].mean()
            found = found.combine_first(means) if len(found) else means
    places = np.asarray(found.reindex(buckets), np.float64)
    return None if np.isnan(places).any() else places
