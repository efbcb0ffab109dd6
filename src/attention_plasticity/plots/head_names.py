"""Names of heads beside their points, where they cover no point and no other name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from attention_plasticity.plots.style import INK, QUIET, SMALLEST

Floats = npt.NDArray[np.float64]

_RADIUS = 3.0  # points, like all lengths here; of a point, with a margin
_DISTANCES = (4.0, 9.0, 14.0, 20.0, 27.0, 35.0, 44.0, 54.0)  # of a name from its point
_LINE_FROM = 8.0  # a name that is further away has a line to its point
_EDGE = 2.0  # between a name and the axes, the diagonal or another name
_CROSSING = 12.0  # what a crossed diagonal or interval costs, as a distance
_HIDDEN = 60.0  # what a line across a point or along another line costs
_DIRECTIONS = (  # from a point to its name; the first of equally good places is taken
    *((1, 0), (-1, 0), (1, -1), (-1, 1), (1, 1), (-1, -1), (0, -1), (0, 1)),
    *((2, -1), (-2, -1), (2, 1), (-2, 1), (1, -2), (-1, -2), (1, 2), (-1, 2)),
)
_DIAGONAL = ((0.0, 0.0), (1.0, 1.0))


@dataclass(frozen=True)
class Drawn:
    """What names must not cover, in data of the axes."""

    points: Floats  # (heads, 2)
    intervals: Floats  # (lines, 2 ends, 2)


@dataclass(frozen=True)
class _Box:
    """A place of a name, in points from the lower left corner of the figure."""

    low: Floats  # (2,) left and bottom
    high: Floats  # (2,) right and top
    side: tuple[int, int]  # of the point where the name is: right 1, left -1; above 1, below -1
    distance: float

    def holds(self, places: Floats, margin: float) -> npt.NDArray[np.bool_]:
        """Which of (n, 2) places are inside, or nearer than the margin."""
        inside = (places > self.low - margin) & (places < self.high + margin)  # (n, 2)
        return np.asarray(inside.all(axis=1))

    def overlaps(self, other: _Box) -> bool:
        """Whether another name would be too near."""
        return bool(np.all((self.low - _EDGE < other.high) & (other.low - _EDGE < self.high)))

    @property
    def end(self) -> Floats:
        """(2,) where the line to the point ends: the middle of an edge, or a corner."""
        side = np.array(self.side)
        middle = (self.low + self.high) / 2
        return np.where(side > 0, self.low, np.where(side < 0, self.high, middle))

    def route(self, point: Floats) -> Floats:
        """(n, 2) places on the line from the point to the name."""
        return _along(np.array([point, self.end]))


@dataclass(frozen=True)
class _Lines:
    """Places on the lines that a name should not cross."""

    places: Floats  # (n, 2)
    line: npt.NDArray[np.int64]  # (n,) number of the line

    @classmethod
    def of(cls, ends: Sequence[Floats]) -> _Lines:
        """Lines between two ends each, (2, 2)."""
        parts = [_along(one) for one in ends]
        line = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return cls(np.concatenate(parts), line)

    def crossed(self, box: _Box) -> int:
        """How many lines a name would cross."""
        return len(np.unique(self.line[box.holds(self.places, _EDGE)]))


def name_points(axes: Axes, names: Iterable[tuple[str, int]], drawn: Drawn) -> None:
    """Write names beside points, `(name, number of the point)`, the most important one first.

    Call it when everything else of the figure is drawn: the places come from its layout. A name
    that does not fit beside its point is further away, with a line, which crosses no other name. A
    name without any free place is left out.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout
    scale = 72 / figure.dpi

    def placed(places: npt.ArrayLike) -> Floats:
        return np.asarray(axes.transData.transform(np.asarray(places)) * scale)

    frame = axes.get_window_extent()
    window = np.array([[frame.x0, frame.y0], [frame.x1, frame.y1]]) * scale  # (2 corners, 2)
    points = placed(drawn.points)
    lines = _Lines.of([placed(ends) for ends in (*drawn.intervals, _DIAGONAL)])
    taken: list[_Box] = []
    routes: list[Floats] = []  # lines to named points
    for name, number in names:
        free = [
            box
            for box in _boxes(points[number], _extent(name), window)
            if not box.holds(points, _RADIUS).any()
            and not any(box.overlaps(other) for other in taken)
            and not any(box.holds(route, _EDGE).any() for route in routes)
            and not any(other.holds(box.route(points[number]), _EDGE).any() for other in taken)
        ]
        if not free:
            continue
        others = np.delete(points, number, axis=0)
        box = min(free, key=lambda one: _cost(one, points[number], others, lines, routes))
        taken.append(box)
        routes.append(box.route(points[number]))
        _write(axes, name, drawn.points[number], points[number], box)


def _extent(name: str) -> Floats:
    """(2,) width and height of a name."""
    box = TextPath((0, 0), name, prop=FontProperties(size=SMALLEST)).get_extents()
    return np.array([box.width + 1.0, box.height])


def _boxes(point: Floats, extent: Floats, window: Floats) -> Iterator[_Box]:
    """The places around a point that are inside the axes."""
    for distance in _DISTANCES:
        for direction in _DIRECTIONS:
            step = np.array(direction) / np.hypot(*direction)  # (2,) of length 1
            side = np.rint(step).astype(int)  # (2,)
            low = point + distance * step - extent * (1 - side) / 2
            box = _Box(low, low + extent, (int(side[0]), int(side[1])), distance)
            if (box.low > window[0] + _EDGE).all() and (box.high < window[1] - _EDGE).all():
                yield box


def _cost(
    box: _Box, point: Floats, others: Floats, lines: _Lines, routes: Iterable[Floats]
) -> float:
    """How bad a place is: its distance, and what the name and its line cross."""
    route = box.route(point)  # (n, 2)
    hidden = int((_gaps(others, route) < _RADIUS).any(axis=1).sum())
    hidden += sum(bool((_gaps(other, route) < _EDGE).any()) for other in routes)
    return box.distance + _HIDDEN * hidden + _CROSSING * lines.crossed(box)


def _gaps(places: Floats, route: Floats) -> Floats:
    """(n, m) distances between places (n, 2) and places on a line (m, 2)."""
    return np.asarray(np.linalg.norm(places[:, None] - route[None], axis=2))


def _along(ends: Floats) -> Floats:
    """(n, 2) places on a line, at most two points apart."""
    number = max(2, int(np.linalg.norm(ends[1] - ends[0]) // 2) + 1)
    return np.asarray(np.linspace(ends[0], ends[1], number))


def _write(axes: Axes, name: str, place: Floats, point: Floats, box: _Box) -> None:
    """Write a name, with a line to its point if it is not beside it."""
    at = (float(place[0]), float(place[1]))
    text = axes.annotate(
        name,
        at,
        xytext=tuple((box.low - point).tolist()),
        textcoords="offset points",
        fontsize=SMALLEST,
        color=INK,
    )
    text.set_in_layout(False)  # the layout is known
    if box.distance > _LINE_FROM:
        line = axes.annotate(
            "",
            at,
            xytext=tuple((box.end - point).tolist()),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkB": 2.5},
        )
        line.set_in_layout(False)
