"""Queries and keys of one head on two principal components, coloured by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attention_plasticity.metrics import BEFORE_ROPE
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.style import (
    figure_style,
    line_shades,
    new_figure,
    tokens_in_short,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.point_range import drawn_range, inside
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

_KINDS = {"q": "queries", "k": "keys"}
_HEIGHT = 3.4  # inches


def drift_figure(
    points: pd.DataFrame,
    *,
    layer: int | None = None,
    head: int | None = None,
    drift: pd.DataFrame | None = None,
    cmap: str = "viridis",
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw queries and keys of one head before RoPE on their two leading components.

    The colour of a point is its position. Labels have the share of the variance of a component and
    its correlation with position, if `drift` has them. Without `layer` and `head`, the head whose
    queries drift most is drawn, or the first head.

    `points` has one row per query or key, such as `Run.points`, and `drift` one row per head, such
    as `Run.drift`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import drift_figure
        >>> run = open_run("results/sample")
        >>> figure = drift_figure(run.points, layer=0, head=1, drift=run.drift)
        >>> figure.axes[2].get_xlabel()
        'position (tokens)'
    """
    words = Words(**texts)
    if (layer is None) != (head is None):
        raise ConfigError("layer: give layer and head together, or neither")
    chosen = layer is None
    if layer is None or head is None:
        layer, head = _first_head(points, drift)
    rows = points[(points["layer"] == layer) & (points["q_head"] == head)]
    parts = {kind: rows[rows["kind"] == kind] for kind in _KINDS}
    if any(part.empty for part in parts.values()):
        raise ConfigError(f"the table of points: has no rows of layer {layer}, head {head}")
    known = _numbers(drift, layer, head)
    name = f"layer {layer}, head {head}"
    with figure_style():
        figure, grid = new_figure(height=_HEIGHT, ncols=2)
        last = float(rows["position"].max())
        shades = ScalarMappable(Normalize(0.0, max(last, 1.0)), line_shades(cmap))
        outside = 0
        for axes, (kind, part) in zip(grid, parts.items(), strict=True):
            outside += _panel(axes, part, shades)
            axes.set_title(_KINDS[kind], fontweight="normal")
            axes.set_xlabel(_label(kind, 0, known))
            axes.set_ylabel(_label(kind, 1, known))
        bar = figure.colorbar(
            shades, ax=grid, label="position (tokens)", location="bottom", aspect=50, pad=0.04
        )
        bar.outline.set_visible(False)
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tokens_in_short(value)))
        _write(words, figure, name, parts, known, outside, chosen)
    return figure


def _first_head(points: pd.DataFrame, drift: pd.DataFrame | None) -> tuple[int, int]:
    """The head with points whose queries drift most before RoPE; the first one if not known."""
    heads = points[HEAD].drop_duplicates()
    column = f"q_drift_r{BEFORE_ROPE}"
    if drift is not None and column in drift:
        found = heads.merge(drift[[*HEAD, column]], on=HEAD).dropna(subset=[column])
        if len(found):
            heads = found.sort_values(column, ascending=False, kind="stable")
    layer, head = heads.iloc[0][HEAD]
    return int(layer), int(head)


def _numbers(drift: pd.DataFrame | None, layer: int, head: int) -> Mapping[str, float]:
    """The row of a head in the table of drift; empty if there is none."""
    if drift is None:
        return {}
    row = drift[(drift["layer"] == layer) & (drift["q_head"] == head)]
    return {} if row.empty else {str(name): float(value) for name, value in row.iloc[0].items()}


def _label(kind: str, number: int, known: Mapping[str, float]) -> str:
    """`component 0`, with its share of the variance and its correlation with position."""
    share = known.get(f"{kind}_pc{number}_share{BEFORE_ROPE}", np.nan)
    r = known.get(f"{kind}_pc{number}_r{BEFORE_ROPE}", np.nan)
    parts = [f"{share:.0%}".replace("%", " %")] if np.isfinite(share) else []
    parts += [f"|r| {r:.2f}"] if np.isfinite(r) else []
    return f"component {number}" + (f"\n{', '.join(parts)}" if parts else "")


def _panel(axes: Axes, part: pd.DataFrame, shades: ScalarMappable) -> int:
    """Draw points in the order of the table, which is random. Returns how many are outside."""
    x, y, position = (part[name].to_numpy(np.float64) for name in ("pc0", "pc1", "position"))
    axes.set_xlim(*drawn_range(x))
    axes.set_ylim(*drawn_range(y))
    axes.scatter(x, y, c=shades.to_rgba(position), s=4, linewidths=0, alpha=0.7, rasterized=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4))
    return int(np.count_nonzero(~inside(x, y)))


def _write(
    words: Words,
    figure: Figure,
    name: str,
    parts: Mapping[str, pd.DataFrame],
    known: Mapping[str, float],
    outside: int,
    chosen: bool,
) -> None:
    counts = " and ".join(f"{len(part):,} {_KINDS[kind]}" for kind, part in parts.items())
    drifts = [_drift_words(kind, known) for kind in _KINDS]
    told = [f"{_KINDS[kind]} {text}" for kind, text in zip(_KINDS, drifts, strict=True) if text]
    beyond = f"{count(outside, 'point')} beyond the axes" if outside else None
    has_error = any("±" in text for text in told)
    notes = [
        "before RoPE",
        f"r of drift: {', '.join(told)}" if told else None,
        beyond,
        "the head whose queries drift most" if chosen and told else None,
    ]
    caption = words.caption(
        1,
        f"{counts} of {name} before RoPE on their two leading principal components, coloured by "
        "position.",
        "Labels give the share of the variance on a component and the absolute value of its "
        "correlation with position."
        if known
        else None,
        f"Correlation with position along the axis of the drift, cross-fitted over groups of texts:"
        f" {', '.join(told)}."
        if told
        else None,
        interval_sentence("± is half of the 95 % interval,", [known["n_groups"]])
        if has_error
        else None,
        f"{beyond} are not drawn." if beyond else None,
        "Of all heads with points, this one has the queries that drift most."
        if chosen and told
        else None,
    )
    words.write(figure, None, f"Drift with position, {name}", notes, caption)


def _drift_words(kind: str, known: Mapping[str, float]) -> str | None:
    """`0.31 ± 0.02`; None if it is not known."""
    column = f"{kind}_drift_r{BEFORE_ROPE}"
    value = known.get(column, np.nan)
    if not np.isfinite(value):
        return None
    error = pd.Series([known.get(f"{column}_se", np.nan)])
    half = float(half_width(error, pd.Series([known.get("n_groups", np.nan)]))[0])
    text = f"{value:.2f}" + (f" ± {half:.2f}" if np.isfinite(half) else "")
    return text.replace("-", "−")
