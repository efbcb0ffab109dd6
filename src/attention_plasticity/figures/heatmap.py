"""Plasticity by query position and key position, over heads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.figures.captions import capitalised
from attention_plasticity.figures.compose import Layout
from attention_plasticity.figures.draw import Drawing, Request
from attention_plasticity.figures.marks import Hatched
from attention_plasticity.figures.over_context import cells_of, first_part
from attention_plasticity.figures.shapes import Bar, Floats, Grid
from attention_plasticity.figures.style import SEQUENTIAL, Axis, bucket_ticks, whole
from attention_plasticity.metrics import HEAD
from attention_plasticity.read.layout import MOST_BUCKETS
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.profiles import bin_geometry, heads_with_gaps
from qk_dump.positions import BucketGeometry
from qk_toolkit.formatting import count

Ints = npt.NDArray[np.int64]


def heatmap(request: Request) -> Drawing:
    """Every cell of query position and key position; a panel per type of layers."""
    cells, shown = cells_of(request)
    run, options = request.run, request.options
    geometry = bin_geometry(run.table("bins")) if shown is AT_ONE_POSITION else run.geometry
    known_cells = cells[cells["plasticity"].notna()]
    queries, keys = (_buckets(known_cells[f"{kind}_bucket"]) for kind in "qk")
    parts = _parts(request, cells)
    grids = [_cell_grid(part, queries, keys, options.agg) for part in parts.values()]
    known = np.concatenate([values[np.isfinite(values)] for values, _ in grids])
    ends = (0.0, 1.0) if options.range == "unit" else (float(known.min()), float(known.max()))
    low, high = request.colour_limits(*ends)
    label = f"{shown.name}, {options.agg} over heads"
    bar = Bar(label, low, high, request.cmap(SEQUENTIAL))
    x = _axis(queries, geometry, "query", len(parts))
    y = _axis(keys, geometry, "key", len(parts))
    panels, fewest = [], []
    for (name, part), (values, heads) in zip(parts.items(), grids, strict=True):
        number = len(part[HEAD].drop_duplicates())
        some = (heads > 0) & (heads < number)
        fewest += heads[some].tolist()
        title = f"{type_words(name)}\n{count(number, 'head')}" if len(parts) > 1 else ""
        marks = [Hatched(some.T)]
        panels.append(Grid(values.T, x, y, bar, equal=True, marks=marks, title=title))
    gaps = heads_with_gaps(cells)
    some_only = f"hatched: means over some heads only, at least {min(fewest, default=0):.0f}"
    panel = " Types of layers have panels of their own." if len(parts) > 1 else ""
    wide = 1.4 if options.width == "text" else 1.0
    return Drawing(
        panels,
        len(cells[HEAD].drop_duplicates()),
        [
            f"{count(gaps, 'head')} with cells without a value, left out" if gaps else None,
            some_only if fewest else None,
        ],
        f"{capitalised(shown.name)}, query × key",
        f"{capitalised(label)}, by query position and key position.{panel}",
        [
            f"Colours range from {low:.3g} to {high:.3g}.",
            "Keys after their query have no cell.",
            first_part(cells, "bin" if shown is AT_ONE_POSITION else "bucket"),
        ],
        shown=shown,
        layout=Layout(height=wide * (2.4 if len(parts) == 1 else 1.75), share_y=True, least=1.6),
    )


def _parts(request: Request, cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The cells of the layers of each type, if several types have values."""
    run = request.run
    groups = layers_by_type(run.layer_types) if run.has("head_metrics") else {}
    parts = {name: cells[cells["layer"].isin(layers)] for name, layers in groups.items()}
    parts = {name: part for name, part in parts.items() if part["plasticity"].notna().any()}
    return parts if len(parts) > 1 else {"": cells}


def _axis(buckets: Ints, geometry: BucketGeometry | None, name: str, panels: int) -> Axis:
    limit, first = 6 if panels == 1 else 3, int(buckets[0])
    ends = (-0.5, len(buckets) - 0.5)
    if geometry is not None:
        edges = [*geometry.starts(buckets), int(geometry.ends(buckets)[-1]) + 1]
        ticks = bucket_ticks([whole(edge) for edge in edges], limit + 1, -0.5, first)
        return Axis(f"{name} position (tokens)", *ends, ticks=ticks)
    ticks = bucket_ticks([whole(bucket) for bucket in buckets], limit, 0.0, first)
    return Axis(f"{name} bucket", *ends, ticks=ticks)


def _buckets(known: pd.Series) -> Ints:
    """All buckets from the first to the last. If these are too many, those that have a cell."""
    buckets = np.unique(known.to_numpy(np.int64))
    if buckets[-1] - buckets[0] < MOST_BUCKETS:
        return np.arange(buckets[0], buckets[-1] + 1)
    return buckets


def _cell_grid(cells: pd.DataFrame, queries: Ints, keys: Ints, agg: str) -> tuple[Floats, Floats]:
    """(query buckets × key buckets) values, and numbers of heads with a value."""
    grouped = cells.dropna(subset="plasticity").groupby(["q_bucket", "k_bucket"])["plasticity"]
    found = grouped.agg([agg, "count"]).reset_index()
    values, heads = (
        found.pivot(index="q_bucket", columns="k_bucket", values=name)
        .reindex(index=queries, columns=keys)
        .to_numpy(np.float64)
        for name in (agg, "count")
    )
    return values, heads
