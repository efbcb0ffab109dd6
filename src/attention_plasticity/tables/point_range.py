"""The range of coordinates of points that is drawn, in figures and on the page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_INSIDE = 0.99  # share of the points that decides the range
_ROOM = 0.25  # of this range on both sides, if there are points
_MARGIN = 0.04


def drawn_range(values: Floats) -> tuple[float, float]:
    """A range that a few tokens far from all others, such as first tokens, do not decide."""
    rest = (1.0 - _INSIDE) / 2.0
    low, high = (float(one) for one in np.quantile(values, [rest, 1.0 - rest]))
    width = high - low or 1.0
    first, last = float(values.min()) - _MARGIN * width, float(values.max()) + _MARGIN * width
    return max(first, low - _ROOM * width), min(last, high + _ROOM * width)


def inside(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """(n,) whether a point is in the range of both coordinates."""
    found = np.ones(len(x), bool)
    for values in (x, y):
        low, high = drawn_range(values)
        found &= (values >= low) & (values <= high)
    return found
