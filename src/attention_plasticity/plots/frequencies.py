"""Rotary phase against the share of fast bands, one point per head.

A band that turns more than once inside a bin of positions can change the order of two keys inside
the bin. So heads whose logits vary in fast bands can have a large rotary phase.
"""

from __future__ import annotations

from typing import Unpack

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.metrics import METRICS, PHASE
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.scatter import MOST_WHISKERS, draw_heads, rank_correlation
from attention_plasticity.plots.shown import NONE_AT_ONE_POSITION
from attention_plasticity.plots.style import (
    FAINT,
    QUIET,
    SEQUENTIAL,
    figure_style,
    layer_bar,
    new_figure,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import head_half_width, quantity_groups
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError

_NEEDS_RUN = "has no rotary phase; give the folder of the run, with --run"


def frequencies_figure(
    bands: pd.DataFrame,
    *,
    metrics: pd.DataFrame | None = None,
    influences: pd.DataFrame | None = None,
    limit: float | None = None,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a point per head, coloured by layer: share of fast bands, and rotary phase.

    Across: share of the variance of the logit in bands whose wavelength is below `limit` tokens,
    such as the size of a bin. Up: rotary phase, with its 95 % interval if there are at most 400
    heads.

    `bands` has one row per query head and band, such as `Run.table("bands")`, and `metrics` one row
    per
    query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import frequencies_figure
        >>> run = open_run("results/sample")
        >>> figure = frequencies_figure(run.table("bands"), metrics=run.head_metrics, limit=512)
        >>> figure.axes[0].get_ylabel()
        'rotary phase'
    """
    words = Words(**texts)
    if metrics is None:
        raise ConfigError(f"the table of bands: {_NEEDS_RUN}")
    if PHASE not in metrics or metrics[PHASE].isna().all():
        raise ConfigError(f"the table of heads: {NONE_AT_ONE_POSITION}")
    if limit is None:
        raise ConfigError("limit: is required; the run does not record the size of its bins")
    require_values(bands, "variance_share", "the table of bands")
    table = _points(bands, metrics, influences, limit)
    if table.empty:
        raise ConfigError("the table of bands: no head has both values; there is nothing to draw")
    groups = quantity_groups(metrics, PHASE, influences)
    lines = len(table) <= MOST_WHISKERS and bool(table["y_half"].notna().any())
    with figure_style():
        figure, axes = new_figure(height=3.4)
        axes.axhline(0.0, color=QUIET, linewidth=0.8)
        drawn = draw_heads(axes, table, cmap, lines=lines)
        coloured = layer_bar(figure, drawn, axes, table["layer"])
        axes.set_xlabel(f"share of variance in bands below {limit:,.0f} tokens")
        axes.set_ylabel(METRICS[PHASE].label)
        axes.grid(color=FAINT, linewidth=0.4)
        axes.set_axisbelow(True)
        correlation = rank_correlation(table["x"], table["y"])
        notes = [
            words.heads(len(table), len(metrics)),
            correlation,
            "lines: 95 % intervals over texts" if lines else None,
        ]
        caption = words.caption(
            len(table),
            "Share of the variance of the logit in rotary bands with a wavelength below "
            f"{limit:,.0f} tokens, against the rotary phase: plasticity over a bin minus "
            f"plasticity at one position. One point per head{coloured}.",
            f"{correlation} over these heads." if correlation else None,
            interval_sentence("Lines are 95 % intervals of the rotary phase,", groups)
            if lines
            else None,
            plasticity=AT_ONE_POSITION,
        )
        words.write(figure, axes, "Rotary phase and fast bands", notes, caption)
    return figure


def fast_share(bands: pd.DataFrame, limit: float) -> pd.Series[float]:
    """Per head, the sum of the shares of variance of bands with a wavelength below `limit`."""
    fast = bands["variance_share"].where(bands["wavelength"] < limit, 0.0)  # NaN: it never turns
    fast = fast.where(bands["variance_share"].notna())
    return fast.groupby([bands[name] for name in HEAD]).sum(min_count=1)


def _points(
    bands: pd.DataFrame, metrics: pd.DataFrame, influences: pd.DataFrame | None, limit: float
) -> pd.DataFrame:
    """Heads with both values: layer, q_head, x, y, and half the interval of y."""
    half = head_half_width(metrics, PHASE, influences)
    table = metrics[list(HEAD)].assign(y=metrics[PHASE], y_half=half)
    share = fast_share(bands, limit).rename("x").reset_index()
    return table.merge(share, on=list(HEAD)).dropna(subset=["x", "y"])
