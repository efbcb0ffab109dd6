"""Figures of several runs: profiles over the context, and the trajectory over training.

The drop of plasticity against benchmark scores, one panel per benchmark.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attention_plasticity.comparison.cautions import Caution, Concerned
from attention_plasticity.comparison.drawn import (
    MOST_LINES,
    Drawn,
    DrawnProfiles,
    drawn_drops,
    drawn_profiles,
    drawn_trajectory,
)
from attention_plasticity.comparison.runs import ALL_LAYERS, part_words, short_names
from attention_plasticity.comparison.scores import FEW_RUNS, Correlation, correlation_values
from attention_plasticity.metrics import FULL_ATTENTION, SLIDING_ATTENTION
from attention_plasticity.plots.intervals import band, interval_note, whiskers
from attention_plasticity.plots.shown import capitalised
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    HEIGHT,
    INK,
    PALETTE,
    VERMILION,
    WIDTH,
    figure_style,
    figure_text,
    footnote,
    line_shades,
    new_figure,
    plasticity_axis,
    position_axis,
)
from attention_plasticity.tables.main_plasticity import FIFTH_WORDS, PlasticityColumns
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError
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
MARKERS = "osD^vP*X"
ROUND_STEPS = [1, 2, 2.5, 5, 10]  # of ticks
_LONGEST_NAME, _LONGEST_NAME_IN_NOTES = 56, 26  # characters
_LONG_LINE = 4.5  # in a legend, in letters
_LEGEND_LINE, _NOTE_LINE, _LETTER = 0.178, 0.136, 0.066  # inches
_PANELS_IN_A_ROW = 3
_PANEL_WIDTH = 2.9  # inches
_LABEL_LINE = 26  # characters of a label at an axis


def profiles_figure(
    profiles: pd.DataFrame, shown: PlasticityColumns, cautions: Sequence[Caution] = ()
) -> Figure:
    """Draw the mean profile of every run over positions, and of every layer type in other lines.

    `profiles` has one row per run, layer type and bin or bucket, such as `Comparison.profiles`, and
    `shown` is `Comparison.shown`.

    Examples:
        >>> from attention_plasticity import compare, open_run
        >>> from attention_plasticity.plots import profiles_figure
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[0]), run.select(layers=[29])]
        >>> comparison = compare(parts, labels=["first", "last"])
        >>> figure = profiles_figure(comparison.profiles, comparison.shown, comparison.cautions)
        >>> figure.axes[0].get_xlabel()
        'query position (tokens)'
    """
    drawn = drawn_profiles(profiles, shown)
    _require_values(drawn.rows["plasticity"])
    with figure_style():
        figure, axes = new_figure()
        handles = _draw_profiles(axes, drawn)
        plasticity_axis(axes, shown.name, *drawn.ends)
        if drawn.has_positions:
            position_axis(axes, drawn.rows["position"].to_numpy(np.float64), log=False)
        else:
            axes.set_xlabel("query bucket")
        axes.set_title(f"{capitalised(shown.name)}, over the context")
        bands = interval_note("bands", drawn.halves)
        notes = [*filter(None, [bands]), *caution_notes(cautions, drawn.runs, "means")]
        if drawn.without_types:
            notes.insert(0, f"types of layers left out: more than {MOST_LINES} lines")
        several = drawn.rows["layer_type"].nunique() > 1
        notes_and_legend(figure, notes, handles, long_lines=several)
    return figure


def _draw_profiles(axes: Any, drawn: DrawnProfiles) -> list[Any]:
    """Draw one line with a band per run and type of layers; returns lines for the legend."""
    lines, runs, handles = drawn.lines, drawn.runs, []
    firsts = pd.DataFrame([line.iloc[0] for line in lines])
    styles = _line_styles(firsts["layer_type"].tolist())
    for line, name in zip(lines, _legend(firsts), strict=True):
        colour, marker = run_look(runs.index(str(line["run"].iloc[0])), len(runs))
        x, y, half = (
            line[column].to_numpy(np.float64)
            for column in (
                "position" if drawn.has_positions else "part",
                "plasticity",
                "half_width",
            )
        )
        band(axes, x, y, half, color=colour, alpha=0.2)
        options: Any = {"color": colour, "marker": marker, "label": name, "markersize": 3}
        handles += axes.plot(x, y, linestyle=styles[line["layer_type"].iloc[0]], **options)
    return handles


def _line_styles(types: Sequence[str]) -> dict[str, Any]:
    """A line style for each type of layers; seven types have different ones."""
    others = [name for name in dict.fromkeys(types) if name not in _LINES]
    return _LINES | {
        name: _OTHER_LINES[place % len(_OTHER_LINES)] for place, name in enumerate(others)
    }


def trajectory_figure(compared: pd.DataFrame, cautions: Sequence[Caution] = ()) -> Figure:
    """Draw plasticity over the runs, in the given order; at one position also both fifths.

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
    _require_values(drawn.values)
    values, halves = drawn.values, drawn.halves  # (runs, 1 or 3)
    places = np.arange(len(values))
    shift = 0.015 * len(values) if np.isfinite(halves).any() else 0.0  # whiskers side by side
    with figure_style():
        figure, axes = new_figure()
        if drawn.shown.fifths:
            ends = values[:, 1], values[:, 2]
            axes.fill_between(places, *ends, color=FAINT, alpha=0.5, linewidth=0)
        lines = zip(("whole context", *FIFTH_WORDS), (INK, BLUE, VERMILION), strict=True)
        handles = []
        for column, (label, colour) in enumerate(islice(lines, len(drawn.names))):
            x = places + (column - 1) * shift
            whiskers(axes, x, values[:, column], halves[:, column], colour)
            options: Any = {"color": colour, "label": label, "marker": MARKERS[column], "ms": 4}
            handles += axes.plot(x, values[:, column], **options)
        plasticity_axis(axes, drawn.shown.name, *drawn.ends)
        name_ticks(axes, drawn.runs)
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


