"""Queries and keys of one head on two principal components, before and after RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.style import (
    figure_style,
    line_shades,
    new_figure,
    tokens_in_short,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.point_frames import FRAMES, PointFrame, are_equal, known_frames
from attention_plasticity.tables.point_range import drawn_range, inside
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

_KINDS = {"q": "queries", "k": "keys"}
_NO_ROPE = "without RoPE"
_SMALL = 0.005  # half widths of intervals that have three decimals
_HEIGHTS = {1: 3.4, 2: 6.0}  # inches, by rows of panels


@dataclass(frozen=True)
class _Drawn:
    """What the figure shows."""

    name: str  # of the head
    parts: Mapping[str, pd.DataFrame]  # points by kind
    frames: Mapping[PointFrame, str]  # rows of panels, with their words
    known: Mapping[str, float]  # row of the head in the table of drift
    chosen: bool  # the head was not named

    @property
    def unknown(self) -> str | None:
        """The frame that is not known, in words. A layer without RoPE has one frame."""
        missing = [frame.words for frame in FRAMES if frame not in self.frames]
        return missing[0] if missing and _NO_ROPE not in self.frames.values() else None


def drift_figure(
    points: pd.DataFrame,
    *,
    layer: int | None = None,
    head: int | None = None,
    drift: pd.DataFrame | None = None,
    cmap: str = "viridis",
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw queries and keys of one head on their two leading components, before and after RoPE.

    The colour of a point is its position. Every panel has components of its own. Labels have the
    share of the variance of a component and its correlation with position, and titles the
    correlation along the axis of the drift, if `drift` has them. Without `layer` and `head`, the
    head whose queries drift most is drawn, or the first head.

    A layer without RoPE has one row of panels, and so has a layer whose rotary embedding is not
    known, or a table without coordinates after RoPE.

    `points` has one row per query or key, such as `Run.points`, and `drift` one row per head, such
    as `Run.drift`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import drift_figure
        >>> run = open_run("results/sample")
        >>> figure = drift_figure(run.points, layer=0, head=1, drift=run.drift)
        >>> [axes.get_title("left").splitlines()[0] for axes in figure.axes[:2]]
        ['queries before RoPE', 'keys before RoPE']
    """
    words = Words(**texts)
    if (layer is None) != (head is None):
        raise ConfigError("layer: give layer and head together, or neither")
    chosen = layer is None
    if layer is None or head is None:
        layer, head = _first_head(points, drift)
    rows = points[(points["layer"] == layer) & (points["q_head"] == head)]
    parts = {kind: rows[rows["kind"] == kind] for kind in _KINDS}
    name = f"layer {layer}, head {head}"
    if any(part.empty for part in parts.values()):
        raise ConfigError(f"the table of points: has no rows of {name}")
    frames = {frame: frame.words for frame in known_frames(rows)}
    if not frames:
        raise ConfigError(f"the table of points: has no coordinates of {name}")
    if are_equal(rows):
        frames = {FRAMES[0]: _NO_ROPE}
    drawn = _Drawn(name, parts, frames, _numbers(drift, layer, head), chosen)
    with figure_style():
        figure, outside = _panels(drawn, float(rows["position"].max()), cmap)
        _write(words, figure, drawn, outside)
    return figure


def _panels(drawn: _Drawn, last: float, cmap: str) -> tuple[Figure, list[int]]:
    """The figure, and the points beyond the axes of every row of panels."""
    rows = len(drawn.frames)
    figure, grid = new_figure(height=_HEIGHTS[rows], nrows=rows, ncols=2, squeeze=False)
    shades = ScalarMappable(Normalize(0.0, max(last, 1.0)), line_shades(cmap))
    outside = [0] * rows
    for row, (frame, where) in enumerate(drawn.frames.items()):
        for axes, (kind, part) in zip(grid[row], drawn.parts.items(), strict=True):
            outside[row] += _panel(axes, part, frame, shades)
            r = _drift_words(kind, frame, drawn.known)
            title = f"{_KINDS[kind]} {where}" + (f"\nr of drift {r}" if r else "")
            axes.set_title(title, fontweight="normal", fontsize=9.0)
            axes.set_xlabel(_label(kind, 0, frame, drawn.known), labelpad=1.0)
            axes.set_ylabel(_label(kind, 1, frame, drawn.known), labelpad=1.0)
    bar = figure.colorbar(
        shades, ax=grid, label="position (tokens)", location="bottom", aspect=50, pad=0.04 / rows
    )
    bar.outline.set_visible(False)
    bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tokens_in_short(value)))
    return figure, outside


def _first_head(points: pd.DataFrame, drift: pd.DataFrame | None) -> tuple[int, int]:
    """The head with points whose queries drift most before RoPE, or after RoPE if not known.

    The first head if neither is known.
    """
    heads = points[HEAD].drop_duplicates()
    for column in (f"q_drift_r{frame.ending}" for frame in FRAMES):
        if drift is not None and column in drift:
            found = heads.merge(drift[[*HEAD, column]], on=HEAD).dropna(subset=[column])
            if len(found):
                heads = found.sort_values(column, ascending=False, kind="stable")
                break
    layer, head = heads.iloc[0][HEAD]
    return int(layer), int(head)


