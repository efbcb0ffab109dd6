"""Plasticity by query position and key position, over all heads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.limits import MOST_BUCKETS
from attention_plasticity.plots.intervals import correction_note
from attention_plasticity.plots.settings import Agg
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    bucket_ticks,
    figure_style,
    footnote,
    headline,
    new_figure,
    require_colormap,
    whole,
)
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import corrected
from attention_plasticity.tables.profiles import HEAD, heads_with_gaps
from qk_dump.buckets import BucketGeometry
from qk_toolkit.errors import ConfigError


def heatmap_figure(
    cells: pd.DataFrame,
    *,
    geometry: BucketGeometry | None = None,
    agg: Agg = "mean",
    cmap: str = SEQUENTIAL,
    vmin: float | None = 0.0,
    vmax: float | None = 1.0,
    title: str | None = None,
    model_name: str | None = None,
) -> Figure:
    """Draw the mean or median over heads of every (query bucket, key bucket) cell.

    Ticks are at the starts of buckets. Cells with keys after the query, and cells without values,
    are blank. Values are corrected for bias if it is known.
    """
    require_colormap(cmap)
    if vmin is not None and vmax is not None and vmin >= vmax:
        raise ConfigError(f"vmin: must be below vmax, got {vmin} and {vmax}")
    require_values(cells, "plasticity", "the table of cells")
    drawn = cells.assign(plasticity=corrected(cells, "plasticity"))
    values, buckets = cell_grid(drawn, agg)
    with figure_style():
        figure, axes = new_figure(height=3.5)
        edges = np.arange(len(buckets) + 1) - 0.5
        mesh = axes.pcolormesh(edges, edges, values.T, cmap=cmap, vmin=vmin, vmax=vmax)
        axes.set_aspect("equal")
        labels = bucket_labels(buckets, geometry)
        bucket_ticks(axes.xaxis, labels)
        bucket_ticks(axes.yaxis, labels)
        unit = "position, from (tokens)" if geometry else "bucket"
        axes.set_xlabel(f"query {unit}")
        axes.set_ylabel(f"key {unit}")
        bar = figure.colorbar(mesh, ax=axes, label=f"plasticity, {agg} over heads", pad=0.02)
        bar.outline.set_visible(False)
        headline(axes, title, "Plasticity by distance", model_name)
        heads, gaps = len(cells[HEAD].drop_duplicates()), heads_with_gaps(cells)
        footnote(
            figure,
            f"{heads:,} heads",
            f"{gaps:,} of them have cells without key pairs, left out" if gaps else None,
            correction_note(cells, "plasticity"),
        )
    return figure


def cell_grid(
    cells: pd.DataFrame, agg: Agg
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """(query buckets × key buckets), and all buckets from the first to the last.

    If these are too many, only the buckets that have a cell.
    """
    grouped = cells.groupby(["q_bucket", "k_bucket"])["plasticity"]
    found = grouped.mean() if agg == "mean" else grouped.median()
    seen = pd.concat([cells["q_bucket"], cells["k_bucket"]])
    buckets = np.unique(seen.to_numpy(dtype=np.int64))
    if buckets[-1] - buckets[0] < MOST_BUCKETS:
        buckets = np.arange(buckets[0], buckets[-1] + 1)
    grid = np.full((len(buckets), len(buckets)), np.nan)
    where = np.searchsorted(buckets, found.index.to_frame().to_numpy())  # (cells, 2)
    grid[where[:, 0], where[:, 1]] = found.to_numpy()
    return grid, buckets


def bucket_labels(buckets: npt.NDArray[np.int64], geometry: BucketGeometry | None) -> list[str]:
    """The start position of each bucket, or its number if the geometry is not known."""
    return [whole(start) for start in (geometry.starts(buckets) if geometry else buckets)]
