"""Reference lines in figures over the context: the baselines of a run, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from attention_plasticity.plots.intervals import band
from attention_plasticity.plots.style import ORANGE, PINK
from attention_plasticity.tables.baselines import BASELINES
from attention_plasticity.tables.finished_run import FinishedRun

Floats = npt.NDArray[np.float64]
Baselines = Mapping[str, FinishedRun]
"""The baselines of a run by their words, as `FinishedRun.baselines`."""

_LOOKS: dict[str, tuple[str, Any, str]] = {
    BASELINES["random"]: (ORANGE, (0, (4.5, 1.8)), "dashed"),
    BASELINES["shuffled"]: (PINK, (0, (1.2, 1.2)), "dotted"),
}
"""Colour, dashes and their name of the line of a baseline."""
_MEANING = {
    BASELINES["random"]: "the same model with random weights",
    BASELINES["shuffled"]: "the same model on texts whose tokens are in random order",
}


@dataclass(frozen=True)
class Reference:
    """The mean over heads of a baseline at some places of the x axis."""

    words: str
    x: Floats  # (n,)
    y: Floats  # (n,)
    half: Floats  # (n,) half widths of the intervals; NaN if not known


def known_references(references: Sequence[Reference]) -> list[Reference]:
    """The references that have a value."""
    return [one for one in references if np.isfinite(one.y).any()]


def draw_references(axes: Axes, references: Sequence[Reference]) -> list[Line2D]:
    """Draw a thin line with a light band for every reference. Returns the lines."""
    lines = []
    for one in references:
        colour, dashes, _ = _LOOKS[one.words]
        band(axes, one.x, one.y, one.half, color=colour, alpha=0.22, zorder=2.15)
        drawn = axes.plot(one.x, one.y, color=colour, linestyle=dashes, linewidth=1.2, zorder=2.3)
        drawn[0].set_label(one.words)
        lines += drawn
    return lines


def references_reach(references: Sequence[Reference]) -> Floats:
    """The ends of all intervals, for the range of an axis."""
    ends = [one.y + sign * np.nan_to_num(one.half) for one in references for sign in (-1, 1)]
    return np.concatenate([np.empty(0), *ends])


def references_sentence(references: Sequence[Reference], baselines: Baselines) -> str | None:
    """The sentence of a caption: what the lines are, and of how many texts; None without lines."""
    if not references:
        return None
    parts = []
    for one in references:
        texts = baselines[one.words].texts
        number = f" ({texts['count']:,} texts)" if texts.get("count") else ""
        parts.append(f"{_LOOKS[one.words][2]}, {_MEANING[one.words]}{number}")
    known = any(np.isfinite(one.half).any() for one in references)
    bands = ", with bands of the 95 % intervals of the mean" if known else ""
    return f"Reference lines: {'; '.join(parts)}{bands}."
