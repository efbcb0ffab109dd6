"""Plasticity by fifths of the context, with the spread over heads."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.columns import FIFTHS
from attention_plasticity.plots.intervals import correction_note, whiskers
from attention_plasticity.plots.style import (
    BLUE,
    INK,
    figure_style,
    footnote,
    headline,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.intervals import (
    corrected,
    groups_in,
    half_width,
    mean_of_heads,
)
from attention_plasticity.tables.metric_words import FIFTH_NAMES
from qk_toolkit.errors import ConfigError


def fifths_figure(
    metrics: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    title: str | None = None,
    model_name: str | None = None,
) -> Figure:
    """Draw the mean over heads per fifth, with bands of the middle 50 % and 90 % of heads.

    Values are corrected for bias if it is known. With the table of `influences` of the run,
    whiskers show the 95 % interval of the mean.
    """
    require_columns(metrics, FIFTHS, "the table of heads")
    values = np.column_stack([corrected(metrics, name) for name in FIFTHS])  # (heads, 5)
    if np.isnan(values).all():
        raise ConfigError("the table of heads: every fifth is NaN, so there is nothing to draw")
    x = np.arange(len(FIFTHS))
    known = [column[~np.isnan(column)] for column in values.T]
    quantiles = np.array(
        [
            np.quantile(part, (0.05, 0.25, 0.75, 0.95)) if len(part) else [np.nan] * 4
            for part in known
        ]
    ).T  # (4, 5)
    estimates = [mean_of_heads(metrics, influences, name) for name in FIFTHS]
    means = np.array([estimate.value for estimate in estimates])
    errors = [estimate.standard_error for estimate in estimates]
    with figure_style():
        figure, axes = new_figure()
        low, q1, q3, high = quantiles
        wide = axes.fill_between(x, low, high, color=BLUE, alpha=0.14, linewidth=0)
        half = axes.fill_between(x, q1, q3, color=BLUE, alpha=0.32, linewidth=0)
        interval = whiskers(axes, x, means, half_width(errors, groups_in(metrics)), INK)
        width, dot = (1.0, 2.0) if interval else (1.8, 3.5)  # whiskers can be short
        (line,) = axes.plot(x, means, color=INK, linewidth=width, marker="o", markersize=dot)
        plasticity_axis(axes)
        axes.set_xticks(x, FIFTH_NAMES)
        axes.set_xlabel("part of the observed context")
        axes.legend(
            [line, half, wide], ["mean", "50 % of the heads", "90 % of the heads"], loc="best"
        )
        headline(axes, title, "Plasticity over the context", model_name)
        gaps = int(np.isnan(values).any(axis=1).sum())
        footnote(
            figure,
            f"{len(values):,} heads",
            f"{gaps:,} of them lack a value in some fifth" if gaps else None,
            correction_note(metrics, *FIFTHS),
            "whiskers: 95 % interval over texts" if interval else None,
        )
    return figure
