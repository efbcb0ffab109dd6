"""Attention by distance: the share of attention in every distance bin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import band, whiskers
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    INK,
    figure_style,
    legend_above,
    line_shades,
    new_figure,
    whole,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.attention_masses import HeadMasses, head_masses, mass_bins
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_PARTS = ("early", "middle", "late")
_MOST_LABELS = 18  # on the axis of distances
_SPREAD = (0.1, 0.9)


def attention_figure(
    attention: pd.DataFrame,
    *,
    layer: int | None = None,
    head: int | None = None,
    by_position: bool = False,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the share of attention by distance, of one head or as a mean over heads.

    The value of a head is the mean over its tokens. One head has 95 % intervals; the mean over
    heads has the range of the middle 80 % of heads. `by_position` draws a line for the early, the
    middle and the late query buckets.

    `attention` has one row per query head and query bucket, such as `Run.table("attention")`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import attention_figure
        >>> run = open_run("results/sample")
        >>> figure = attention_figure(run.table("attention"), layer=0, head=1)
        >>> figure.axes[0].get_ylabel()
        'share of attention'
    """
    words = Words(**texts)
    rows = _rows_of(attention, layer, head)
    bins = mass_bins(rows)
    if not bins:
        raise ConfigError("the table of attention: has no masses, so there is nothing to draw")
    of_head = layer is not None
    with figure_style():
        figure, axes = new_figure()
        if by_position:
            drawn = _draw_parts(axes, rows, bins, of_head)
        else:
            drawn = _draw_bars(axes, head_masses(rows, bins), of_head)
        _axes(axes, bins)
        name = f"layer {layer}, head {head}" if of_head else None
        default = f"Attention by distance, {name}" if name else "Attention by distance"
        heads, groups = len(rows[HEAD].drop_duplicates()), rows["n_groups"]
        sinks = _sinks(rows)
        note = f"first four tokens: {sinks:.2f} of the attention, in all bins"
        notes = [name or f"mean over {words.heads(heads)}", note, *drawn.notes]
        mean = f"of {name}" if name else "as a mean over heads"
        caption = words.caption(
            heads,
            f"Share of attention by distance from query to key, {mean}, in bins of distance 0, 1, "
            "2–3, 4–7 and so on.",
            f"The bins include the first four tokens of a text, which receive {sinks:.2f} of the "
            "attention.",
            drawn.sentence,
            interval_sentence(f"{drawn.intervals} are upper bounds of 95 % intervals,", groups)
            if drawn.intervals
            else None,
        )
        words.write(figure, axes, default, notes, caption, drawn.legend_rows)
    return figure


@dataclass(frozen=True)
class _Drawn:
    """What the texts around the figure need."""

    notes: tuple[str, ...] = ()
    sentence: str | None = None
    intervals: str | None = None  # the word for them
    legend_rows: int = 0


def _rows_of(attention: pd.DataFrame, layer: int | None, head: int | None) -> pd.DataFrame:
    """The rows of one head, or of all heads."""
    if (layer is None) != (head is None):
        raise ConfigError("layer: give layer and head together, or neither")
    if layer is None:
        return attention
    rows = attention[(attention["layer"] == layer) & (attention["q_head"] == head)]
    if rows.empty:
        raise ConfigError(f"the table of attention: has no rows of layer {layer}, head {head}")
    return rows


