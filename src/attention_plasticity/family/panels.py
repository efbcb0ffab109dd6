"""What the figures of several models share: panels, a line per model, title, legend, caption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_plasticity.comparison.drawn import run_line
from attention_plasticity.comparison.figures import (
    ROUND_STEPS,
    legend_names,
    notes_and_legend,
    run_look,
    side_shifts,
)
from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.plots.captions import set_caption
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.style import (
    FAINT,
    QUIET,
    new_figure,
    panel_headline,
)
from attention_plasticity.tables.names import clean
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

WIDE = 7.0  # inches: the text of a page
_LEAST_PANEL = 2.9  # inches
_PANEL_HEIGHT = 2.4


def panels(
    number: int, width: float, height: float = _PANEL_HEIGHT, *, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, as many as fit, or `columns`; further ones are below."""
    columns = columns or max(1, min(number, int(width / _LEAST_PANEL)))
    rows = math.ceil(number / columns)
    figure, grid = new_figure(width, height * rows, ncols=columns, nrows=rows, squeeze=False)
    for axes in grid.flat[number:]:
        axes.set_axis_off()
    return figure, list(grid.flat[:number])


def category_lines(
    axes: Axes, table: pd.DataFrame, labels: Sequence[str], parts: Sequence[str]
) -> list[Any]:
    """One line per model over named parts, with whiskers. Returns the lines for the legend.

    `table` has the columns `run`, `part`, `mean`, `low` and `high`.
    """
    handles, shifts = [], side_shifts(len(labels))  # (models,)
    names = legend_names(labels)
    for place, label in enumerate(labels):
        rows = table[table["run"] == label].set_index("part").reindex(list(parts))
        colour, marker = run_look(place, len(labels))
        x = np.arange(len(parts)) + shifts[place]
        value = rows["mean"].to_numpy(np.float64)  # (parts,)
        whiskers(axes, x, value, half_widths(rows), colour, cap=2.0)
        options: Any = {"color": colour, "marker": marker, "markersize": 3, "linewidth": 1.0}
        handles += axes.plot(x, value, label=names[place], **options)
    axes.set_xticks(range(len(parts)), list(parts))
    axes.set_xlim(-0.4, len(parts) - 0.6)
    return handles


def half_widths(rows: pd.DataFrame) -> Array:
    """(rows,) half widths of the intervals; NaN if they are not known."""
    return ((rows["high"] - rows["low"]) / 2.0).to_numpy(np.float64)


def plain_axis(axes: Axes, label: str, *, zero: bool = False) -> None:
    """The y axis of a quantity that is not between 0 and 1, with a line at 0 if wanted."""
    axes.set_ylabel(label)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS, min_n_ticks=3))
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
    if zero:
        axes.axhline(0.0, color=QUIET, linewidth=0.8, zorder=0.5)


def turned_ticks(axes: Axes) -> None:
    """Turn the names at the x axis, so that they have room in a narrow panel."""
    for label in axes.get_xticklabels():
        label.set(rotation=35, ha="right", rotation_mode="anchor")


def finish(
    figure: Figure, title: str, notes: Sequence[str], handles: Sequence[Any], caption: str
) -> Figure:
    """Write the title, the legend and the notes, and keep the caption."""
    panel_headline(figure, title, title, None)
    notes_and_legend(figure, notes, handles)
    set_caption(figure, caption)
    return figure


def models_caption(
    what: str, runs: Sequence[ComparedRun], details: Sequence[str], cautions: Sequence[str] = ()
) -> str:
    """What is drawn, the models, and how errors are made."""
    lines = [what, "", f"{count(len(runs), 'model')}:", *(f"- {run_line(run)}" for run in runs)]
    lines += ["", " ".join(filter(None, details))]
    if cautions:
        lines += ["", "Cautions:", *(f"- {clean(text)}" for text in cautions)]
    return "\n".join(lines) + "\n"


INTERVALS = (
    "Whiskers are 95 % intervals over texts: Student's t with the groups of texts behind a value "
    "minus 1 as degrees of freedom. All heads of a model share their texts; the influences of a "
    "group are averaged over heads first."
)


def interval_words(table: pd.DataFrame) -> str:
    """The note about whiskers of a figure."""
    known = np.isfinite(half_widths(table))
    if not known.any():
        return "errors are not known"
    return "whiskers: 95 % interval over texts" + ("" if known.all() else ", where it is known")


def require_rows(table: pd.DataFrame, what: str) -> None:
    """Raise a `ConfigError` if there is nothing to draw."""
    if table.empty or table["mean"].isna().all():
        raise ConfigError(f"{what}: no model has a value, so there is nothing to draw")
