"""Plasticity against attended plasticity, both at one position, one point per head."""

from __future__ import annotations

from typing import Unpack

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.metrics import ALIGNED, ATTENDED, METRICS
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.scatter import HeadPoints, draw_points, name_heads
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    figure_style,
    layer_bar,
    legend_above,
    new_figure,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from qk_toolkit.errors import ConfigError

_NAMED = 2  # heads with a name, on each side of the diagonal


def attended_figure(
    metrics: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a point per head, coloured by layer, and name the heads furthest from the diagonal.

    Across: plasticity of the key pairs of the run. Up: plasticity of two keys in proportion to the
    attention that they receive. Both are at one position. With at most 400 heads, each has its
    95 % intervals. With the table of `influences` of the run, these have the degrees of freedom of
    each value, else those of the head.

    `metrics` has one row per query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import attended_figure
        >>> run = open_run("results/sample")
        >>> figure = attended_figure(run.head_metrics, influences=run.influences)
        >>> figure.axes[0].get_ylabel()
        'attended plasticity'
    """
    words = Words(**texts)
    if not has_attended(metrics):
        raise ConfigError(
            "the table of heads: has no attended plasticity; it needs a dump with attention "
            "columns (capture.attention) and with rotary records"
        )
    points = HeadPoints.of(metrics, ALIGNED, ATTENDED, influences)
    heads, label = len(points.table), METRICS[ATTENDED].label
    with figure_style():
        figure, axes = new_figure(height=3.6)
        labels = AT_ONE_POSITION.name, label
        drawn, diagonal = draw_points(axes, points, labels, cmap)
        coloured = layer_bar(figure, drawn, axes, points.table["layer"])
        rows = legend_above(axes, [diagonal], ["equal values"])
        notes = [
            words.heads(heads, len(metrics)),
            points.correlation,
            points.interval_note(f"the {label}"),
        ]
        caption = words.caption(
            heads,
            "Plasticity of the key pairs of the run, against plasticity of two keys drawn in "
            "proportion to the attention that they receive (attended plasticity), one point per "
            f"head{coloured}.",
            "Both are at one position: every query is turned to one position of its bin.",
            "The heads furthest from the diagonal have names: L is the layer, H the query head.",
            f"{points.correlation} over these heads." if points.correlation else None,
            interval_sentence("Lines are 95 % intervals,", points.groups)
            if points.has_lines
            else None,
            plasticity=AT_ONE_POSITION,
        )
        words.write(figure, axes, "Attended plasticity", notes, caption, rows)
        above = points.table["y"] - points.table["x"]
        name_heads(axes, points, [above, -above], _NAMED)
    return figure


def has_attended(metrics: pd.DataFrame) -> bool:
    """Whether some head of the table has attended plasticity."""
    return {ALIGNED, ATTENDED} <= set(metrics) and bool(metrics[ATTENDED].notna().any())
