"""Variance of the queries explained by position, against plasticity."""

from __future__ import annotations

from typing import Unpack, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attention_plasticity.metrics import METRICS
from attention_plasticity.plots.intervals import correction_note
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    figure_style,
    layer_bar,
    line_shades,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.intervals import corrected
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

_FAR = 3.0  # quartile distances beyond the third quartile
_ROOM = 1.25  # the axis is cut only if the largest value is this much larger than its end


def predictability_figure(
    metrics: pd.DataFrame,
    *,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a point per head, coloured by layer, with the rank correlation.

    If few heads have far larger values than the others, the x axis ends before them. They are
    triangles at the edge, and the footnote gives their number and the largest value.

    `metrics` has one row per query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import predictability_figure
        >>> run = open_run("results/sample")
        >>> figure = predictability_figure(run.head_metrics)
        >>> figure.axes[0].get_xlabel()
        'variance from position (R²)'
    """
    words = Words(**texts)
    column = "q_R2_total" if "q_R2_total" in metrics else "q_R2_pos"
    require_columns(metrics, [column], "the table of heads")
    values = metrics.assign(ap_overall=corrected(metrics, "ap_overall"))
    known = values.dropna(subset=[column, "ap_overall"])
    if known.empty:
        raise ConfigError("the table of heads: no head has both values; there is nothing to draw")
    end = axis_end(known[column])
    with figure_style():
        figure, axes = new_figure()
        shades = _shades(known["layer"], cmap)
        beyond = known[column] > end if end is not None else known[column].isna()
        _draw_points(axes, known[~beyond], column, shades)
        plasticity_axis(axes)
        axes.set_xlabel(f"{METRICS[column].label} (R²)")
        axes.set_xlim(min(0.0, float(known[column].min())), end)
        if end is not None:
            _draw_beyond(axes, known[beyond], shades, end)
        coloured = layer_bar(figure, shades, axes, known["layer"])
        rho = _correlation(known[column], known["ap_overall"])
        outside = int(beyond.sum())
        largest = f"{known[column].max():.2f}"
        notes = [
            words.heads(len(known)),
            rho,
            correction_note(metrics, "ap_overall"),
            f"triangles: {outside:,} beyond the axis, up to {largest}" if outside else None,
        ]
        caption = words.caption(
            len(known),
            "Variance of the queries that a linear function of position explains (R²), against "
            f"plasticity, one point per head{coloured}.",
            f"{rho} over these heads." if rho else None,
            _beyond_sentence(outside, largest),
            correction=correction_note(metrics, "ap_overall"),
        )
        words.write(figure, axes, "Position against plasticity", notes, caption)
    return figure


def _beyond_sentence(outside: int, largest: str) -> str | None:
    if not outside:
        return None
    return f"Triangles: {count(outside, 'head')} beyond the axis, up to {largest}."


def axis_end(values: pd.Series[float]) -> float | None:
    """The end of an axis without far outliers; None if there are none."""
    first, third = values.quantile([0.25, 0.75])
    end = float(third + _FAR * (third - first))
    return end if 0 < end * _ROOM < float(values.max()) else None


def _shades(layers: pd.Series[int], cmap: str) -> ScalarMappable:
    span = Normalize(layers.min(), max(layers.max(), layers.min() + 1))
    return ScalarMappable(span, line_shades(cmap))


def _draw_points(axes: Axes, heads: pd.DataFrame, column: str, shades: ScalarMappable) -> None:
    axes.scatter(
        heads[column],
        heads["ap_overall"],
        c=heads["layer"],
        cmap=shades.cmap,
        norm=cast(Normalize, shades.norm),
        s=16,
        linewidths=0,
        alpha=0.85,
    )


def _draw_beyond(axes: Axes, heads: pd.DataFrame, shades: ScalarMappable, end: float) -> None:
    """Draw heads beyond the axis as triangles at its end."""
    axes.scatter(
        np.full(len(heads), end),
        heads["ap_overall"],
        color=shades.to_rgba(heads["layer"].to_numpy()),
        marker=">",
        s=22,
        linewidths=0,
        clip_on=False,
        zorder=3,
    )


def _correlation(x: pd.Series[float], y: pd.Series[float]) -> str | None:
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return f"Spearman's ρ {x.corr(y, method='spearman'):.2f}"
