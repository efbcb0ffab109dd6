"""Metrics over checkpoints: a line per family, with the phases of the training shaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from attention_plasticity.comparison.figures import legend_names, run_look
from attention_plasticity.family.checkpoints import Checkpoint, PhaseBlock, training_phases
from attention_plasticity.family.panels import (
    INTERVALS,
    WIDE,
    finish,
    half_widths,
    interval_words,
    models_caption,
    panels,
    plain_axis,
    require_rows,
)
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.shown import column_label
from attention_plasticity.plots.style import (
    figure_style,
    figure_text,
    label_lines,
    tokens_in_short,
)

_SHADES = ("#e8eef4", "#f6ead9", "#e5f1ea", "#f3e6ee", "#eeeeee", "#f4f1d6")  # light, on white
_LOG_FROM = 100.0  # ratio of the last and the first checkpoint
_NO_FAMILY = "no family"


def checkpoints_figure(
    table: pd.DataFrame, checkpoints: Sequence[Checkpoint], *, width: float = WIDE
) -> Figure:
    """Draw every metric of `checkpoint_table` over checkpoints, one panel per metric."""
    require_rows(table, "trajectories")
    metrics = list(dict.fromkeys(table["metric"]))
    families = list(dict.fromkeys(table["family"]))
    blocks = training_phases(checkpoints)
    numbers = sorted({one.number for one in checkpoints})
    log = numbers[0] > 0 and numbers[-1] / numbers[0] >= _LOG_FROM
    with figure_style():
        figure, places = panels(len(metrics), width)
        for axes, metric in zip(places, metrics, strict=True):
            _shade(axes, blocks, log=log)
            handles = _lines(axes, table[table["metric"] == metric], families)
            plain_axis(axes, label_lines(column_label(metric), 1.7), zero="drop" in metric)
            _checkpoint_axis(axes, numbers, log=log)
        handles += [
            Patch(color=_SHADES[place % len(_SHADES)], label=figure_text(block.name))
            for place, block in enumerate(blocks)
        ]
        notes = [interval_words(table)]
        if not blocks and any(one.phase for one in checkpoints):
            notes.append("phases of the training overlap, so they are not shaded")
        runs = [one.run for one in checkpoints]
        caption = models_caption(_what(blocks, log=log), runs, [INTERVALS])
        return finish(figure, "Means over heads, over training", notes, handles, caption)


def _what(blocks: Sequence[PhaseBlock], *, log: bool) -> str:
    what = "Means over heads of checkpoints, one line per family."
    if log:
        what += " The axis of checkpoints is logarithmic."
    if blocks:
        named = ", ".join(f"{block.name} ({block.first:g} to {block.last:g})" for block in blocks)
        what += (
            f" Shaded: phases of the training, with their first and last checkpoint: {named}. A "
            "phase ends in the middle between two checkpoints."
        )
    return what


def _lines(axes: Axes, rows: pd.DataFrame, families: Sequence[str]) -> list[Any]:
    handles = []
    names = legend_names([name or _NO_FAMILY for name in families])
    for place, family in enumerate(families):
        own = rows[rows["family"] == family]
        x, y = (own[name].to_numpy(np.float64) for name in ("checkpoint", "mean"))
        colour, marker = run_look(place, len(families))
        whiskers(axes, x, y, half_widths(own), colour, cap=2.0)
        options: Any = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.0}
        handles += axes.plot(x, y, label=names[place], **options)
    return handles


def _shade(axes: Axes, blocks: Sequence[PhaseBlock], *, log: bool) -> None:
    """Shade each phase up to the middle between its checkpoints and those of its neighbours."""
    middles = [
        math.sqrt(one.last * other.first) if log else (one.last + other.first) / 2.0
        for one, other in pairwise(blocks)
    ]
    starts = [block.first for block in blocks[:1]] + middles
    ends = middles + [block.last for block in blocks[-1:]]
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        colour = _SHADES[place % len(_SHADES)]
        axes.axvspan(start, end, color=colour, linewidth=0, zorder=0.1)


def _checkpoint_axis(axes: Axes, numbers: Sequence[float], *, log: bool) -> None:
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        room = 0.04 * (numbers[-1] - numbers[0]) or 1.0
        axes.set_xlim(numbers[0] - room, numbers[-1] + room)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_xlabel("checkpoint (steps or tokens)")


def _short(number: float) -> str:
    """`1k`, `250k`, `2B`."""
    for size, unit in ((1e12, "T"), (1e9, "B")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return tokens_in_short(number) if number >= 0 else ""
