"""Plasticity over the context: the mean over heads, with the spread over heads."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

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
    figure_style,
    legend_above,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.plots.texts import texts_note, texts_sentence
from attention_plasticity.plots.words import TextOptions, Words
from qk_dump.buckets import BucketGeometry

Floats = npt.NDArray[np.float64]

_BANDS = (0.05, 0.25, 0.75, 0.95)
_SPREADS = ("middle 50 % of heads", "middle 90 % of heads")


def profile_figure(
    cells: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    geometry: BucketGeometry | None = None,
    pair_sampling: str | None = None,
    at_starts: bool = False,
    eligible_heads: int | None = None,
    baselines: Baselines | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the mean over heads per bin or query bucket, and the middle 50 % and 90 % of heads.

    The table of bins gives plasticity at one position, the table of cells plasticity over a bucket.
    With the table of `influences` of the run, a dark band shows the 95 % interval of the mean of
    bins; buckets have no errors. The other arguments are those of `plasticity_figure`.

    `cells` has one row per query head, bin of queries and bin of keys, such as
    `Run.table("bins")`, or per
    query head, query bucket and key bucket, such as `Run.bucket_plasticity`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import profile_figure
        >>> run = open_run("results/sample")
        >>> figure = profile_figure(run.table("bins"), influences=run.influences)
        >>> figure.axes[0].get_ylabel()
        'plasticity at one position'
    """
    words = Words(**texts)
    grid = ProfileGrid(cells, influences, geometry, pair_sampling, at_starts, eligible_heads)
    references = grid.references(baselines or {})
    x, mean, reach = grid.mean_x, grid.mean, np.nan_to_num(grid.mean_half)
    with figure_style():
        figure, axes = new_figure()
        low, q1, q3, high = _quantiles(grid.values)
        wide = axes.fill_between(x, low, high, color=BLUE, alpha=0.14, linewidth=0)
        half = axes.fill_between(x, q1, q3, color=BLUE, alpha=0.32, linewidth=0)
        band(axes, x, mean, grid.mean_half, color=INK, alpha=0.35)
        (line,) = axes.plot(x, mean, color=INK, linewidth=1.2, label="mean over heads")
        lines = draw_references(axes, references)
        ends = (low, high, mean - reach, mean + reach, references_reach(references))
        plasticity_axis(axes, grid.shown.name, *ends)
        grid.position_axis(axes)
        labels = ["mean", *_SPREADS, *(one.words for one in references)]
        rows = legend_above(axes, [line, half, wide, *lines], labels)
        grid.draw_texts(axes)
        notes = [
            words.heads(len(grid.heads)),
            grid.gaps_note,
            grid.interval_note,
            texts_note(grid.texts, grid.part),
            phase_note(grid.shown),
        ]
        caption = words.caption(
            len(grid.heads),
            f"{capitalised(grid.shown.name)}, by query position: mean over heads, with bands of "
            "the middle 50 % and the middle 90 % of heads.",
            phase_sentence(grid.shown),
            first_part_sentence(grid.cells, grid.part),
            grid.interval_sentence,
            references_sentence(references, baselines or {}),
            texts_sentence(grid.texts, grid.part),
            plasticity=grid.shown,
        )
        title = f"{capitalised(grid.shown.name)}, spread over heads"
        words.write(figure, axes, title, notes, caption, rows)
    return figure


def _quantiles(values: Floats) -> Floats:
    """(4, bins) borders of the bands of each bin."""
    return np.asarray(np.nanquantile(values, _BANDS, axis=0))
