"""Weight of position in each query dimension, averaged over heads."""

from __future__ import annotations

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
    footnote,
    headline,
    new_figure,
)
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.profiles import HEAD


def components_figure(
    weights: pd.DataFrame,
    *,
    limit: int | None = None,
    agg: Agg = "mean",
    title: str | None = None,
    ylabel: str | None = None,
    model_name: str | None = None,
) -> Figure:
    """Draw the fraction of positional information of every dimension, or of the `limit` largest.

    The weights of each head are normalised to sum 1, so that all heads have equal influence.
    """
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
        axes.set_ylim(top=1.2 * float(max(shares.max(), 1.0 / width)))  # room for the legend
        axes.legend([even], ["equal weights"], loc="upper right", handlelength=1.8)
        axes.set_xlabel("dimension" if limit is None else "dimension, by weight")
        axes.set_ylabel(figure_text(ylabel or f"share of position, {agg} over heads"))
        if limit is not None and limit <= 40:
            tilt = 90 if len(shares) > 14 else 0
            axes.set_xticks(x, [str(name) for name in shares.index], rotation=tilt)
        elif limit is None:
            axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 4, 8], integer=True))
        else:
            axes.set_xticks([])
        axes.margins(x=0.01)
        headline(axes, title, "Where position is stored", model_name)
        shown = f"{len(shares)} of {width} dimensions" if limit is not None else None
        footnote(figure, f"{len(weights[HEAD].drop_duplicates()):,} heads", shown)
    return figure


def component_shares(weights: pd.DataFrame, agg: Agg) -> pd.Series[float]:
    """Per dimension, the mean or median over heads of a head's normalised weights."""
    sums = weights.groupby(HEAD)["weight"].transform("sum")
    normalised = (weights["weight"] / sums.where(sums > 0)).rename("share")
    grouped = normalised.groupby(weights["component"])
    return grouped.mean() if agg == "mean" else grouped.median()
