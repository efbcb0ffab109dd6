"""Texts and axes of figures that are not made with `compose`: of several models, of findings."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

from attention_plasticity.figures.style import (
    FAINT,
    QUIET,
    SMALLEST,
    TITLE,
    WIDTH,
    figure_text,
    text_width,
    whole,
)

_LONGEST_FOOTNOTE = 82  # characters in the usual width
_NARROW = 0.25  # range of plasticity that is drawn without the rest of 0 to 1


def new_figure(width: float = WIDTH, height: float = 3.1, **layout: Any) -> tuple[Figure, Any]:
    """A figure without a window, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**layout)


def footnote(figure: Figure, *notes: str | None) -> int:
    """Small text at the bottom, in lines of bounded width. Returns the number of lines."""
    width = int(_LONGEST_FOOTNOTE * figure.get_figwidth() / WIDTH)  # characters of any shape
    room = 72 * 0.97 * figure.get_figwidth()  # points
    lines: list[str] = []
    for note in filter(None, notes):
        joined = f"{lines[-1]}  ·  {note}" if lines else note
        if lines and text_width(joined) <= room:
            lines[-1] = joined
        else:
            for part in note.splitlines():
                lines += textwrap.wrap(part, width) or [""]
    if lines:
        text = "\n".join(lines)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALLEST, color=QUIET)
    return len(lines)


def panel_headline(figure: Figure, title: str | None, default: str, model: str | None) -> None:
    """A title above all panels of a figure."""
    text = figure_text(f"{default}: {model}" if title is None and model else title or default)
    options: Any = {"x": 0.02, "ha": "left", "wrap": True, "fontsize": TITLE}
    figure.suptitle(text, fontweight="bold", **options)


def position_axis(axes: Axes, positions: npt.NDArray[np.float64], log: bool) -> None:
    """Set up the x axis for positions; `log` gives powers of two."""
    axes.set_xlabel("query position (tokens)")
    axes.margins(x=0.02)
    if log:
        start = max(1.0, float(positions[positions > 0].min()))
        axes.set_xscale("symlog", base=2, linthresh=start)
        ticks = SymmetricalLogLocator(base=2, linthresh=start)
        ticks.set_params(numticks=7)
        axes.xaxis.set_major_locator(ticks)
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 8, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))


def plasticity_axis(axes: Axes, label: str, *drawn: npt.ArrayLike) -> None:
    """Set up the y axis for plasticity: 0 to 1, or a part of it, which the label then names.

    It is a part if everything that is drawn, the ends of intervals included, is in less than a
    quarter of 0 to 1. All figures of plasticity over the context have this rule.
    """
    axes.set_ylabel(label)
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
    values = np.concatenate([np.empty(0), *(np.ravel(np.asarray(part)) for part in drawn)])
    known = values[np.isfinite(values)]
    if len(known) and np.ptp(known) < _NARROW:
        _part_of_plasticity(axes, label, float(known.min()), float(known.max()))
    else:
        axes.set_ylim(-0.02, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])


def _part_of_plasticity(axes: Axes, label: str, low: float, high: float) -> None:
    """An axis from the tick below the smallest value to the tick above the largest one."""
    room = max(0.005, 0.03 * (high - low))
    locator = MaxNLocator(5, steps=[1, 2, 5, 10], min_n_ticks=3)
    ticks = np.clip(locator.tick_values(low - room, high + room), 0.0, 1.0)
    ticks = np.unique(ticks.round(9))
    shown = max(0, math.ceil(-math.log10(np.diff(ticks).max()) - 1e-9))  # decimals
    labels = [f"{tick:.{shown}f}" for tick in ticks]
    axes.set_yticks(ticks.tolist(), labels)
    margin = 0.02 * (ticks[-1] - ticks[0])
    axes.set_ylim(min(ticks[0] - margin, low - room), max(ticks[-1] + margin, high + room))
    axes.set_ylabel(f"{label}\n(axis from {labels[0]} to {labels[-1]})")
