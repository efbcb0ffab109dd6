"""Figures of several runs: profiles over the context, and the trajectory over training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.comparison.cautions import Caution
from attention_plasticity.comparison.drawn import (
    MOST_LINES,
    Drawn,
    Floats,
    drawn_profiles,
    drawn_trajectory,
)
from attention_plasticity.comparison.layout import (
    MARKERS,
    caution_notes,
    legend_names,
    notes_and_legend,
    require_values,
    whisker_notes,
)
from attention_plasticity.comparison.names import part_words, short_names
from attention_plasticity.comparison.runs import ALL_LAYERS
from attention_plasticity.metrics import FIFTH_NAMES, FULL_ATTENTION, SLIDING_ATTENTION
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.shown import capitalised, parts_of_context
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    INK,
    PALETTE,
    VERMILION,
    figure_style,
    figure_text,
    line_shades,
    new_figure,
    plasticity_axis,
)
from qk_toolkit.formatting import count

_LINES: dict[str, Any] = {
    ALL_LAYERS: "-",
    FULL_ATTENTION: (0, (5, 2)),
    SLIDING_ATTENTION: (0, (1, 1.2)),
}
_OTHER_LINES: tuple[Any, ...] = (  # of other types, in their order
    (0, (6, 2, 1, 2)),
    (0, (1, 3.5)),
    (0, (10, 3)),
    (0, (4, 1.5, 1, 1.5, 1, 1.5)),
    (0, (2.2, 2.2)),
)
_LONGEST_TICK = 20  # characters
_ROOM_OF_LINES = 4  # characters; lines with gaps are long in the legend


def profiles_figure(compared: pd.DataFrame, cautions: Sequence[Caution] = ()) -> Figure:
    """Draw the mean profile of every run by fifths, and of every layer type in other lines.

    `compared` has one row per run and layer type, such as `Comparison.table`.

    Examples:
        >>> from attention_plasticity import compare, open_run
        >>> from attention_plasticity.plots import profiles_figure
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[0]), run.select(layers=[29])]
        >>> comparison = compare(parts, labels=["first", "last"])
        >>> figure = profiles_figure(comparison.table, comparison.cautions)
        >>> figure.axes[0].get_xlabel()
        'part of the longest text'
    """
    drawn = drawn_profiles(compared)
    require_values(drawn)
    with figure_style():
        figure, axes = new_figure()
        handles = _draw_profiles(axes, drawn)
        plasticity_axis(axes, drawn.shown.name, *drawn.ends)
        axes.set_xticks(range(len(FIFTH_NAMES)), FIFTH_NAMES)
        axes.set_xlabel(f"part of the {parts_of_context(drawn.shown)}")
        axes.set_title(f"{capitalised(drawn.shown.name)}, by fifths")
        notes = [*whisker_notes(drawn), *caution_notes(cautions, drawn.runs, "means")]
        if drawn.without_types:
            notes.insert(0, f"types of layers left out: more than {MOST_LINES} lines")
        notes_and_legend(figure, notes, handles, long_lines=len(set(drawn.types)) > 1)
    return figure


def _draw_profiles(axes: Any, drawn: Drawn) -> list[Any]:
    """Draw one line with whiskers per row, and return the lines for the legend."""
    values, halves, runs = drawn.values, drawn.halves, drawn.runs  # (rows, 5) twice
    known = bool(np.isfinite(halves).any())
    shifts = _shifts(len(values)) if known else np.zeros(len(values))  # (rows,)
    names, lines, handles = _legend(drawn.rows), _line_styles(drawn.types), []
    for number, run in enumerate(drawn.rows["run"]):
        colour, marker = _look(runs.index(str(run)), len(runs))
        x = np.arange(len(FIFTH_NAMES)) + shifts[number]
        whiskers(axes, x, values[number], halves[number], colour)
        options: Any = {"color": colour, "marker": marker, "label": names[number]}
        options |= {"markersize": 3 if known else 4, "linewidth": 1.0 if known else 1.4}
        handles += axes.plot(x, values[number], linestyle=lines[drawn.types[number]], **options)
    return handles


def _line_styles(types: Sequence[str]) -> dict[str, Any]:
    """A line style for each type of layers; seven types have different ones."""
    others = [name for name in dict.fromkeys(types) if name not in _LINES]
    return _LINES | {
        name: _OTHER_LINES[place % len(_OTHER_LINES)] for place, name in enumerate(others)
    }


def trajectory_figure(compared: pd.DataFrame, cautions: Sequence[Caution] = ()) -> Figure:
    """Draw plasticity and its first and last fifth over the runs, in the given order.

    `compared` has one row per run and layer type, such as `Comparison.table`.

    Examples:
        >>> from attention_plasticity import compare, open_run
        >>> from attention_plasticity.plots import trajectory_figure
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[0]), run.select(layers=[29])]
        >>> comparison = compare(parts, labels=["first", "last"])
        >>> figure = trajectory_figure(comparison.table, comparison.cautions)
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['first', 'last']
    """
    drawn = drawn_trajectory(compared)
    require_values(drawn)
    values, halves = drawn.values, drawn.halves  # (runs, 3)
    places = np.arange(len(values))
    shift = 0.015 * len(values) if np.isfinite(halves).any() else 0.0  # whiskers side by side
    with figure_style():
        figure, axes = new_figure()
        axes.fill_between(places, values[:, 1], values[:, 2], color=FAINT, alpha=0.5, linewidth=0)
        lines = (("whole context", INK), ("first fifth", BLUE), ("last fifth", VERMILION))
        handles = []
        for column, (label, colour) in enumerate(lines):
            x = places + (column - 1) * shift
            whiskers(axes, x, values[:, column], halves[:, column], colour)
            options: Any = {"color": colour, "label": label, "marker": MARKERS[column], "ms": 4}
            handles += axes.plot(x, values[:, column], **options)
        plasticity_axis(axes, drawn.shown.name, *drawn.ends)
        _name_ticks(axes, drawn.runs)
        axes.set_xlabel("checkpoint")
        axes.set_title(f"{capitalised(drawn.shown.name)}, over training")
        notes = [*whisker_notes(drawn), *caution_notes(cautions, drawn.runs, "means")]
        notes_and_legend(figure, notes, handles)
    return figure


def _legend(rows: pd.DataFrame) -> list[str]:
    """`model · full attention (12 heads)`; the number only if a run has several types."""
    runs = [str(label) for label in rows["run"]]
    if "layer_type" not in rows or (rows["layer_type"] == ALL_LAYERS).all():
        return legend_names(runs)
    parts = [
        f"{' · ' * bool(words)}{words} ({count(int(heads), 'head')})"
        for words, heads in zip(map(part_words, rows["layer_type"]), rows["heads"], strict=True)
    ]
    names = legend_names(runs, room=max(map(len, parts)) + _ROOM_OF_LINES)
    return [name + part for name, part in zip(names, parts, strict=True)]


def _look(place: int, runs: int) -> tuple[Any, str]:
    """Colour and marker of a run. More runs than colours have shades in their order."""
    marker = MARKERS[place % len(MARKERS)]
    if runs <= len(PALETTE):
        return PALETTE[place], marker
    return tuple(line_shades("viridis")(place / (runs - 1))), marker


def _shifts(rows: int) -> Floats:
    """(rows,) small shifts along x, so that whiskers of several lines do not cover each other."""
    widest = min(0.2, 0.04 * (rows - 1))
    return np.linspace(-widest, widest, rows)


def _name_ticks(axes: Any, labels: Sequence[str]) -> None:
    """Names of runs at the x axis, turned if they are long, and only some of many."""
    short = [figure_text(name) for name in short_names(labels, _LONGEST_TICK)]
    long = len(short) > 6 or max(map(len, short)) > 9
    step = max(1, -(-len(short) // 16))
    places = range(0, len(short), step)
    turned: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(places, short[::step], **turned)
