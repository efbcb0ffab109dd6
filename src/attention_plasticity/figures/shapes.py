"""The five shapes of figures: lines with bands, grid, scatter, dots with intervals, bars.

A panel is one of these shapes with its data. `compose` puts panels side by side and writes title,
legend and notes around them, so that these never cover data and have room at every width.
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
from matplotlib.colors import Colormap, FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attention_plasticity.figures.captions import set_caption
from attention_plasticity.figures.marks import Entry, Mark, band, whiskers
from attention_plasticity.figures.style import (
    BLUE,
    COLUMN,
    DASHES,
    FAINT,
    INK,
    NORMAL,
    QUIET,
    SMALLEST,
    TITLE,
    Axis,
    figure_style,
    figure_text,
    in_lines,
    joined_notes,
    label_lines,
    layer_shades,
    layer_ticks,
    require_colormap,
    text_width,
)

Floats = npt.NDArray[np.float64]

MOST_INTERVALS = 400  # points of a scatter that are drawn with their intervals
_LONGEST_NOTE = 600  # characters
_LINE = 1.3  # of the font size; from one line of text to the next
_MARGIN, _GAP = 3.0, 4.0  # points: at the border of a figure, and between texts and panels
_HANDLE, _BETWEEN = 17.0, 12.0  # points: handle of a legend with its space, space of two columns


@dataclass(frozen=True)
class Bar:
    """A colour bar: the values of the first and the last colour, and what they are."""

    label: str
    low: float
    high: float
    cmap: str | Colormap
    root: bool = False  # a colour stands for the square root of the size of a value
    beyond: bool = False  # larger values have the last colour
    ticks: tuple[float, ...] | None = None

    @property
    def norm(self) -> Normalize:
        """From values to the range of colours."""
        if not self.root:
            return Normalize(self.low, self.high)
        return FuncNorm((_root, _square), self.low, self.high)

    @property
    def colours(self) -> ScalarMappable:
        """The colours of values."""
        named = isinstance(self.cmap, str)
        cmap: Any = colormaps[require_colormap(str(self.cmap))] if named else self.cmap
        return ScalarMappable(self.norm, cmap)


def layer_bar(layers: npt.ArrayLike, cmap: str) -> Bar | None:
    """The colour bar of layers; None if there is only one."""
    numbers = np.unique(np.asarray(layers, np.int64))
    if len(numbers) < 2:
        return None
    shades = layer_shades(numbers, cmap)
    ticks = tuple(float(layer) for layer in layer_ticks(numbers))
    return Bar("layer", float(numbers[0]), float(numbers[-1]), shades.cmap, ticks=ticks)


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
    z: float = 2.3


@dataclass(frozen=True)
class Spread:
    """A band between two lines that is no interval: how much heads differ."""

    x: Floats  # (n,)
    low: Floats  # (n,)
    high: Floats  # (n,)
    label: str
    alpha: float


@dataclass(frozen=True)
class Lines:
    """Lines with bands, over many thin lines of heads."""

    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    spreads: Sequence[Spread] = ()
    thin: Sequence[Floats] = ()  # per head (n, 2)
    thin_colours: Sequence[Any] = ()  # one per head
    thin_width: float = 0.6
    thin_alpha: float = 0.6
    thin_entries: Sequence[tuple[str, Any]] = ()  # words and colours for the legend
    marks: Sequence[Mark] = ()
    title: str = ""
    bar: Bar | None = None

    def draw(self, axes: Axes) -> list[Entry]:
        """Thin lines first, the bands and lines above them."""
        entries: list[Entry] = []
        if len(self.thin):
            collection = LineCollection(
                list(self.thin),
                colors=list(self.thin_colours),
                linewidths=self.thin_width,
                alpha=self.thin_alpha,
            )
            axes.add_collection(collection)
        for words, colour in self.thin_entries:
            entries.append((Line2D([], [], color=colour, linewidth=1.0, alpha=0.8), words))
        for one in self.spreads:
            options: Any = {"color": BLUE, "alpha": one.alpha, "linewidth": 0}
            axes.fill_between(one.x, one.low, one.high, **options)
            entries.append((Patch(**options), one.label))
        for line in self.lines:
            if line.half is not None and line.whiskers:
                whiskers(axes, line.x, line.y, line.half, line.colour, cap=0.0)
            elif line.half is not None:
                if line.halo:
                    band(axes, line.x, line.y, line.half, color="white", alpha=0.75, zorder=2.1)
                shade = {"color": line.colour, "alpha": 0.28, "zorder": line.z - 0.1}
                band(axes, line.x, line.y, line.half, **shade)
            [drawn] = axes.plot(
                line.x,
                line.y,
                color=line.colour,
                linestyle=line.dashes,
                linewidth=line.width,
                marker=line.marker,
                markersize=3.0,
                zorder=line.z,
            )
            if line.label:
                entries.append((drawn, line.label))
        axes.autoscale_view()
        return entries + [entry for mark in self.marks for entry in mark.draw(axes)]


@dataclass(frozen=True)
class Grid:
    """Coloured cells: values with a colour bar, or colours (rgb). NaN is blank."""

    values: Floats  # (rows, columns), or (rows, columns, 3)
    x: Axis
    y: Axis
    bar: Bar | None = None
    equal: bool = False  # cells are squares
    frame: bool = True
    marks: Sequence[Mark] = ()
    entries: Sequence[Entry] = ()
    title: str = ""

    def draw(self, axes: Axes) -> list[Entry]:
        """The first row is at the top."""
        options: Any = {"interpolation": "nearest", "aspect": "equal" if self.equal else "auto"}
        if self.bar is not None:
            options |= {"norm": self.bar.norm, "cmap": self.bar.colours.cmap}
        axes.imshow(self.values, **options)
        for side in ("top", "right") if self.frame else ():
            axes.spines[side].set_visible(True)
        return [*self.entries, *(entry for mark in self.marks for entry in mark.draw(axes))]


@dataclass(frozen=True)
class Scatter:
    """One point per head, with its intervals unless there are too many points."""

    x: Axis
    y: Axis
    places: Floats  # (heads, 2)
    halves: Floats  # (heads, 2) half widths of the intervals; NaN if not known
    shades: npt.NDArray[Any] | None = None  # (heads,) values of the colour bar
    bar: Bar | None = None
    diagonal: bool = False  # a line of equal values
    fit: bool = True
    marks: Sequence[Mark] = ()
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
        if self.diagonal:
            ends = [float(np.nanmax(self.places.min(axis=0))), float(self.places.max(axis=0).min())]
            if ends[0] < ends[1]:
                [line] = axes.plot(ends, ends, color=QUIET, linewidth=0.8, linestyle=DASHES)
                entries.append((line, "equal values"))
        bar = self.bar if self.shades is not None else None
        colours: Any = {"color": BLUE}
        if bar is not None:
            colours = {"c": self.shades, "norm": bar.norm, "cmap": bar.colours.cmap}
        axes.scatter(x, y, s=11, linewidths=0, alpha=0.85, zorder=2, **colours)
        return entries + [entry for mark in self.marks for entry in mark.draw(axes)]


@dataclass(frozen=True)
class Dots:
    """Points of one group at one row: those of heads, and their mean with its interval."""

    row: float
    values: Floats  # (n,)
    mean: float
    half: float = math.nan  # of the 95 % interval of the mean
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
        number = len(self.rows)
        ticks = ([float(row) for row in range(number)], list(self.rows))
        return Axis("", number - 0.5, -0.5, ticks=ticks)

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
        for one in self.dots:
            if one.reach:
                places = one.row - one.apart / 2 + spread(one.values, one.reach)
                look: Any = {"color": one.colour, "edgecolors": QUIET, "linewidths": 0.25}
                axes.scatter(one.values, places, s=self.size, alpha=0.8, **look)
            below = one.row + one.apart
            ink = INK if one.reach else one.colour
            whiskers(axes, [one.mean], [below], [one.half], ink, horizontal=True, cap=1.5)
            axes.plot(
                [one.mean],
                [below],
                marker="D",
                markersize=3.0,
                color=ink,
                markeredgecolor="white",
                markeredgewidth=0.4,
                linestyle="none",
                zorder=3,
            )
        axes.tick_params(axis="y", length=0)
        return []


@dataclass(frozen=True)
class Bars:
    """Bars with intervals, or with boxes of how much heads differ."""

    x: Axis
    y: Axis
    values: Floats  # (bars,)
    colours: Sequence[Any]
    half: Floats | None = None  # (bars,)
    low: Floats | None = None  # (bars,) ends of the boxes
    high: Floats | None = None  # (bars,)
    entries: Sequence[tuple[str, Any]] = ()
    box: str = ""  # the words of a box in the legend
    marks: Sequence[Mark] = ()
    title: str = ""
    bar: Bar | None = None

    def draw(self, axes: Axes) -> list[Entry]:
        """Bars stand side by side from 0 on."""
        places = np.arange(len(self.values))
        axes.bar(places, self.values, width=0.8, color=list(self.colours), alpha=0.85)
        entries: list[Entry] = [
            (Patch(color=colour, alpha=0.85), words) for words, colour in self.entries
        ]
        if self.half is not None:
            whiskers(axes, places, self.values, self.half, INK, cap=2.0)
        if self.low is not None and self.high is not None:
            box: Any = {"facecolor": (0.0, 0.0, 0.0, 0.07), "edgecolor": INK, "linewidth": 0.6}
            axes.bar(places, self.high - self.low, bottom=self.low, width=0.45, **box)
            entries.append((Patch(**box), self.box))
        axes.margins(x=0.01)
        return entries + [entry for mark in self.marks for entry in mark.draw(axes)]


@dataclass(frozen=True)
class Words:
    """The texts of a figure. Empty text is left out."""

    title: str = ""
    notes: Sequence[str | None] = ()
    caption: str = ""


@dataclass(frozen=True)
class Layout:
    """How panels are arranged: `height` in inches is that of one panel."""

    height: float = 1.9
    columns: int = 0  # 0: as many as fit
    share_x: bool = False
    share_y: bool = False
    least: float = 1.45  # inches; width of a panel
    entries: Sequence[Entry] = field(default=())  # further entries of the legend


def compose(
    panels: Sequence[Panel], words: Words, *, width: float = COLUMN, layout: Layout | None = None
) -> Figure:
    """A figure of panels, with title and legend above them and notes below, and its caption.

    Panels whose colour bars are equal share one.
    """
    layout = layout or Layout()
    columns = layout.columns or max(1, min(len(panels), int(width / layout.least)))
    rows = math.ceil(len(panels) / columns)
    room = 72 * width - 2 * _MARGIN  # points
    with figure_style():
        figure = Figure(figsize=(width, rows * layout.height))
        share: Any = {"sharex": layout.share_x, "sharey": layout.share_y}
        grid = figure.subplots(rows, columns, squeeze=False, **share)
        flat: list[Axes] = list(grid.flat)
        for unused in flat[len(panels) :]:
            unused.remove()
        entries: list[Entry] = list(layout.entries)
        size = (width / columns - 0.55, layout.height - 0.45)
        for place, panel in enumerate(panels):
            axes = flat[place]
            entries += [one for one in panel.draw(axes) if one[1] not in {_[1] for _ in entries}]
            panel.x.apply(axes, "x", size[0])
            panel.y.apply(axes, "y", size[1])
            if panel.title:
                title = in_lines(figure_text(panel.title), 72 * size[0] + 20, NORMAL)
                axes.set_title("\n".join(title), loc="center")
            outer = place % columns == 0, place + columns >= len(panels)
            _outer_labels(axes, layout, outer)
        _colour_bars(figure, flat, panels, layout.height)
        _around(figure, words, entries, room, rows * layout.height)
        set_caption(figure, words.caption)
    return figure


def _outer_labels(axes: Axes, layout: Layout, outer: tuple[bool, bool]) -> None:
    """Keep the labels of shared axes at the first column and the last row only."""
    if layout.share_y and not outer[0]:
        axes.set_ylabel("")
        axes.tick_params(labelleft=False)
    if layout.share_x and not outer[1]:
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)


def _colour_bars(figure: Figure, axes: list[Axes], panels: Sequence[Panel], height: float) -> None:
    bars = [panel.bar for panel in panels]
    different: list[Bar] = []
    for one in bars:
        if one is not None and one not in different:
            different.append(one)
    several = len(different) > 1
    for bar in different:
        own = [axes[place] for place, one in enumerate(bars) if one == bar]
        options: Any = {"extend": "max" if bar.beyond else "neither", "pad": 0.02, "aspect": 25}
        side = "bottom" if several else "right"
        drawn = figure.colorbar(bar.colours, ax=own, location=side, **options)
        drawn.outline.set_visible(False)
        length = height - 0.4 if side == "right" else 1.3
        drawn.set_label(label_lines(figure_text(bar.label), length))
        if bar.ticks is not None:
            labels = [f"{tick:g}".replace("-", "−") for tick in bar.ticks]
            drawn.set_ticks(list(bar.ticks), labels=labels)
            drawn.minorticks_off()
        drawn.ax.tick_params(length=2.0)


def _around(
    figure: Figure, words: Words, entries: Sequence[Entry], room: float, panels: float
) -> None:
    """Write title, legend and notes above and below the panels, which keep their height."""
    title = in_lines(figure_text(words.title), room, TITLE, bold=True) if words.title else []
    notes = joined_notes([figure_text(note, _LONGEST_NOTE) for note in words.notes if note], room)
    columns = _legend_columns([label for _, label in entries], room)
    rows = -(-len(entries) // columns) if entries else 0
    heights = (
        len(title) * TITLE * _LINE,
        rows * SMALLEST * 1.55,
        len(notes) * SMALLEST * _LINE,
    )
    above = sum(height + _GAP for height in heights[:2] if height)
    below = heights[2] + _GAP if notes else 0.0
    height = 72 * panels + above + below + 2 * _MARGIN  # points
    figure.set_figheight(height / 72)
    left, top = _MARGIN / (room + 2 * _MARGIN), 1.0 - _MARGIN / height
    if title:
        options: Any = {"fontsize": TITLE, "fontweight": "bold", "linespacing": _LINE / 1.17}
        figure.text(left, top, "\n".join(title), va="top", gid="title", **options)
    if entries:
        legend = figure.legend(
            [handle for handle, _ in entries],
            [label for _, label in entries],
            loc="upper left",
            bbox_to_anchor=(left, top - (heights[0] + _GAP * bool(title)) / height),
            ncols=columns,
            borderaxespad=0.0,
            borderpad=0.0,
            handlelength=1.6,
            handletextpad=0.5,
            columnspacing=_BETWEEN / SMALLEST,
            labelspacing=0.3,
        )
        legend.set_in_layout(False)
    if notes:
        text = "\n".join(notes)
        bottom = _MARGIN / height
        options = {"fontsize": SMALLEST, "color": QUIET, "linespacing": _LINE / 1.17}
        figure.text(left, bottom, text, va="bottom", gid="notes", **options)
    inner = (below + _MARGIN) / height
    rect = (0.0, inner, 1.0, 1.0 - inner - (above + _MARGIN) / height)
    square = any(axes.get_aspect() == 1.0 for axes in figure.axes)
    engine: Any = "compressed" if square else "constrained"  # no space beside squares
    figure.set_layout_engine(engine, rect=rect, w_pad=0.03, h_pad=0.03, wspace=0.03)


def _legend_columns(labels: Sequence[str], room: float) -> int:
    """The largest number of columns in which a legend is not wider than the figure."""
    widths = [_HANDLE + text_width(label) for label in labels]
    for columns in range(len(labels), 1, -1):
        parts = np.array_split(np.array(widths), columns)  # as a legend does
        if sum(part.max() for part in parts) + _BETWEEN * (columns - 1) <= room:
            return columns
    return 1


def spread(values: Floats, reach: float) -> Floats:
    """(n,) shifts of points up to `reach`: neighbours in value get different ones; one has none.

    The shifts follow a sequence that fills the range evenly, so that the figure is always the same.
    """
    if len(values) == 1:
        return np.zeros(1)
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    order = np.argsort(np.argsort(values, kind="stable"), kind="stable")  # rank of every point
    return np.asarray(reach * (2.0 * ((order * golden) % 1.0) - 1.0))


def _root(values: Any) -> Floats:
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


def _square(values: Any) -> Floats:
    return np.asarray(np.sign(values) * np.square(values))
