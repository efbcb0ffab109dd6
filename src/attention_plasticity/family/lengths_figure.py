"""Plasticity at one position, rotary phase and their drops by length of the context, per model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.lengths import (
    BY_FIFTH,
    BY_LENGTH,
    PHASE_DROP,
    of_all_layers,
)
from attention_plasticity.family.panels import (
    INTERVALS,
    WIDE,
    category_lines,
    finish,
    interval_words,
    models_caption,
    panels,
    plain_axis,
    require_rows,
    turned_ticks,
)
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, PHASE
from attention_plasticity.plots.style import figure_style, plasticity_axis
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION

_LABELS = {
    ALIGNED: "plasticity\nat one position",
    PHASE: "rotary phase",
    ALIGNED_DROP: "drop of plasticity\nat one position",
    PHASE_DROP: "drop of rotary phase",
}
_POSITIONS = (
    "A value is the mean over the heads of a model and over positions: over the bins of queries "
    "whose middle is in the part."
)
_NO_VALUE = (
    "A part without a value has no bin of queries with an earlier bin of keys, or no text reaches "
    "it; a smaller bin_size of the analysis gives values to shorter lengths."
)


def lengths_figure(
    table: pd.DataFrame, runs: Sequence[ComparedRun], *, width: float = WIDE
) -> Figure:
    """Draw plasticity, phase and their drops by absolute length, one line per model.

    `table` is that of `length_table`.
    """
    quantities = (ALIGNED, PHASE, ALIGNED_DROP, PHASE_DROP)
    title = f"{AT_ONE_POSITION.name.capitalize()} and rotary phase, by length of the context"
    first = _start_of_drops(table)
    what = (
        "Plasticity at one position, rotary phase (plasticity over a bin minus plasticity at one "
        "position), and the drops of both by length of the context, one line per model. "
        f"{_POSITIONS} K is 1,024 tokens."
    )
    if first is not None:
        what += f" A drop is the value at {first} minus the value at this length."
    return _figure(table, runs, BY_LENGTH, quantities, (title, what), width)


def phase_fifths_figure(
    table: pd.DataFrame, runs: Sequence[ComparedRun], *, width: float = WIDE
) -> Figure:
    """Draw rotary phase and its drop by fifths of the longest text, one line per model."""
    what = (
        "Rotary phase (plasticity over a bin minus plasticity at one position) by fifths of the "
        f"longest text, one line per model. {_POSITIONS} A drop is the value in the first fifth "
        "minus the value in this fifth."
    )
    title = "Rotary phase, by fifths of the longest text"
    return _figure(table, runs, BY_FIFTH, (PHASE, PHASE_DROP), (title, what), width)


def _start_of_drops(table: pd.DataFrame) -> str | None:
    """The part from which drops are measured; None if there are no drops."""
    lengths = table[table["divided"] == BY_LENGTH]
    ends = lengths.loc[lengths["quantity"] == ALIGNED_DROP, "start"]
    if ends.empty:
        return None
    parts = lengths[lengths["end"] == ends.min()]["part"]
    return None if parts.empty else str(parts.iloc[0])


def _figure(
    table: pd.DataFrame,
    runs: Sequence[ComparedRun],
    divided: str,
    quantities: Sequence[str],
    words: tuple[str, str],
    width: float,
) -> Figure:
    shown = {name: of_all_layers(table, divided, name) for name in quantities}
    shown = {name: rows for name, rows in shown.items() if not rows.empty}
    drawn = pd.concat(shown.values()) if shown else table.iloc[:0]
    require_rows(drawn, "lengths")
    known = set(drawn["run"])
    labels = [run.label for run in runs if run.label in known]
    parts = drawn.sort_values("start")["part"].drop_duplicates().tolist()
    with figure_style():
        figure, places = panels(len(shown), width)
        for axes, (name, rows) in zip(places, shown.items(), strict=True):
            handles = category_lines(axes, rows, labels, parts)
            if name == ALIGNED:
                plasticity_axis(axes, _LABELS[name], rows["mean"], rows["low"], rows["high"])
            else:
                plain_axis(axes, _LABELS[name], zero=name in (ALIGNED_DROP, PHASE_DROP))
            by_length = divided == BY_LENGTH
            axes.set_xlabel("position (tokens)" if by_length else "part of the longest text")
            turned_ticks(axes)
        others = [run.label for run in runs if run.label not in known]
        missing = f"No plasticity at one position: {', '.join(others)}." if others else ""
        caption = models_caption(words[1], runs, [INTERVALS, _NO_VALUE, missing])
        return finish(figure, words[0], [interval_words(drawn)], handles, caption)
