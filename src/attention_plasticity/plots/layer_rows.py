"""Rows of a map of heads: labels of layers, and marks where layers are left out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attention_plasticity.plots.style import INK
from qk_toolkit.formatting import index_ranges

Ints = npt.NDArray[np.int64]

_LONGEST_RANGES = 40  # characters; numbers of layers in the footnote


def label_axes(axes: Axes, layers: Ints) -> None:
    """Label heads and layers. Rows without gaps have round numbers."""
    axes.set_xlabel("query head")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
    if len(layers) > 1 and np.ptp(layers) + 1 != len(layers):
        step = -(-len(layers) // 12)
        axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    else:
        first = int(layers[0])
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda row, _: f"{row + first:.0f}"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def mark_gaps(axes: Axes, layers: Ints) -> None:
    """Draw a dashed line where layers between two rows are left out."""
    for row in np.flatnonzero(np.diff(layers) > 1) + 0.5:
        axes.axhline(row, color="white", linewidth=2.6)
        axes.axhline(row, color=INK, linewidth=0.9, linestyle=(0, (4, 2.5)))


def layers_left_out(layers: Ints) -> tuple[str | None, str | None]:
    """A note and a sentence about the dashed lines; None if there is none."""
    missing = sorted(set(range(layers[0], layers[-1] + 1)) - set(layers.tolist()))
    if not missing:
        return None, None
    several, named = int((np.diff(layers) > 1).sum()) > 1, index_ranges(missing)
    if len(named) > _LONGEST_RANGES:
        named = f"{len(missing):,} between {layers[0]} and {layers[-1]}"
    return (
        f"dashed line{'s' * several}: layer{'s' * (len(missing) > 1)} {named} left out",
        f"The dashed line{'s mark' if several else ' marks'} layers that are left out ({named}).",
    )