def run_look(place: int, runs: int) -> tuple[Any, str]:
    """Colour and marker of a run. More runs than colours have shades in their order."""
    marker = MARKERS[place % len(MARKERS)]
    if runs <= len(PALETTE):
        return PALETTE[place], marker
    return tuple(line_shades("viridis")(place / (runs - 1))), marker


def side_shifts(rows: int) -> Array:
    """(rows,) small shifts along x, so that whiskers of several lines do not cover each other."""
    widest = min(0.2, 0.04 * (rows - 1))
    return np.linspace(-widest, widest, rows)


def name_ticks(axes: Any, labels: Sequence[str]) -> None:
    """Names of runs at the x axis, turned if they are long, and only some of many."""
    short = [figure_text(name) for name in short_names(labels, _LONGEST_TICK)]
    long = len(short) > 6 or max(map(len, short)) > 9
    step = max(1, -(-len(short) // 16))
    places = range(0, len(short), step)
    turned: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(places, short[::step], **turned)


def _require_values(values: npt.ArrayLike) -> None:
    """Raise a `ConfigError` if there is nothing to draw."""
    if np.isnan(np.asarray(values, np.float64)).all():
        raise ConfigError("compare: every value is NaN, so there is nothing to draw")


def whisker_notes(drawn: Drawn) -> list[str]:
    """What the whiskers are; empty if no error is known."""
    note = interval_note("whiskers", drawn.halves_of_values)
    return [] if note is None else [note]


def caution_notes(
    cautions: Iterable[Caution], labels: Sequence[str], *concerned: Concerned
) -> list[str]:
    """Cautions in few words, one per kind, with the names of the runs unless it is about all."""
    found: dict[str, list[str]] = {}
    for caution in cautions:
        if caution.short and caution.concerns in concerned:
            names = found.setdefault(caution.short, [])
            names += [label for label in caution.runs if label not in names]
    return [_named(text, names, labels) for text, names in found.items()]


def _named(text: str, names: Sequence[str], labels: Sequence[str]) -> str:
    """A note with the names of its runs, unless it is about all of them."""
    if len(names) == len(labels):
        return text
    short = dict(zip(labels, short_names(labels, _LONGEST_NAME_IN_NOTES), strict=True))
    return f"{text}: {', '.join(short[name] for name in names)}"


def legend_names(names: Sequence[str], room: int = 0) -> list[str]:
    """Names for a legend: different, and of bounded length, with `room` for more characters."""
    return [figure_text(name) for name in short_names(names, _LONGEST_NAME - room)]


def notes_and_legend(
    figure: Figure,
    notes: Sequence[str],
    handles: Sequence[Any] = (),
    *,
    long_lines: bool = False,
) -> None:
    """Put a legend and notes below the axes, and make the figure higher by their lines.

    With `long_lines`, the lines in the legend are long enough to show different gaps.
    """
    lengths: Any = {"handlelength": _LONG_LINE, "numpoints": 2} if long_lines else {}
    width = figure.get_figwidth()
    shown = footnote(figure, *(note.replace("$", r"\$") for note in notes))
    room = _NOTE_LINE * shown + 0.06 if shown else 0.0
    longest = max((len(handle.get_label()) for handle in handles), default=0)
    handle = 0.8 if long_lines else 0.5  # inches
    columns = max(1, int(width / (handle + _LETTER * longest)))
    lines = math.ceil(len(handles) / columns)
    legend = _LEGEND_LINE * lines + 0.06 if handles else 0.0
    height = figure.get_figheight() + legend + room
    figure.set_figheight(height)
    engine = figure.get_layout_engine()
    if handles and isinstance(engine, ConstrainedLayoutEngine):
        share = legend / height  # room for the notes is kept by the engine
        engine.set(rect=(0.0, share, 1.0, 1.0 - share))
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, room / height), **lengths}
        figure.legend(
            handles=list(handles), columnspacing=1.2, ncols=columns, borderaxespad=0.2, **place
        )


