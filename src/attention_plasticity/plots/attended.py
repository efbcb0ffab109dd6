"""Plasticity against attended plasticity, one point per head."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import correction_note
from attention_plasticity.plots.style import (
    FAINT,
    INK,
    QUIET,
    SEQUENTIAL,
    figure_style,
    layer_bar,
    legend_above,
    line_shades,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.intervals import corrected, head_half_width, quantity_groups
from qk_toolkit.errors import ConfigError

_COLUMNS = ("ap_overall", "ap_attended")
_MOST_WHISKERS = 400  # heads that are drawn with their intervals
_NAMED = 2  # heads with a name, on each side of the diagonal
_APART = 0.05  # smallest distance of two named heads


def attended_figure(
    metrics: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a point per head, coloured by layer, and name the heads furthest from the diagonal.

    Values are corrected for bias if it is known. With at most 400 heads, each has its 95 %
    intervals. With the table of `influences` of the run, these have the degrees of freedom of each
    value, else those of the head.

    `metrics` has one row per query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import attended_figure
        >>> run = open_run("results/sample")
        >>> figure = attended_figure(run.head_metrics, influences=run.influences)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('plasticity', 'attended plasticity')
    """
    words = Words(**texts)
    if not has_attended(metrics):
        raise ConfigError(
            "the table of heads: has no attended plasticity; it needs a dump with attention "
            "columns (capture.attention)"
        )
    halves = {f"{name}_half": head_half_width(metrics, name, influences) for name in _COLUMNS}
    groups = [quantity_groups(metrics, name, influences) for name in _COLUMNS]
    values = {name: corrected(metrics, name) for name in _COLUMNS}
    known = metrics[["layer", "q_head"]].assign(**values, **halves).dropna(subset=_COLUMNS)
    if known.empty:
        raise ConfigError("the table of heads: no head has both values; there is nothing to draw")
    with figure_style():
        figure, axes = new_figure(height=3.6)
        (diagonal,) = axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
        width = _draw_intervals(axes, known)
        drawn = _draw_points(axes, known, cmap)
        _axes(axes)
        _name_extremes(axes, known)
        coloured = layer_bar(figure, drawn, axes, known["layer"])
        rows = legend_above(axes, [diagonal], ["equal values"])
        rho, lines = _correlation(known), width is not None and len(known) <= _MOST_WHISKERS
        notes = [words.heads(len(known)), rho, correction_note(metrics, *_COLUMNS), width]
        caption = words.caption(
            len(known),
            "Plasticity of the key pairs of the run, against plasticity of two keys drawn in "
            "proportion to the attention that they receive (attended plasticity), one point per "
            f"head{coloured}.",
            "The heads furthest from the diagonal have names: L is the layer, H the query head.",
            f"{rho} over these heads." if rho else None,
            interval_sentence("Lines are 95 % intervals,", groups) if lines else None,
            correction=correction_note(metrics, *_COLUMNS),
        )
        words.write(figure, axes, "Attended plasticity", notes, caption, rows)
    return figure


def has_attended(metrics: pd.DataFrame) -> bool:
    """Whether some head of the table has attended plasticity."""
    return "ap_attended" in metrics and bool(metrics["ap_attended"].notna().any())


def _draw_points(axes: Axes, known: pd.DataFrame, cmap: str) -> PathCollection:
    layers = known["layer"]
    return axes.scatter(
        known["ap_overall"],
        known["ap_attended"],
        c=layers,
        cmap=line_shades(cmap),
        vmin=layers.min(),
        vmax=max(layers.max(), layers.min() + 1),
        s=16,
        linewidths=0,
        alpha=0.85,
        zorder=2,
    )


def _draw_intervals(axes: Axes, known: pd.DataFrame) -> str | None:
    """Draw the intervals of few heads. Returns the note that explains them."""
    x_half, y_half = (known[f"{name}_half"].to_numpy(np.float64) for name in _COLUMNS)
    if np.isnan(y_half).all():
        return None
    if len(known) > _MOST_WHISKERS:
        half = f"{np.nanmedian(y_half):.3f}"
        return f"95 % interval of the attended plasticity of one head: ± {half} (median)"
    axes.errorbar(
        known["ap_overall"],
        known["ap_attended"],
        xerr=np.nan_to_num(x_half),
        yerr=np.nan_to_num(y_half),
        fmt="none",
        ecolor=FAINT,
        elinewidth=0.7,
        zorder=1,
    )
    return "lines: 95 % intervals over texts"


def _axes(axes: Axes) -> None:
    plasticity_axis(axes)
    axes.set_ylabel("attended plasticity")
    axes.set_xlabel("plasticity")
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])


def _name_extremes(axes: Axes, known: pd.DataFrame) -> None:
    """Write the names of the heads furthest above and below the diagonal, if they are apart."""
    above = known["ap_attended"] - known["ap_overall"]
    for below, gap in ((False, above), (True, -above)):
        order = gap[gap > _APART / 2].sort_values(ascending=False).index
        named: list[tuple[float, float]] = []
        for row in known.loc[order].itertuples():
            place = (float(row.ap_overall), float(row.ap_attended))  # type: ignore[arg-type]
            if all(np.hypot(*np.subtract(place, other)) > _APART for other in named):
                _name(axes, f"L{row.layer} H{row.q_head}", place, below)
                named.append(place)
            if len(named) == _NAMED:
                break


def _name(axes: Axes, name: str, place: tuple[float, float], below: bool) -> None:
    axes.annotate(
        name,
        place,
        xytext=(4, -4) if below else (-4, 4),
        textcoords="offset points",
        ha="left" if below else "right",
        va="top" if below else "bottom",
        fontsize=7,
        color=INK,
    )


def _correlation(known: pd.DataFrame) -> str | None:
    x, y = (known[name] for name in _COLUMNS)
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return f"Spearman's ρ {x.corr(y, method='spearman'):.2f}"
