"""Plasticity against attended plasticity, one point per head."""

from __future__ import annotations

from typing import Unpack

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention_plasticity.metrics import ALIGNED, ATTENDED, ATTENDED_ALIGNED, POOLED
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import correction_note
from attention_plasticity.plots.scatter import HeadPoints, draw_points, name_heads
from attention_plasticity.plots.shown import phase_note
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    figure_style,
    layer_bar,
    legend_above,
    new_figure,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, OVER_BUCKETS
from qk_toolkit.errors import ConfigError

_NAMED = 2  # heads with a name, on each side of the diagonal
_NAMES = {ALIGNED: "at one position", POOLED: "over a bin", OVER_BUCKETS.level: "over a bucket"}


def attended_figure(
    metrics: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    cmap: str = SEQUENTIAL,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a point per head, coloured by layer, and name the heads furthest from the diagonal.

    If plasticity at one position is known, it has a panel of its own beside that over a bin.
    Otherwise the figure shows plasticity over a bucket.

    Values are corrected for bias if it is known. With at most 400 heads, each has its 95 %
    intervals. With the table of `influences` of the run, these have the degrees of freedom of each
    value, else those of the head.

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
            "columns (capture.attention)"
        )
    panels = {x: HeadPoints.of(metrics, x, y, influences) for x, y in _columns(metrics).items()}
    layers = pd.concat([points.table["layer"] for points in panels.values()])
    single = len(panels) == 1
    with figure_style():
        figure, grid = new_figure(height=3.6 if single else 3.3, ncols=len(panels), squeeze=False)
        rows = 0
        for axes, (x, points) in zip(grid[0], panels.items(), strict=True):
            labels = f"plasticity {_NAMES[x]}", "attended plasticity"
            drawn, diagonal = draw_points(axes, points, labels, cmap, layers, len(panels))
            if axes is not grid[0][0]:
                axes.set_ylabel("")
                axes.tick_params(labelleft=False)
            else:
                rows = legend_above(axes, [diagonal], ["equal values"])
        coloured = layer_bar(figure, drawn, grid[0], layers)
        _write_words(words, figure, grid[0][0] if single else None, metrics, panels, coloured, rows)
        for axes, points in zip(grid[0], panels.values(), strict=True):
            above = points.table["y"] - points.table["x"]
            name_heads(axes, points, [above, -above], _NAMED)
    return figure


def _columns(metrics: pd.DataFrame) -> dict[str, str]:
    """The column across and the column up, for each panel."""
    if _has(metrics, ATTENDED_ALIGNED) and _has(metrics, ALIGNED):
        return {ALIGNED: ATTENDED_ALIGNED, POOLED: ATTENDED}
    return {OVER_BUCKETS.level: ATTENDED}


def has_attended(metrics: pd.DataFrame) -> bool:
    """Whether some head of the table has attended plasticity."""
    return _has(metrics, ATTENDED)


def _has(metrics: pd.DataFrame, name: str) -> bool:
    return name in metrics and bool(metrics[name].notna().any())


def _write_words(
    words: Words,
    figure: Figure,
    axes: Axes | None,
    metrics: pd.DataFrame,
    panels: dict[str, HeadPoints],
    coloured: str,
    rows: int,
) -> None:
    heads = max(len(points.table) for points in panels.values())
    columns = [name for pair in _columns(metrics).items() for name in pair]
    first = next(iter(panels.values()))
    shown = OVER_BUCKETS if axes is not None else AT_ONE_POSITION
    rhos = [
        f"{points.correlation} {_NAMES[x]}" for x, points in panels.items() if points.correlation
    ]
    notes = [
        words.heads(heads, len(metrics)),
        *rhos,
        correction_note(metrics, *columns),
        first.interval_note("the attended plasticity"),
        phase_note(shown),
    ]
    both = (
        "Left: at one position, every query turned to one position of its bin. Right: over a bin, "
        "with the queries as captured, so that the rotation of RoPE counts as well."
    )
    caption = words.caption(
        heads,
        "Plasticity of the key pairs of the run, against plasticity of two keys drawn in "
        "proportion to the attention that they receive (attended plasticity), one point per "
        f"head{coloured}.",
        both
        if axes is None
        else "The queries are as captured, so the rotation of RoPE counts as well.",
        "The heads furthest from the diagonal have names: L is the layer, H the query head.",
        f"{'; '.join(rhos)}, over these heads." if rhos else None,
        interval_sentence("Lines are 95 % intervals,", first.groups) if first.has_lines else None,
        correction=correction_note(metrics, *columns),
        plasticity=shown,
    )
    words.write(figure, axes, "Attended plasticity", notes, caption, rows)
