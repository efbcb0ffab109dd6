"""Which heads have a drop that differs from 0, and its marks on a map: dots, rings, faded cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from attention_plasticity.plots.style import FAINT, INK, WIDTH
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    head_half_width,
    p_values,
    quantity_groups,
)
from attention_plasticity.tables.profiles import HEAD

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEGEND = 0.48  # inches; height of the legend of the marks
_DOT, _RING = 2.4, 5.5  # points; diameters of the marks in large cells
_VEIL = 0.72  # opacity of the white over a faded head


@dataclass(frozen=True)
class DropTests:
    """Which heads have a drop that differs from 0."""

    heads: Ints  # (tested, 2) layer and query head
    values: Floats  # (tested,) drop
    excluded: npt.NDArray[np.bool_]  # (tested,) 0 is outside the 95 % interval
    significant: npt.NDArray[np.bool_]  # (tested,) after Benjamini-Hochberg at 5 %

    faded: npt.NDArray[np.bool_]  # (tested,) drawn in pale colours
    groups: Floats  # (tested,) groups of texts behind the drop

    @property
    def sentences(self) -> str:
        """The marks as sentences of a caption."""
        faded = int(self.faded.sum())
        pale = f" Heads whose interval contains 0 are faded ({faded:,})." if faded else ""
        return (
            f"A dot marks a head whose 95 % interval of the drop excludes 0 "
            f"({self.excluded.sum():,} of {len(self.heads):,} tested heads), a ring one that is "
            f"significant at a false discovery rate of 5 % ({self.significant.sum():,} heads; "
            f"Benjamini-Hochberg).{pale}"
        )

    @classmethod
    def of(
        cls, metrics: pd.DataFrame, name: str, influences: pd.DataFrame | None, *, fade: bool
    ) -> DropTests | None:
        """The tests of a column of drops; None if no head has a standard error.

        With `fade`, the heads whose 95 % interval contains 0 are to be faded.
        """
        p = p_values(metrics, name, influences)
        tested = ~np.isnan(p)
        if not tested.any():
            return None
        drop = metrics[name].to_numpy(np.float64)
        excluded = (np.abs(drop) > head_half_width(metrics, name, influences))[tested]
        return cls(
            metrics[HEAD].to_numpy(np.int64)[tested],
            drop[tested],
            excluded,
            benjamini_hochberg(p)[tested],
            ~excluded & fade,
            quantity_groups(metrics, name, influences)[tested],
        )


def mark_tests(
    figure: Figure, axes: Axes, tests: DropTests, drawn: AxesImage, layers: Ints
) -> None:
    """Draw dots and rings, which are white in dark cells, and a veil over uncertain heads."""
    rows, heads = drawn.get_size()
    cell = 72.0 * min(0.7 * figure.get_figheight() / rows, 0.7 * WIDTH / heads)  # points
    dot, ring = min(_DOT, 0.4 * cell), min(_RING, 0.75 * cell)  # diameters
    dark = drawn.to_rgba(tests.values) @ [0.299, 0.587, 0.114, 0.0] < 0.5  # (tested,)
    colours = np.where(dark, "white", INK)
    row, head = np.searchsorted(layers, tests.heads[:, 0]), tests.heads[:, 1]  # (tested,)
    _fade(axes, drawn, row[tests.faded], head[tests.faded])
    marked = tests.excluded
    axes.scatter(head[marked], row[marked], s=dot**2, color=colours[marked].tolist(), linewidths=0)
    marked = tests.significant
    edges = colours[marked].tolist()
    axes.scatter(
        head[marked], row[marked], s=ring**2, facecolors="none", edgecolors=edges, linewidths=0.7
    )


def _fade(axes: Axes, drawn: AxesImage, rows: Ints, heads: Ints) -> None:
    if len(rows):
        veil = np.ones((*drawn.get_size(), 4))  # (layers, heads, rgba), white
        veil[..., 3] = 0.0
        veil[rows, heads, 3] = _VEIL
        axes.imshow(veil, aspect="auto", interpolation="nearest")


def legend_of_tests(figure: Figure, axes: Axes, tests: DropTests) -> Legend:
    """Explain the marks below the axes, with the numbers of heads."""
    dot = Line2D([], [], linestyle="", marker="o", color=INK, markersize=_DOT, markeredgewidth=0)
    ring = Line2D([], [], linestyle="", marker="o", color=INK, markersize=_RING, fillstyle="none")
    excluded, significant = int(tests.excluded.sum()), int(tests.significant.sum())
    handles: list[Line2D | Patch] = [dot, ring]
    labels = [
        f"{excluded:,} of {len(tests.heads):,} tested: 95 % interval without 0",
        f"{significant:,} of them: false discovery rate of 5 %",
    ]
    if faded := int(tests.faded.sum()):
        handles.append(Patch(facecolor="#e4e0ea", edgecolor=FAINT, linewidth=0.6))
        labels.append(f"{faded:,} faded: 95 % interval with 0")
    below = axes.transAxes + ScaledTranslation(0, -0.45, figure.dpi_scale_trans)
    return axes.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        borderaxespad=0,
        borderpad=0,
        handletextpad=0.6,
        handlelength=1.0,
        handleheight=0.8,
    )
