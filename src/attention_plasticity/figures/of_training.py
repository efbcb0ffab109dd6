"""Means over checkpoints: a line per family, with the phases of the training shaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.figures.captions import column_label
from attention_plasticity.figures.marks import Entry
from attention_plasticity.figures.model_panels import (
    interval_line,
    lines_of,
    model_words,
    require_rows,
)
from attention_plasticity.figures.shapes import Layout, Lines, compose
from attention_plasticity.figures.style import TEXT, Axis, figure_text, share_axis
from attention_plasticity.metrics import ALIGNED_DROP

_SHADES = ("#e8eef4", "#f6ead9", "#e5f1ea", "#f3e6ee", "#eeeeee", "#f4f1d6")  # light, on white
_LOG_FROM = 100.0  # ratio of the last and the first checkpoint
_NO_FAMILY = "no family"


class PhaseBlock(NamedTuple):
    """A phase of the training: its first and its last checkpoint."""

    name: str
    first: float
    last: float


@dataclass(frozen=True)
class Phases:
    """Each phase is shaded up to the middle between its checkpoints and those of the next one."""

    blocks: Sequence[PhaseBlock]
    log: bool

    def draw(self, axes: Axes) -> list[Entry]:
        """One band per phase, below the lines."""
        middles = [
            math.sqrt(one.last * other.first) if self.log else (one.last + other.first) / 2.0
            for one, other in pairwise(self.blocks)
        ]
        starts = [block.first for block in self.blocks[:1]] + middles
        ends = middles + [block.last for block in self.blocks[-1:]]
        entries: list[Entry] = []
        for place, block in enumerate(self.blocks):
            colour = _SHADES[place % len(_SHADES)]
            axes.axvspan(starts[place], ends[place], color=colour, linewidth=0, zorder=0.1)
            entries.append((Patch(color=colour), figure_text(block.name)))
        return entries


def trajectories_figure(
    frame: pd.DataFrame, runs: Sequence[NamedRun], *, width: float = TEXT
) -> Figure:
    """Draw means over checkpoints: a line per family, a panel per metric, phases shaded.

    `frame` is the summary of the runs, which have a checkpoint.
    """
    own = frame[frame["minus"] == ""]
    require_rows(own, "trajectories")
    numbers = {one.label: float(one.checkpoint or 0.0) for one in runs}
    family = {one.label: one.family or _NO_FAMILY for one in runs}
    ordered = sorted(set(numbers.values()))
    log = ordered[0] > 0 and ordered[-1] / ordered[0] >= _LOG_FROM
    blocks = training_phases(runs)
    lines = own.assign(x=own["run"].map(numbers)).sort_values("x", kind="stable")
    lines = lines.assign(run=lines["run"].map(family))
    room = 0.04 * (ordered[-1] - ordered[0]) or 1.0
    across = Axis("checkpoint (steps or tokens)", ordered[0] - room, ordered[-1] + room)
    if log:
        across = Axis("checkpoint (steps or tokens)", scale="log")
    names = list(dict.fromkeys(family.values()))
    panels = [
        Lines(
            across,
            share_axis(column_label(metric), zero=metric == ALIGNED_DROP),
            lines_of(rows, names, rows["x"].tolist()),
            marks=[Phases(blocks, log)],
        )
        for metric in dict.fromkeys(own["metric"])
        for rows in [lines[lines["metric"] == metric]]
    ]
    notes = [interval_line(own, "bands")]
    if not blocks and any(one.phase for one in runs):
        notes.append("phases of the training overlap, so they are not shaded")
    words = model_words("Means over heads, over training", _shows(blocks, log), runs, notes=notes)
    return compose(panels, words, width=width, layout=Layout(height=1.9, least=2.9))


def training_phases(runs: Sequence[NamedRun]) -> list[PhaseBlock]:
    """The phases in the order of the training; empty if they cannot be shaded.

    That is the case if no phase is given, or if two phases have checkpoints among each other, such
    as phases of two families at the same numbers.
    """
    given = [(float(one.checkpoint or 0.0), one.phase) for one in runs if one.phase]
    blocks: list[PhaseBlock] = []
    for number, phase in sorted(given, key=lambda one: one[0]):
        if blocks and blocks[-1].name == phase:
            blocks[-1] = PhaseBlock(phase, blocks[-1].first, number)
            continue
        if phase in [block.name for block in blocks] or (blocks and blocks[-1].last == number):
            return []
        blocks.append(PhaseBlock(phase, number, number))
    return blocks


def _shows(blocks: Sequence[PhaseBlock], log: bool) -> str:
    shows = "Means over heads of checkpoints, one line per family."
    if log:
        shows += " The axis of checkpoints is logarithmic."
    if blocks:
        named = ", ".join(f"{block.name} ({block.first:g} to {block.last:g})" for block in blocks)
        shows += (
            f" Shaded: phases of the training, with their first and last checkpoint: {named}. A "
            "phase ends in the middle between two checkpoints."
        )
    return shows
