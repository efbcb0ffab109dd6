"""Two values of every head as a point, with intervals and a diagonal of equal values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D

from attention_plasticity.plots.head_names import Drawn, name_points
from attention_plasticity.plots.style import FAINT, QUIET, line_shades, plasticity_axis
from attention_plasticity.tables.intervals import head_half_width, quantity_groups
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

MOST_WHISKERS = 400  # heads that are drawn with their intervals
_LEAST_GAP = 0.025  # distance from the diagonal of a head with a name


@dataclass(frozen=True)
class HeadPoints:
    """A point per head: columns `x` and `y`, with the half widths of their intervals."""

    table: pd.DataFrame  # layer, q_head, x, y, x_half, y_half
    groups: Floats  # (2, heads of the run) groups of texts behind the values

    @classmethod
    def of(
        cls, metrics: pd.DataFrame, x: str, y: str, influences: pd.DataFrame | None
    ) -> HeadPoints:
        """The heads of a table that have both values."""
        names = {"x": x, "y": y}
        values = {axis: metrics[name] for axis, name in names.items()}
        halves = {
            f"{axis}_half": head_half_width(metrics, name, influences)
            for axis, name in names.items()
        }
        table = metrics[["layer", "q_head"]].assign(**values, **halves).dropna(subset=["x", "y"])
        if table.empty:
            raise ConfigError(
                "the table of heads: no head has both values; there is nothing to draw"
            )
        groups = [quantity_groups(metrics, name, influences) for name in names.values()]
        return cls(table, np.array(groups))

    @property
    def has_lines(self) -> bool:
        """Whether intervals are drawn."""
        return len(self.table) <= MOST_WHISKERS and self._known

    @property
    def _known(self) -> bool:
        return not bool(np.isnan(self.table["y_half"].to_numpy(np.float64)).all())

    def interval_note(self, name: str) -> str | None:
        """What the lines are, or the width of an interval of `name` if there are too many heads."""
        if not self._known:
            return None
        if self.has_lines:
            return "lines: 95 % intervals over texts"
        return (
            f"95 % interval of {name} of one head: ± {self.table['y_half'].median():.3f} (median)"
        )

    @property
    def correlation(self) -> str | None:
        """Spearman's correlation over heads."""
        return rank_correlation(self.table["x"], self.table["y"])


def rank_correlation(x: pd.Series[float], y: pd.Series[float]) -> str | None:
    """Spearman's correlation in words; None if there is none."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    rho = round(x.corr(y, method="spearman"), 2) + 0.0  # no -0.00
    return f"Spearman's ρ {rho:.2f}".replace("-", "−")


def draw_points(
    axes: Axes, points: HeadPoints, labels: tuple[str, str], cmap: str
) -> tuple[PathCollection, Line2D]:
    """Draw points, intervals and diagonal of two plasticities. Returns points and diagonal."""
    diagonal = draw_diagonal(axes)
    drawn = draw_heads(axes, points.table, cmap, lines=points.has_lines)
    plasticity_axis(axes, labels[1])
    axes.set_xlabel(labels[0])
    axes.set_xlim(-0.02, 1.02)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    return drawn, diagonal


def draw_diagonal(axes: Axes) -> Line2D:
    """Draw the line of equal values."""
    (diagonal,) = axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
    return diagonal


def draw_heads(axes: Axes, table: pd.DataFrame, cmap: str, *, lines: bool) -> PathCollection:
    """Draw a point per head, coloured by layer; with `lines`, with its intervals too.

    `table` has the columns `layer`, `x` and `y`, and half widths of intervals `x_half` or `y_half`.
    """
    if lines:
        halves = {
            f"{axis}err": np.nan_to_num(table[f"{axis}_half"].to_numpy(np.float64))
            for axis in "xy"
            if f"{axis}_half" in table
        }
        options: Any = {"fmt": "none", "ecolor": FAINT, "elinewidth": 0.7, "zorder": 1}
        axes.errorbar(table["x"], table["y"], **halves, **options)
    layers = table["layer"]
    return axes.scatter(
        table["x"],
        table["y"],
        c=layers,
        cmap=line_shades(cmap),
        vmin=layers.min(),
        vmax=max(layers.max(), layers.min() + 1),
        s=16,
        linewidths=0,
        alpha=0.85,
        zorder=2,
    )


def name_heads(
    axes: Axes, points: HeadPoints, gaps: Sequence[pd.Series[float]], number: int
) -> None:
    """Write the names of the heads with the largest gaps, `number` for each of the gaps.

    Call it when everything else of the figure is drawn.
    """
    table = points.table
    named: list[tuple[str, int]] = []
    for gap in gaps:
        far = gap[gap > _LEAST_GAP].sort_values(ascending=False, kind="stable").index[:number]
        for place in table.index.get_indexer(far):
            head = table.iloc[place]
            named.append((f"L{head['layer']:.0f} H{head['q_head']:.0f}", int(place)))
    name_points(axes, named, Drawn(table[["x", "y"]].to_numpy(np.float64), _lines(points)))


def _lines(points: HeadPoints) -> Floats:
    """(lines, 2 ends, 2) of the drawn intervals."""
    if not points.has_lines:
        return np.empty((0, 2, 2))
    table = points.table
    places = table[["x", "y"]].to_numpy(np.float64)  # (heads, 2)
    halves = np.nan_to_num(table[["x_half", "y_half"]].to_numpy(np.float64))  # (heads, 2)
    steps = halves[:, None] * np.eye(2)  # (heads, axis, 2)
    ends = places[:, None, None] + steps[:, :, None] * np.array([[-1.0], [1.0]])
    return np.asarray(ends.reshape(-1, 2, 2))
