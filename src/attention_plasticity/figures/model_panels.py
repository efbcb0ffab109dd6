"""What figures of several runs share: colours of runs, two panels of their own, words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.figures.marks import Entry, Ints, Mark, whiskers
from attention_plasticity.figures.shapes import Bar, Floats, Line, Words
from attention_plasticity.figures.style import INK, PALETTE, QUIET, Axis, figure_text, line_shades
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

MARKERS = "osD^vP*X"
INTERVALS = (
    "Intervals are 95 % intervals over texts: Student's t with the groups of texts behind a value "
    "minus 1 as degrees of freedom. All heads of a model share their texts; the influences of a "
    "group are averaged over heads first."
)
_LONGEST_NAME = 44  # characters in a legend
_HATCH = "/////"


@dataclass(frozen=True)
class Point:
    """A point with intervals in both directions."""

    x: float
    y: float
    x_half: float
    y_half: float
    colour: Any
    marker: str


@dataclass(frozen=True)
class Points:
    """One point per model."""

    x: Axis
    y: Axis
    points: Sequence[Point]
    title: str = ""
    bar: Bar | None = None

    def draw(self, axes: Axes) -> list[Entry]:
        """Intervals, and the points above them."""
        for one in self.points:
            x, y = [one.x], [one.y]
            whiskers(axes, x, y, [one.x_half], one.colour, horizontal=True, cap=1.5)
            whiskers(axes, x, y, [one.y_half], one.colour, cap=1.5)
            look: Any = {"color": one.colour, "marker": one.marker, "markersize": 4.0}
            axes.plot(x, y, linestyle="none", zorder=3, **look)
        axes.margins(0.1)
        return []


@dataclass(frozen=True)
class Stack:
    """One part of every bar: sure, and hatched where it is unsure."""

    label: str
    colour: Any
    sure: Floats  # (bars,)
    unsure: Floats  # (bars,)


@dataclass(frozen=True)
class StackedRows:
    """Horizontal bars of parts, one per row, from the top."""

    x: Axis
    rows: Sequence[str]
    parts: Sequence[Stack]
    marks: Sequence[Mark] = ()
    title: str = ""
    bar: Bar | None = None

    @property
    def y(self) -> Axis:
        """One tick per row."""
        number = len(self.rows)
        ticks = ([float(row) for row in range(number)], list(self.rows))
        return Axis("", number - 0.4, -0.6, ticks=ticks)

    def draw(self, axes: Axes) -> list[Entry]:
        """Parts from the left to the right."""
        start, entries = np.zeros(len(self.rows)), []  # (bars,)
        for part in self.parts:
            place: Any = {"y": range(len(self.rows)), "height": 0.72, "linewidth": 0.4}
            place |= {"facecolor": part.colour, "edgecolor": "white"}
            axes.barh(width=part.sure, left=start, **place)
            axes.barh(width=part.unsure, left=start + part.sure, hatch=_HATCH, **place)
            start = start + part.sure + part.unsure
            entries.append((Patch(facecolor=part.colour), part.label))
        axes.tick_params(axis="y", length=0)
        unsure = Patch(facecolor=QUIET, edgecolor="white", hatch=_HATCH, linewidth=0.4)
        return [*entries, (unsure, "unsure")]


@dataclass(frozen=True)
class Changed:
    """Dots on the heads of a map that changed."""

    heads: Ints  # (heads, 2) layer and query head

    def draw(self, axes: Axes) -> list[Entry]:
        """One dot per head, with a white edge that is visible on dark cells."""
        layer, head = self.heads.T
        look: Any = {"color": INK, "edgecolors": "white", "linewidths": 0.3}
        dots = axes.scatter(head, layer, s=5.0, **look)
        return [(dots, "changed")]


def look(place: int, number: int) -> dict[str, Any]:
    """Colour and marker of a run. More runs than colours have shades in their order."""
    colour: Any = PALETTE[place % len(PALETTE)]
    if number > len(PALETTE):
        colour = tuple(line_shades("viridis")(place / (number - 1)))
    return {"colour": colour, "marker": MARKERS[place % len(MARKERS)]}


def half_widths(rows: pd.DataFrame) -> Floats:
    """(rows,) half widths of the intervals; NaN if they are not known."""
    return ((rows["high"] - rows["low"]) / 2.0).to_numpy(np.float64)


def lines_of(frame: pd.DataFrame, labels: Sequence[str], places: Sequence[float]) -> list[Line]:
    """A line with a band per run over the places of the rows of `frame`."""
    x, names, found = np.asarray(places, np.float64), short_names(labels, _LONGEST_NAME), []
    for number, (label, name) in enumerate(zip(labels, names, strict=True)):
        own = np.flatnonzero(frame["run"] == label)
        rows, y = frame.iloc[own], frame["mean"].to_numpy(np.float64)[own]
        style, words = look(number, len(labels)), figure_text(name)
        found.append(Line(x[own], y, half_widths(rows), words, **style))
    return found


def lines_over_groups(
    frame: pd.DataFrame, labels: Sequence[str], groups: Sequence[str]
) -> list[Line]:
    """A line with whiskers per run over named groups, which have the places 0, 1 and so on."""
    names, found = short_names(labels, _LONGEST_NAME), []
    widest = min(0.2, 0.04 * (len(labels) - 1))
    shifts = np.linspace(-widest, widest, len(labels))  # whiskers do not cover each other
    for number, (label, name) in enumerate(zip(labels, names, strict=True)):
        rows = frame[frame["run"] == label].set_index("group").reindex(list(groups))
        x, y = np.arange(len(groups)) + shifts[number], rows["mean"].to_numpy(np.float64)
        style = look(number, len(labels))
        found.append(Line(x, y, half_widths(rows), figure_text(name), whiskers=True, **style))
    return found


def group_axis(label: str, groups: Sequence[str]) -> Axis:
    """An axis with named places."""
    ticks = ([float(place) for place in range(len(groups))], list(groups))
    return Axis(label, -0.4, len(groups) - 0.6, ticks=ticks)


def model_words(
    title: str,
    shows: str,
    runs: Sequence[NamedRun],
    details: Sequence[str] = (INTERVALS,),
    notes: Sequence[str] = (),
) -> Words:
    """Title, notes and caption: what is drawn, the runs, and how errors are made."""
    lines = [shows, "", f"{count(len(runs), 'run')}:", *(f"- {run_line(run)}" for run in runs)]
    lines += ["", " ".join(filter(None, details))]
    return Words(title, notes, "\n".join(lines).rstrip() + "\n")


def run_line(one: NamedRun) -> str:
    """`a: model m, 270 heads in 30 layers, context 8,192 tokens, 12 texts`."""
    layers = sum(map(len, one.layers.values()))
    model = clean(one.run.dump.get("model") or "not recorded")
    heads = f"{count(len(one.run.head_metrics), 'head')} in {count(layers, 'layer')}"
    if len(one.layers) > 1:
        types = (f"{len(found)} {type_words(name)}" for name, found in one.layers.items())
        heads += f" ({', '.join(types)})"
    unknown = math.isnan(one.run.context)
    context = "context not known" if unknown else f"context {one.run.context:,.0f} tokens"
    parts = [f"model {model}", heads, context]
    if texts := one.run.texts.get("count"):
        parts.append(count(int(texts), "text"))
    return f"{one.label}: {', '.join(parts)}"


def interval_line(frame: pd.DataFrame, mark: str) -> str:
    """The note about bands or whiskers of a figure."""
    known = np.isfinite(half_widths(frame))
    if not known.any():
        return "errors are not known"
    return f"{mark}: 95 % interval over texts" + ("" if known.all() else ", where it is known")


def require_rows(frame: pd.DataFrame, what: str) -> None:
    """Raise a `ConfigError` if there is nothing to draw."""
    if frame.empty or frame["mean"].isna().all():
        raise ConfigError(f"{what}: no run has a value, so there is nothing to draw")


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Names of at most `limit` characters, with `…` in the middle of long ones.

    Different names stay different: more of the end or of the start is shown until they are. Names
    that differ only in their middle get a number.
    """
    room = limit - 1
    for end in sorted(range(1, room), key=lambda end: abs(end - room // 2)):
        short = [_shortened(name, room - end, end) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    order = {name: str(place) for place, name in enumerate(dict.fromkeys(names), 1)}
    return [
        name if len(name) <= limit else f"{name[: room - len(order[name])]}…{order[name]}"
        for name in names
    ]


def _shortened(name: str, start: int, end: int) -> str:
    return name if len(name) <= start + end + 1 else f"{name[:start]}…{name[len(name) - end :]}"