def _draw_bars(axes: Axes, masses: HeadMasses, of_head: bool) -> _Drawn:
    """Draw a bar per bin, with the interval of the head or the spread over heads."""
    x = np.arange(masses.values.shape[1])
    mean = _mean(masses)
    axes.bar(x, mean, width=0.8, color=BLUE, alpha=0.85)
    if of_head:
        if not whiskers(axes, x, mean, masses.half[0], INK):
            return _Drawn()
        note = "whiskers: 95 % interval over texts (upper bound)"
        return _Drawn((note,), intervals="Whiskers")
    low, high = np.nanquantile(masses.values, _SPREAD, axis=0)  # (bins,)
    spread: dict[str, Any] = {
        "facecolor": (0.0, 0.0, 0.0, 0.07),
        "edgecolor": INK,
        "linewidth": 0.7,
    }
    axes.bar(x, high - low, bottom=low, width=0.5, **spread)
    handles = [Patch(color=BLUE, alpha=0.85), Patch(**spread)]
    rows = legend_above(axes, handles, ["mean over heads", "middle 80 % of heads (no error bar)"])
    sentence = (
        "Boxes are the range of the middle 80 % of heads: how much heads differ, not the error of "
        "the mean."
    )
    return _Drawn(sentence=sentence, legend_rows=rows)


def _draw_parts(axes: Axes, rows: pd.DataFrame, bins: list[int], of_head: bool) -> _Drawn:
    """Draw a line per third of the query buckets, with the intervals of a head."""
    buckets = np.unique(rows["q_bucket"])
    parts = np.array_split(buckets, min(len(_PARTS), len(buckets)))
    names = {1: _PARTS[1:2], 2: _PARTS[::2], 3: _PARTS}[len(parts)]
    shades = line_shades("viridis")(np.linspace(0.0, 0.85, len(parts)))
    x = np.arange(len(bins), dtype=np.float64)
    known = False
    for name, part, shade in zip(names, parts, shades, strict=True):
        chosen = rows[rows["q_bucket"].isin(part)]
        masses = head_masses(chosen, bins)
        label = f"{name}: {_place(chosen)}"
        mean = _mean(masses)
        axes.plot(x, mean, color=shade, linewidth=1.6, marker="o", markersize=3, label=label)
        if of_head:
            drawn = band(axes, x, mean, masses.half[0], color=shade, alpha=0.2)
            known = known or drawn is not None
    legend_rows = legend_above(axes, *axes.get_legend_handles_labels())
    notes = ["lines: thirds of the query buckets, with their positions"]
    if known:
        notes.append("bands: 95 % interval over texts (upper bound)")
    sentence = (
        "The lines are early, middle and late queries: thirds of the query buckets, with the mean "
        "positions of their first and last bucket in the legend."
    )
    return _Drawn(tuple(notes), sentence, "Bands" if known else None, legend_rows)


def _mean(masses: HeadMasses) -> Floats:
    """(bins,) mean over the heads with a value."""
    known = masses.values[~np.isnan(masses.values[:, 0])]
    return np.asarray(known.mean(axis=0), np.float64)


def _sinks(rows: pd.DataFrame) -> float:
    """Share of attention on the first four tokens, as a mean over heads."""
    known = rows[rows["sink_mass"].notna()]
    size = known["n_tokens"]
    heads = [known[name] for name in HEAD]
    totals = (known["sink_mass"] * size).groupby(heads).sum() / size.groupby(heads).sum()
    return float(totals.mean())


def _place(rows: pd.DataFrame) -> str:
    """Mean positions of the first and the last bucket, or the numbers of these buckets."""
    if "q_position" not in rows or rows["q_position"].isna().all():
        low, high, unit = rows["q_bucket"].min(), rows["q_bucket"].max(), "bucket"
    else:
        means = rows.groupby("q_bucket")["q_position"].mean()
        low, high, unit = means.min(), means.max(), ""
    places = whole(low) if low == high else f"{whole(low)}–{whole(high)}"
    return f"{unit} {places}" if unit else places


def _axes(axes: Axes, bins: list[int]) -> None:
    axes.set_xlabel("distance from query to key (tokens; bins 0, 1, 2–3, 4–7, …)")
    step = -(-len(bins) // _MOST_LABELS)
    places = np.arange(len(bins))[::step]
    axes.set_xticks(places, [_short(bins[place]) for place in places])
    axes.set_ylabel("share of attention")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)


def _short(first: int) -> str:
    """`512`, `1k`, `64k`, `1M`: powers of two."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if first >= size:
            return f"{first // size}{unit}"
    return str(first)
