"""The five shapes of figures: lines with bands, grid, scatter, dots with intervals, bars.

A panel is one of these shapes with its data. `compose` arranges panels in a figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.patches import Patch

from attention_plasticity.figures.marks import Entry, Mark, band, whiskers
from attention_plasticity.figures.style import (
    BLUE,
    DASHES,
    FAINT,
    INK,
    QUIET,
    Axis,
    layer_shades,
    require_colormap,
)

Floats = npt.NDArray[np.float64]

MOST_INTERVALS = 400  # points of a scatter that are drawn with their intervals


@dataclass(frozen=True)
class Bar:
    """A colour bar: the values of the first and the last colour, and what they are."""

    label: str
    low: float
    high: float
    cmap: str | Colormap
    beyond: bool = False  # values outside have the first or the last colour
    layers: tuple[int, ...] = ()  # it is about these layers

    @property
    def colours(self) -> ScalarMappable:
        """The colours of values."""
        named = isinstance(self.cmap, str)
        cmap: Any = colormaps[require_colormap(str(self.cmap))] if named else self.cmap
        return ScalarMappable(Normalize(self.low, self.high), cmap)


def layer_bar(layers: npt.ArrayLike, cmap: str) -> Bar | None:
    """The colour bar of layers; None if there is only one."""
    numbers = np.unique(np.asarray(layers, np.int64))
    if len(numbers) < 2:
        return None
    shades = layer_shades(numbers, cmap)
    return Bar("layer", float(numbers[0]), float(numbers[-1]), shades.cmap, layers=tuple(numbers))


class Panel(Protocol):
    """What `compose` draws into one axes."""

    @property
    def x(self) -> Axis:
        """The axis across."""

    @property
    def y(self) -> Axis:
        """The axis up."""

    @property
    def title(self) -> str:
        """The words above the panel."""

    @property
    def bar(self) -> Bar | None:
        """Its colour bar."""

    def draw(self, axes: Axes) -> list[Entry]:
        """Draw the data; return the entries of the legend."""
        ...


@dataclass(frozen=True)
class Line:
    """A line, with a band or whiskers of its 95 % intervals where they are known."""

    x: Floats  # (n,)
    y: Floats  # (n,)
    half: Floats | None = None  # (n,) half widths of the intervals
    label: str | None = None
    colour: Any = INK
    dashes: Any = "-"
    width: float = 1.1
    marker: str = ""
    whiskers: bool = False  # instead of a band
    halo: bool = False  # a white ground below the band, over thin lines
    x_half: Floats | None = None  # (n,) half widths of intervals across, drawn as whiskers
    z: float = 2.3

    def draw(self, axes: Axes) -> list[Entry]:
        """The intervals, and the line above them."""
        if self.x_half is not None:
            whiskers(axes, self.x, self.y, self.x_half, self.colour, horizontal=True, cap=1.5)
        if self.half is not None and self.whiskers:
            whiskers(axes, self.x, self.y, self.half, self.colour, cap=0.0 if self.marker else 2.0)
        elif self.half is not None:
            if self.halo:
                band(axes, self.x, self.y, self.half, color="white", alpha=0.75, zorder=2.1)
            shade = {"color": self.colour, "alpha": 0.28, "zorder": self.z - 0.1}
            band(axes, self.x, self.y, self.half, **shade)
        look: Any = {"linestyle": self.dashes, "linewidth": self.width, "marker": self.marker}
        [drawn] = axes.plot(
            self.x, self.y, color=self.colour, markersize=3.0, zorder=self.z, **look
        )
        return [(drawn, self.label)] if self.label else []


@dataclass(frozen=True)
class Spread:
    """A band between two lines that is no interval: how much heads differ."""

    x: Floats  # (n,)
    low: Floats  # (n,)
    high: Floats  # (n,)
    label: str
    alpha: float
    colour: Any = BLUE

    def draw(self, axes: Axes) -> list[Entry]:
        """The band."""
        look: Any = {"color": self.colour, "alpha": self.alpha, "linewidth": 0}
        axes.fill_between(self.x, self.low, self.high, **look)
        return [(Patch(**look), self.label)] if self.label else []


@dataclass(frozen=True)
class Thin:
    """Many thin lines, one per head."""

    paths: Sequence[Floats]  # per head (n, 2)
    colours: Sequence[Any]  # one per head
    width: float
    alpha: float
    entries: Sequence[Entry] = ()

    def draw(self, axes: Axes) -> list[Entry]:
        """All lines at once."""
        look: Any = {"colors": list(self.colours), "linewidths": self.width, "alpha": self.alpha}
        axes.add_collection(LineCollection(list(self.paths), **look))
        return list(self.entries)


@dataclass(frozen=True)
class Lines:
    """Lines with bands, over spreads and thin lines of heads."""

    x: Axis
    y: Axis
    lines: Sequence[Line | Spread | Thin]  # from the lowest to the highest
    marks: Sequence[Mark] = ()
    title: str = ""
    bar: Bar | None = None

    def draw(self, axes: Axes) -> list[Entry]:
        """One after the other."""
        entries = [entry for line in self.lines for entry in line.draw(axes)]
        axes.autoscale_view()
        return entries + [entry for mark in self.marks for entry in mark.draw(axes)]


@dataclass(frozen=True)
class Grid:
    """Coloured cells: values with a colour bar, or colours (rgb). NaN is blank."""

    values: Floats  # (rows, columns), or (rows, columns, 3); the first row is at the top
    x: Axis
    y: Axis
    bar: Bar | None = None
    alpha: Floats | None = None  # (rows, columns) opacity of the cells
    equal: bool = False  # cells are squares
    marks: Sequence[Mark] = ()
    entries: Sequence[Entry] = ()
    title: str = ""

    def draw(self, axes: Axes) -> list[Entry]:
        """The cells, and the marks above them."""
        options: Any = {"interpolation": "nearest", "aspect": "equal" if self.equal else "auto"}
        if self.bar is not None:
            colours = self.bar.colours
            options |= {"norm": colours.norm, "cmap": colours.cmap}
        axes.imshow(self.values, alpha=self.alpha, **options)
        for side in () if self.equal else ("top", "right"):
            axes.spines[side].set_visible(True)
        return [*self.entries, *(entry for mark in self.marks for entry in mark.draw(axes))]


@dataclass(frozen=True)
class Scatter:
    """One point per head about the line of equal values; intervals unless points are many."""

    x: Axis
    y: Axis
    places: Floats  # (heads, 2)
    halves: Floats  # (heads, 2) half widths of the intervals; NaN if not known
    shades: npt.NDArray[Any]  # (heads,) values of the colour bar
    bar: Bar | None = None  # None: one colour
    title: str = ""

    @property
    def has_intervals(self) -> bool:
        """Whether intervals are drawn."""
        return len(self.places) <= MOST_INTERVALS and bool(np.isfinite(self.halves).any())

    def draw(self, axes: Axes) -> list[Entry]:
        """Intervals below the points."""
        entries: list[Entry] = []
        x, y = self.places.T
        if self.has_intervals:
            halves = np.nan_to_num(self.halves)
            options: Any = {"fmt": "none", "ecolor": FAINT, "elinewidth": 0.7, "zorder": 1}
            axes.errorbar(x, y, xerr=halves[:, 0], yerr=halves[:, 1], **options)
        ends = [float(self.places.min(axis=0).max()), float(self.places.max(axis=0).min())]
        if ends[0] < ends[1]:
            [line] = axes.plot(ends, ends, color=QUIET, linewidth=0.8, linestyle=DASHES)
            entries.append((line, "equal values"))
        colours: Any = {"color": BLUE}
        if self.bar is not None:
            shown = self.bar.colours
            colours = {"c": self.shades, "norm": shown.norm, "cmap": shown.cmap}
        axes.scatter(x, y, s=11, linewidths=0, alpha=0.85, zorder=2, **colours)
        return entries


@dataclass(frozen=True)
class Dots:
    """Points of one group at one row: those of heads, and their mean with its interval."""

    row: float
    mean: float
    half: float = math.nan  # of the 95 % interval of the mean
    values: Floats = field(default_factory=lambda: np.empty(0))  # (n,) of heads
    colour: Any = BLUE
    apart: float = 0.0  # the mean is this far below the points
    reach: float = 0.0  # points are spread up and down by this part of a row


@dataclass(frozen=True)
class DotRows:
    """Rows of points, and a diamond with an interval for the mean of each."""

    x: Axis
    rows: Sequence[str]  # labels, from the top
    dots: Sequence[Dots]
    lines: Sequence[float] = ()  # rows between which there is a line
    guides: Sequence[float] = ()  # dotted lines across the values
    title: str = ""
    bar: Bar | None = None
    size: float = 6.0

    @property
    def y(self) -> Axis:
        """One tick per row."""
        return row_axis(self.rows)

    @property
    def has_intervals(self) -> bool:
        """Whether a mean has an interval."""
        return any(math.isfinite(one.half) for one in self.dots)

    def draw(self, axes: Axes) -> list[Entry]:
        """Points are spread up and down so that they can be told apart."""
        for value in self.guides:
            axes.axvline(value, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)))
        for row in self.lines:
            axes.axhline(row, color=FAINT, linewidth=0.5)
        diamond: Any = {"marker": "D", "markersize": 3.0, "linestyle": "none", "zorder": 3}
        for one in self.dots:
            if len(one.values):
                places = one.row - one.apart / 2 + spread(one.values, one.reach)
                look: Any = {"color": one.colour, "edgecolors": QUIET, "linewidths": 0.25}
                axes.scatter(one.values, places, s=self.size, alpha=0.8, **look)
            mean, below = [one.mean], [one.row + one.apart]
            ink = INK if len(one.values) else one.colour
            axes.plot(mean, below, color=ink, markeredgewidth=0.0, **diamond)
            whiskers(axes, mean, below, [one.half], ink, horizontal=True, cap=2.0)
        axes.tick_params(axis="y", length=0)
        return []


def row_axis(rows: Sequence[str]) -> Axis:
    """One tick per row, the first at the top."""
    ticks = ([float(row) for row in range(len(rows))], list(rows))
    return Axis("", len(rows) - 0.5, -0.5, ticks=ticks)


def spread(values: Floats, reach: float) -> Floats:
    """(n,) shifts of points up to `reach`: neighbours in value get different ones; one has none.

    The shifts follow a sequence that fills the range evenly, so that the figure is always the same.
    """
    if len(values) == 1:
        return np.zeros(1)
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    order = np.argsort(np.argsort(values, kind="stable"), kind="stable")  # rank of every point
    return np.asarray(reach * (2.0 * ((order * golden) % 1.0) - 1.0))


@dataclass(frozen=True)
class Part:
    """Bars with one look, side by side or on top of others."""

    label: str
    values: Floats  # (bars,)
    colour: Any = BLUE
    first: int = 0  # place of the first bar
    start: Any = 0.0  # where the bars begin, a number or (bars,)
    width: float = 0.8
    edge: str = "white"
    hatch: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars in parts: upright ones, or rows from the top with `across`."""

    x: Axis
    y: Axis
    parts: Sequence[Part]
    across: bool = False
    marks: Sequence[Mark] = ()
    title: str = ""
    bar: Bar | None = None

    def draw(self, axes: Axes) -> list[Entry]:
        """One part after the other."""
        entries: list[Entry] = []
        for part in self.parts:
            places = part.first + np.arange(len(part.values))
            look: Any = {"facecolor": part.colour, "edgecolor": part.edge, "hatch": part.hatch}
            if self.across:
                axes.barh(places, part.values, part.width, part.start, linewidth=0.4, **look)
            else:
                axes.bar(places, part.values, part.width, part.start, linewidth=0.4, **look)
            if part.label and part.label not in {words for _, words in entries}:
                entries.append((Patch(linewidth=0.4, **look), part.label))
        axes.margins(x=0.01)
        return entries + [entry for mark in self.marks for entry in mark.draw(axes)]