def _numbers(drift: pd.DataFrame | None, layer: int, head: int) -> Mapping[str, float]:
    """The row of a head in the table of drift; empty if there is none."""
    if drift is None:
        return {}
    row = drift[(drift["layer"] == layer) & (drift["q_head"] == head)]
    return {} if row.empty else {str(name): float(value) for name, value in row.iloc[0].items()}


def _label(kind: str, number: int, frame: PointFrame, known: Mapping[str, float]) -> str:
    """`component 0`, with its share of the variance and its correlation with position."""
    share = known.get(f"{kind}_pc{number}_share{frame.ending}", np.nan)
    r = known.get(f"{kind}_pc{number}_r{frame.ending}", np.nan)
    parts = [f"{share:.0%}".replace("%", " %")] if np.isfinite(share) else []
    parts += [f"|r| {r:.2f}"] if np.isfinite(r) else []
    return f"component {number}" + (f"\n{', '.join(parts)}" if parts else "")


def _panel(axes: Axes, part: pd.DataFrame, frame: PointFrame, shades: ScalarMappable) -> int:
    """Draw points in the order of the table, which is random. Returns how many are outside."""
    x, y, position = (
        part[name].to_numpy(np.float64) for name in (*frame.coordinates, "position")
    )  # (n,)
    axes.set_xlim(*drawn_range(x))
    axes.set_ylim(*drawn_range(y))
    axes.scatter(x, y, c=shades.to_rgba(position), s=4, linewidths=0, alpha=0.7, rasterized=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4))
    return int(np.count_nonzero(~inside(x, y)))


def _write(words: Words, figure: Figure, drawn: _Drawn, outside: list[int]) -> None:
    told = _all_drifts(drawn)
    beyond = f"{count(sum(outside), 'point')} beyond the axes" if sum(outside) else None
    if len(outside) > 1 and beyond:
        beyond += f" ({outside[0]:,} before, {outside[1]:,} after RoPE)"
    unknown = f"coordinates {drawn.unknown} are not known" if drawn.unknown else None
    most = f"queries drift most {next(iter(drawn.frames)).words}"
    chosen = drawn.chosen and bool(told)
    notes = [
        "r of drift: correlation with position along an axis from other texts" if told else None,
        unknown,
        beyond,
        f"the head whose {most}" if chosen else None,
    ]
    has_error = any("±" in text for text in told)
    caption = words.caption(
        1,
        *_what_is_shown(drawn),
        f"The {unknown}." if unknown else None,
        f"Correlation with position along the axis of the drift, cross-fitted over groups of texts:"
        f" {'; '.join(told)}."
        if told
        else None,
        interval_sentence("± is half of the 95 % interval,", [drawn.known["n_groups"]])
        if has_error
        else None,
        f"{beyond} are not drawn." if beyond else None,
        f"Of all heads with points, this is the one whose {most}." if chosen else None,
    )
    words.write(figure, None, f"Drift with position, {drawn.name}", notes, caption)


def _what_is_shown(drawn: _Drawn) -> list[str]:
    """The first sentences of the caption."""
    counts = " and ".join(f"{len(part):,} {_KINDS[kind]}" for kind, part in drawn.parts.items())
    several = len(drawn.frames) > 1
    where = "before and after RoPE" if several else next(iter(drawn.frames.values()))
    found = [
        f"{counts} of {drawn.name} {where} on their two leading principal components, coloured by "
        "position."
    ]
    if several:
        found.append(
            "Both rows have the same tokens; each panel has components of its own. The vectors "
            "after RoPE are those that the attention compares."
        )
    if drawn.known:
        found.append(
            "Labels give the share of the variance on a component and the absolute value of its "
            "correlation with position."
        )
    return found


def _all_drifts(drawn: _Drawn) -> list[str]:
    """`before RoPE queries 0.31 ± 0.02, keys 0.12 ± 0.01` of every row; those that are known."""
    found = []
    for frame, where in drawn.frames.items():
        texts = {kind: _drift_words(kind, frame, drawn.known) for kind in _KINDS}
        told = [f"{_KINDS[kind]} {text}" for kind, text in texts.items() if text]
        found += [f"{where} {', '.join(told)}"] if told else []
    return found


def _drift_words(kind: str, frame: PointFrame, known: Mapping[str, float]) -> str | None:
    """`0.31 ± 0.02`, or `0.981 ± 0.003`; None if it is not known."""
    column = f"{kind}_drift_r{frame.ending}"
    value = known.get(column, np.nan)
    if not np.isfinite(value):
        return None
    error = pd.Series([known.get(f"{column}_se", np.nan)])
    half = float(half_width(error, pd.Series([known.get("n_groups", np.nan)]))[0])
    decimals = 3 if half < _SMALL else 2
    text = f"{value:.{decimals}f}" + (f" ± {half:.{decimals}f}" if np.isfinite(half) else "")
    return text.replace("-", "−")