def scores_figure(
    compared: pd.DataFrame,
    scores: pd.DataFrame,
    found: Sequence[Correlation],
    cautions: Sequence[Caution] = (),
) -> Figure:
    """Draw the drop of plasticity against the score of each benchmark, one point per run.

    Runs have a colour and a marker of their own, which the legend below the panels names.

    `compared` is `Comparison.table`, with one row per run and layer type. `scores` has one row per
    run, and `found` one correlation per benchmark: `Comparison.scores` and `Comparison.relations`.

    Examples:
        >>> import pandas as pd
        >>> from attention_plasticity import compare, open_run
        >>> from attention_plasticity.plots import scores_figure
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[layer]) for layer in (0, 14, 29)]
        >>> scores = pd.DataFrame({"model": ["a", "b", "c"], "ruler": [80, 60, 70]})
        >>> found = compare(parts, labels=["a", "b", "c"], scores=scores)
        >>> scores_figure(found.table, found.scores, found.relations).axes[0].get_ylabel()
        'ruler'
    """
    drawn = drawn_drops(compared)
    _require_values(drawn.values)
    drop, halves = drawn.values[:, 0], drawn.halves[:, 0]  # (runs,)
    looks = [_point_look(place) for place in range(len(drop))]
    columns = min(len(found), _PANELS_IN_A_ROW)
    lines = math.ceil(len(found) / columns)
    with figure_style():
        size = (max(WIDTH, _PANEL_WIDTH * columns), HEIGHT * lines)
        figure, grid = new_figure(*size, ncols=columns, nrows=lines, squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        for axes, correlation in zip(grid.flat, found, strict=False):
            values = scores[correlation.score].to_numpy(dtype=np.float64)
            _points(axes, drop, values, halves, looks)
            axes.set_xlabel(f"drop of plasticity\n{drawn.shown.words}")
            axes.set_ylabel(_wrapped(figure_text(correlation.score)))
            axes.set_title(_title(correlation), fontweight="normal", fontsize=8)
        names = legend_names(drawn.runs)
        handles = [
            Line2D([], [], linestyle="", markersize=5, label=name, **look)
            for name, look in zip(names, looks, strict=True)
        ]
        notes = [
            *whisker_notes(drawn),
            *caution_notes(cautions, drawn.runs, "means", "correlations"),
        ]
        notes_and_legend(figure, notes, handles)
    return figure


def _points(axes: Axes, x: Array, y: Array, halves: Array, looks: Sequence[Any]) -> None:
    for place, look in enumerate(looks):
        one = slice(place, place + 1)
        whiskers(axes, x[one], y[one], halves[one], look["color"], horizontal=True)
        axes.plot(x[one], y[one], linestyle="", markersize=5, **look)
    axes.margins(0.15)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS, min_n_ticks=3))
    axes.grid(color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def _point_look(place: int) -> dict[str, Any]:
    """Colour and marker of a run; 56 runs have different ones."""
    return {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)]}


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _LABEL_LINE)


def _title(found: Correlation) -> str:
    if not found.is_known:
        return f"{found.obstacle}: no correlation"
    pearson, spearman = correlation_values(found)
    runs = f"{found.models} runs"
    if math.isnan(found.pearson_low):
        runs += ": no interval"
    elif found.models < FEW_RUNS:
        runs = f"only {runs}, 95 % intervals"
    return f"Pearson {pearson}\nSpearman {spearman}\n{runs}"
