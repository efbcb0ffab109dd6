"""Plasticity by the distances between a query and two keys, as a triangle."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.plots.shown import capitalised, phase_note, phase_sentence
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    figure_style,
    label_lines,
    new_figure,
    require_colormap,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.main_plasticity import OVER_BUCKETS
from attention_plasticity.tables.profiles import HEAD
from qk_dump.buckets import BucketGeometry
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_CELLS = 4096  # on each axis


def distances_figure(
    distances: pd.DataFrame,
    *,
    geometry: BucketGeometry | None = None,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the mean over heads of plasticity over a bucket by distance.

    Across: distance from the query to the nearer key. Up: distance between the two keys. Both are
    in buckets. Their sum is at most the number of buckets, so the values form a triangle.

    `distances` has one row per query head and pair of distances, such as `Run.distances` of a run
    with `pair_sampling="context"`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import distances_figure
        >>> run = open_run("results/context")
        >>> figure = distances_figure(run.distances)
        >>> figure.axes[0].get_xlabel()
        'distance to the nearer key (buckets)'
    """
    words = Words(**texts)
    require_colormap(cmap)
    require_values(distances, "plasticity", "the table of distances")
    values, rows, columns = _grid(distances)
    with figure_style():
        figure, axes = new_figure(height=3.3)
        mesh = axes.pcolormesh(
            np.append(columns, columns[-1] + 1) - 0.5,
            np.append(rows, rows[-1] + 1) - 0.5,
            values,
            cmap=cmap,
            vmin=0.0,
            vmax=1.0,
        )
        axes.set_xlabel(f"distance to the nearer key ({_unit(geometry)})")
        axes.set_ylabel(label_lines("distance between the keys (buckets)", 2.0))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(8, integer=True))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        bar = figure.colorbar(
            mesh, ax=axes, label=f"{OVER_BUCKETS.name},\nmean over heads", pad=0.02
        )
        bar.outline.set_visible(False)
        heads = len(distances[HEAD].drop_duplicates())
        notes = [
            f"{words.heads(heads)}, pairs of any two earlier keys of a text",
            "not corrected for bias",
            phase_note(OVER_BUCKETS),
        ]
        caption = words.caption(
            heads,
            f"{capitalised(OVER_BUCKETS.name)} by the distance from the query to the nearer key "
            "(across) and by the distance between the two keys (up), as a mean over heads.",
            phase_sentence(OVER_BUCKETS),
            correction="not corrected for bias",
            plasticity=OVER_BUCKETS,
        )
        words.write(figure, axes, f"{capitalised(OVER_BUCKETS.name)}, by distance", notes, caption)
    return figure


def _grid(distances: pd.DataFrame) -> tuple[Floats, Ints, Ints]:
    """Means over heads (between keys × to the query), and both distances in buckets."""
    grid = distances.groupby(["key_distance", "query_distance"])["plasticity"].mean().unstack()
    last_row, first, last = int(grid.index[-1]), int(grid.columns[0]), int(grid.columns[-1])
    if max(last_row, last - first) >= _MOST_CELLS:
        raise ConfigError(
            f"the table of distances: has distances of up to {max(last_row, last):,} buckets; at "
            f"most {_MOST_CELLS:,} can be drawn"
        )
    rows, columns = np.arange(last_row + 1), np.arange(first, last + 1)
    values = grid.reindex(index=rows, columns=columns).to_numpy(dtype=np.float64)
    return values, rows, columns


def _unit(geometry: BucketGeometry | None) -> str:
    """`buckets of 512 tokens` for uniform buckets, else `buckets`."""
    if geometry is not None and geometry.type == "uniform":
        return f"buckets of {geometry.min_size:,} tokens"
    return "buckets"
