"""Share of the linear position R² in each query dimension, averaged over heads."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.plots.settings import Agg
from attention_plasticity.plots.style import (
    BLUE,
    INK,
    figure_style,
    figure_text,
    legend_above,
    new_figure,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.profiles import HEAD


def components_figure(
    weights: pd.DataFrame,
    *,
    limit: int | None = None,
    agg: Agg = "mean",
    ylabel: str | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the share of the linear position R² of every dimension, or of the `limit` largest.

    The weights of each head are normalised to sum 1, so that all heads have equal influence.

    `weights` has one row per query head and dimension, such as `Run.component_weights`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import components_figure
        >>> run = open_run("results/sample")
        >>> figure = components_figure(run.component_weights, limit=8)
        >>> len(figure.axes[0].patches)  # one bar per dimension
        8
    """
    words = Words(**texts)
    require_values(weights, "weight", "the table of components")
    shares = component_shares(weights, agg)
    width = len(shares)
    if limit is not None:
        shares = shares.nlargest(limit)
    with figure_style():
        figure, axes = new_figure()
        x = np.arange(len(shares))
        axes.bar(x, shares.to_numpy(), width=0.85, color=BLUE)
        even = axes.axhline(1.0 / width, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        rows = legend_above(axes, [even], ["uniform share (1/d)"])
        axes.set_xlabel("dimension" if limit is None else "dimension, by weight")
        axes.set_ylabel(figure_text(ylabel or "share of linear position R²"))
        if limit is not None and limit <= 40:
            tilt = 90 if len(shares) > 14 else 0
            axes.set_xticks(x, [str(name) for name in shares.index], rotation=tilt)
        elif limit is None:
            axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 4, 8], integer=True))
        else:
            axes.set_xticks([])
        axes.margins(x=0.01)
        heads = len(weights[HEAD].drop_duplicates())
        shown = f"{len(shares)} of {width} dimensions" if limit is not None else None
        notes = [f"{agg} over {words.heads(heads)}", shown]
        caption = words.caption(
            heads,
            f"Share of the linear position R² in each query dimension, {agg} over heads.",
            "The shares of a head sum to 1. The dashed line is the uniform share, 1/d with "
            f"d = {width} dimensions.",
            f"The {len(shares)} largest dimensions are drawn." if shown else None,
        )
        words.write(figure, axes, "Where position is stored", notes, caption, rows)
    return figure


def component_shares(weights: pd.DataFrame, agg: Agg) -> pd.Series[float]:
    """Per dimension, the mean or median over heads of a head's normalised weights."""
    sums = weights.groupby(HEAD)["weight"].transform("sum")
    normalised = (weights["weight"] / sums.where(sums > 0)).rename("share")
    grouped = normalised.groupby(weights["component"])
    return grouped.mean() if agg == "mean" else grouped.median()
