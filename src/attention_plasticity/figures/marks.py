"""Marks on panels: intervals, tests, faded heads, types of layers, layers that are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from attention_plasticity.figures.style import (
    BLUE,
    DASHES,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PINK,
    QUIET,
    SKY,
    SMALLEST,
    figure_text,
)
from attention_plasticity.metrics import CHUNKED_ATTENTION, FULL_ATTENTION, HEAD, SLIDING_ATTENTION
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    head_half_width,
    p_values,
)
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from qk_toolkit.formatting import index_ranges

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Entry = tuple[Any, str]
"""A handle and its words in a legend."""

_DOT = 2.6  # points; diameter of a mark in a large cell
_LABEL = 0.065  # height of a name at the end of a line, of the axes
_STRIP = (-0.045, 0.025)  # left end and width of the strip of layer types, of the axes
_TYPE_COLOURS = {FULL_ATTENTION: QUIET, SLIDING_ATTENTION: ORANGE, CHUNKED_ATTENTION: GREEN}
_LONGEST_RANGES = 40  # characters; numbers of layers in a note


class Mark(Protocol):
    """Something that is drawn above the data of a panel."""

    def draw(self, axes: Axes) -> list[Entry]:
        """Draw it; return its entries of the legend."""
        ...


def whiskers(
    axes: Axes, x: Any, y: Any, half: Any, colour: Any, *, cap: float, horizontal: bool = False
) -> None:
    """Draw `value ± half` where both are known, with ends of `cap` points, before all markers."""
    if np.isfinite(half).any():
        error: Any = {"xerr" if horizontal else "yerr": np.asarray(half, np.float64)}
        look: Any = {"ecolor": colour, "elinewidth": 0.9, "capsize": cap, "capthick": 0.9}
        look["zorder"] = 4.0
        axes.errorbar(x, y, fmt="none", **error, **look)


def band(axes: Axes, x: Floats, y: Floats, half: Floats, **options: Any) -> None:
    """Fill `value ± half`, with gaps where it is not known."""
    if np.isfinite(y + half).any():
        axes.fill_between(x, y - half, y + half, linewidth=0, **options)


def interval_note(mark: str, half: Floats, eligible: int | None = None) -> str | None:
    """What a band or whiskers are, from their half widths; None if no half width is known.

    `eligible` is the number of heads from which the heads were sampled at random, or None.
    """
    known = np.isfinite(half)
    if not known.any():
        return None
    over = "texts" if eligible is None else f"texts and the {eligible:,} eligible heads"
    return f"{mark}: 95 % interval over {over}{'' if known.all() else ', where it is known'}"


@dataclass(frozen=True)
class Guide:
    """A dashed line across a panel."""

    place: float
    label: str | None = None
    vertical: bool = False
    ground: bool = False  # a white line below it, over coloured cells

    def draw(self, axes: Axes) -> list[Entry]:
        """The line."""
        line = axes.axvline if self.vertical else axes.axhline
        if self.ground:
            line(self.place, color="white", linewidth=2.4)
        drawn = line(self.place, color=INK, linewidth=0.8, linestyle=DASHES)
        return [(drawn, self.label)] if self.label else []


@dataclass(frozen=True)
class Tests:
    """Which heads have a value that differs from 0, and those that are faded."""

    heads: Ints  # (tested, 2) layer and query head
    values: Floats  # (tested,)
    significant: npt.NDArray[np.bool_]  # (tested,) after Benjamini-Hochberg at 5 %
    faded: npt.NDArray[np.bool_]  # (tested,) drawn in pale colours

    @classmethod
    def of(
        cls, metrics: pd.DataFrame, name: str, influences: pd.DataFrame | None, *, fade: bool
    ) -> Tests | None:
        """The tests of a column; None if no head has a standard error.

        With `fade`, the heads whose 95 % interval contains 0 are to be faded.
        """
        p = p_values(metrics, name, influences)
        tested = ~np.isnan(p)
        if not tested.any():
            return None
        values = metrics[name].to_numpy(np.float64)
        excluded = (np.abs(values) > head_half_width(metrics, name, influences))[tested]
        return cls(
            metrics[HEAD].to_numpy(np.int64)[tested],
            values[tested],
            benjamini_hochberg(p)[tested],
            ~excluded & fade,
        )

    @property
    def sentence(self) -> str:
        """The marks as sentences of a caption."""
        faded = int(self.faded.sum())
        pale = f" Heads whose interval contains 0 are faded ({faded:,})." if faded else ""
        return (
            f"A dot marks a head that differs from 0 at a false discovery rate of 5 % "
            f"({self.significant.sum():,} of {len(self.heads):,} tested heads; "
            f"Benjamini-Hochberg).{pale}"
        )


@dataclass(frozen=True)
class TestMarks:
    """The tests of heads on a map with these layers as rows and cells of this size, in points."""

    tests: Tests
    layers: Ints  # (rows,)
    cell: float
    colours: ScalarMappable

    def draw(self, axes: Axes) -> list[Entry]:
        """Dots, which are white in dark cells."""
        tests, size = self.tests, min(_DOT, 0.5 * self.cell)  # diameter
        dark = self.colours.to_rgba(tests.values) @ [0.299, 0.587, 0.114, 0.0] < 0.5  # (tested,)
        marked = tests.significant
        inks = np.where(dark & ~tests.faded, "white", INK)[marked].tolist()
        row, head = np.searchsorted(self.layers, tests.heads[:, 0]), tests.heads[:, 1]
        axes.scatter(head[marked], row[marked], s=size**2, linewidths=0.0, color=inks)
        of, faded = len(tests.heads), int(tests.faded.sum())
        dot = Line2D([], [], linestyle="", marker="o", color=INK, markersize=_DOT)
        entries: list[Entry] = [(dot, f"differs from 0: {marked.sum():,} of {of:,} heads")]
        if faded:
            patch = Patch(facecolor="#e4e0ea", edgecolor=FAINT, linewidth=0.6)
            entries.append((patch, f"95 % interval with 0: {faded:,}"))
        return entries


@dataclass(frozen=True)
class Marked:
    """Small marks on cells of a grid."""

    cells: Ints  # (cells, 2) row and column
    label: str | None = None
    look: Mapping[str, Any] = field(default_factory=lambda: {"s": 1.2, "color": QUIET})

    def draw(self, axes: Axes) -> list[Entry]:
        """One mark per cell."""
        row, column = self.cells.T
        drawn = axes.scatter(column, row, **{"linewidths": 0.0, **self.look})
        return [(drawn, self.label)] if self.label and len(row) else []


def layer_gaps(layers: Ints) -> list[Guide]:
    """Dashed lines where layers between two rows of a map are left out."""
    return [Guide(row, ground=True) for row in np.flatnonzero(np.diff(layers) > 1) + 0.5]


def gaps_sentence(layers: Ints) -> str | None:
    """What the dashed lines are; None if there is none."""
    missing = sorted(set(range(layers[0], layers[-1] + 1)) - set(layers.tolist()))
    if not missing:
        return None
    named = index_ranges(missing)
    if len(named) > _LONGEST_RANGES:
        named = f"{len(missing):,} between {layers[0]} and {layers[-1]}"
    return f"Dashed lines mark layers that are left out ({named})."


@dataclass(frozen=True)
class LayerTypes:
    """A strip at the left with the type of every layer, if the types differ."""

    types: dict[int, str]  # by layer
    layers: Ints  # (rows,)

    @property
    def several(self) -> bool:
        """Whether the types differ."""
        return len(layers_by_type(self.types)) > 1

    def draw(self, axes: Axes) -> list[Entry]:
        """One tile per layer."""
        if not self.several:
            return []
        groups = layers_by_type(self.types)
        others = iter((BLUE, PINK, SKY, *[INK] * len(groups)))
        colours = {name: _TYPE_COLOURS.get(name) or next(others) for name in groups}
        left, width = _STRIP
        beside: Any = {"transform": axes.get_yaxis_transform(), "clip_on": False, "linewidth": 0}
        for row, layer in enumerate(self.layers):
            colour = colours[self.types[int(layer)]]
            axes.add_artist(Rectangle((left, row - 0.5), width, 1.0, color=colour, **beside))
        axes.spines["left"].set_position(("axes", left - 0.01))
        return [(Patch(color=colours[name]), figure_text(type_words(name))) for name in colours]


@dataclass(frozen=True)
class EndLabels:
    """Names at the right end of lines, moved apart where they would cover each other."""

    names: Sequence[tuple[float, str, Any]]  # value at the end, name, colour

    def draw(self, axes: Axes) -> list[Entry]:
        """One text per line."""
        low, high = axes.get_ylim()
        height = _LABEL * (high - low)
        place = -np.inf
        for value, name, colour in sorted(self.names, key=lambda one: one[0]):
            place = max(value, place + height)
            options: Any = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(1.01, place, name, color=colour, fontsize=SMALLEST, **options)
        return []


@dataclass(frozen=True)
class Hatched:
    """Hatched cells: means over some of the heads only."""

    cells: npt.NDArray[np.bool_]  # (rows, columns)

    def draw(self, axes: Axes) -> list[Entry]:
        """Thin lines over the cells."""
        tiles = [Rectangle((x - 0.5, y - 0.5), 1, 1) for y, x in np.argwhere(self.cells)]
        if tiles:
            look: Any = {"facecolor": "none", "edgecolor": INK, "hatch": "/////", "alpha": 0.6}
            axes.add_collection(PatchCollection(tiles, linewidth=0.0, **look))
        return []


@dataclass(frozen=True)
class CellLines:
    """Thin lines between cells, because neighbours often have one colour."""

    across: Sequence[float] = ()
    down: Sequence[float] = ()
    width: float = 0.6

    def draw(self, axes: Axes) -> list[Entry]:
        """White lines."""
        for place in self.across:
            axes.axhline(place, color="white", linewidth=self.width)
        for place in self.down:
            axes.axvline(place, color="white", linewidth=self.width)
        return []
