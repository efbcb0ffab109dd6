"""Variance of the queries explained by position, against plasticity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attention_plasticity.metrics import METRICS
from attention_plasticity.plots.scatter import rank_correlation
from attention_plasticity.plots.settings import Shown
from attention_plasticity.plots.shown import (
    phase_note,
    phase_sentence,
    shown_plasticity,
)
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
from attention_plasticity.tables.main_plasticity import PlasticityColumns
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

BEFORE = "q_R2_unrotated"
_MARGIN = 0.06  # of the axis, left of the smallest value
_FAR = 3.0  # quartile distances beyond the third quartile
_LABEL = "variance from position,"
_ROOM = 1.25  # the axis is cut only if the largest value is this much larger than its end


def predictability_figure(
    metrics: pd.DataFrame,
    *,
    cmap: str = SEQUENTIAL,
    plasticity: Shown | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a point per head, coloured by layer, with the rank correlation.

    The default is plasticity at one position, or over a bucket if no head has it;
    `plasticity="bucket"` shows the latter.

    If the variance before RoPE is known, it has a panel of its own beside the captured one.

    If few heads have far larger values than the others, the x axis ends before them. They are
    triangles at the edge, and the footnote gives their number and the largest value.

    `metrics` has one row per query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import predictability_figure
        >>> run = open_run("results/sample")
        >>> figure = predictability_figure(run.head_metrics)
        >>> figure.axes[0].get_ylabel()
        'plasticity at one position'
    """
    words = Words(**texts)
    column = "q_R2_total" if "q_R2_total" in metrics else "q_R2_pos"
    require_columns(metrics, [column], "the table of heads")
    shown = shown_plasticity(metrics, plasticity)
    values = metrics[["layer", column]].assign(plasticity=metrics[shown.level])
    values = values.dropna(subset=["plasticity"])
    known = values.dropna(subset=[column])
    if known.empty:
        raise ConfigError("the table of heads: no head has both values; there is nothing to draw")
    parts = {f"{METRICS[column].label} (R²)": known.assign(share=known[column])}
    if BEFORE in metrics and metrics[BEFORE].notna().any():
        undone = values.copy().assign(share=metrics[BEFORE]).dropna(subset=["share"])
        captured = parts.popitem()[1]
        parts = {f"{_LABEL}\nas captured (R²)": captured, f"{_LABEL}\nbefore RoPE (R²)": undone}
    with figure_style():
        figure, grid = new_figure(ncols=len(parts), sharey=True, squeeze=False)
        shades = _shades(known["layer"], cmap)
        drawn = [
            _draw_panel(axes, heads, (label, shown.name), shades)
            for axes, (label, heads) in zip(grid[0], parts.items(), strict=True)
        ]
        for axes in grid[0][1:]:
            axes.set_ylabel("")
        coloured = layer_bar(figure, shades, grid[0], known["layer"])
        _write_words(words, figure, grid[0], metrics, shown, len(known), drawn, coloured)
    return figure


@dataclass(frozen=True)
class _Panel:
    """What the texts around the figure say about one panel."""

    rho: str | None
    outside: int  # heads beyond the axis
    largest: str


def _draw_panel(
    axes: Axes, heads: pd.DataFrame, labels: tuple[str, str], shades: ScalarMappable
) -> _Panel:
    """Draw the column `share` of heads against their `plasticity`."""
    share = heads["share"]
    end = axis_end(share)
    beyond = share > end if end is not None else share.isna()
    _draw_points(axes, heads[~beyond], shades)
    plasticity_axis(axes, labels[1])
    axes.set_xlabel(labels[0])
    last = float(share.max()) if end is None else end
    low = float(share.min())
    axes.set_xlim(min(0.0, low - _MARGIN * (last - low)), end)
    if end is not None:
        _draw_beyond(axes, heads[beyond], shades, end)
    rho = rank_correlation(share, heads["plasticity"])
    return _Panel(rho, int(beyond.sum()), f"{share.max():.2f}")


def _write_words(
    words: Words,
    figure: Figure,
    panels: Sequence[Axes],
    metrics: pd.DataFrame,
    shown: PlasticityColumns,
    heads: int,
    drawn: Sequence[_Panel],
    coloured: str,
) -> None:
    names = (" as captured", " before RoPE") if len(drawn) > 1 else ("",)
    rhos = [f"{one.rho}{name}" for name, one in zip(names, drawn, strict=True) if one.rho]
    outside = sum(one.outside for one in drawn)
    largest = max((one.largest for one in drawn if one.outside), default="")
    notes = [
        words.heads(heads, len(metrics)),
        *rhos,
        phase_note(shown),
        f"triangles: {outside:,} beyond the axis, up to {largest}" if outside else None,
    ]
    both = (
        "As captured (left), it is mostly how far RoPE turns the mean query; before RoPE (right), "
        "how far the content of queries drifts with position."
    )
    caption = words.caption(
        heads,
        "Variance of the queries that a linear function of position explains (R²), against "
        f"{shown.name}, one point per head{coloured}.",
        phase_sentence(shown),
        both if len(drawn) > 1 else None,
        f"{'; '.join(rhos)} over these heads." if rhos else None,
        _beyond_sentence(outside, largest),
        plasticity=shown,
    )
    axes = panels[0] if len(drawn) == 1 else None
    words.write(figure, axes, f"Position against {shown.name}", notes, caption)


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


def _draw_points(axes: Axes, heads: pd.DataFrame, shades: ScalarMappable) -> None:
    axes.scatter(
        heads["share"],
        heads["plasticity"],
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
        heads["plasticity"],
        color=shades.to_rgba(heads["layer"].to_numpy()),
        marker=">",
        s=22,
        linewidths=0,
        clip_on=False,
        zorder=3,
    )
