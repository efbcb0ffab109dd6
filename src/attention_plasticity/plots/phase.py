"""Plasticity at one position against plasticity over a bin, one point per head.

Both have the same bins, pairs and weights. Their difference is the rotary phase: what the rotation
of RoPE inside a bin adds.
"""

from __future__ import annotations

from typing import Unpack

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.metrics import ALIGNED, METRICS, PHASE, POOLED
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.scatter import HeadPoints, draw_points, name_heads
from attention_plasticity.plots.shown import NONE_AT_ONE_POSITION
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

_NAMED = 5  # heads with a name


def phase_figure(
    metrics: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a point per head, coloured by layer, and name the heads with the largest rotary phase.

    Across: plasticity over a bin. Up: plasticity at one position. The distance of a point below the
    diagonal is the rotary phase. With at most 400 heads, each has its 95 % intervals. With the
    table of `influences` of the run, these have the degrees of freedom of each value, else those of
    the head.

    `metrics` has one row per query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import phase_figure
        >>> run = open_run("results/sample")
        >>> figure = phase_figure(run.head_metrics, influences=run.influences)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('plasticity over a bin', 'plasticity at one position')
    """
    words = Words(**texts)
    if not has_phase(metrics):
        raise ConfigError(f"the table of heads: {NONE_AT_ONE_POSITION}")
    points = HeadPoints.of(metrics, POOLED, ALIGNED, influences)
    heads, phase = len(points.table), metrics.loc[points.table.index, PHASE]
    labels = METRICS[POOLED].label, METRICS[ALIGNED].label
    with figure_style():
        figure, axes = new_figure(height=3.6)
        drawn, diagonal = draw_points(axes, points, labels, cmap)
        coloured = layer_bar(figure, drawn, axes, points.table["layer"])
        rows = legend_above(axes, [diagonal], ["equal values"])
        mean = f"rotary phase: {phase.mean():.3f} in the mean over heads"
        notes = [
            words.heads(heads, len(metrics)),
            points.correlation,
            mean,
            points.interval_note(labels[1]),
        ]
        caption = words.caption(
            heads,
            "Plasticity over a bin (queries as captured) against plasticity at one position (every "
            f"query turned to one position of its bin), one point per head{coloured}.",
            "Both have the same bins, key pairs and weights. The distance below the diagonal is "
            "the rotary phase: what the rotation of RoPE inside a bin adds. It is "
            f"{phase.mean():.3f} in the mean over heads, and {phase.max():.3f} at most.",
            "The heads with the largest rotary phase have names: L is the layer, H the query head.",
            f"{points.correlation} over these heads." if points.correlation else None,
            interval_sentence("Lines are 95 % intervals,", points.groups)
            if points.has_lines
            else None,
            plasticity=AT_ONE_POSITION,
        )
        words.write(figure, axes, "Rotary phase", notes, caption, rows)
        name_heads(axes, points, [phase], _NAMED)
    return figure


def has_phase(metrics: pd.DataFrame) -> bool:
    """Whether some head of the table has a rotary phase."""
    return PHASE in metrics and bool(metrics[PHASE].notna().any())
