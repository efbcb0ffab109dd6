"""Bands and whiskers of confidence intervals, and the notes that explain them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer

Floats = npt.NDArray[np.float64]


def whiskers(
    axes: Axes,
    x: Any,
    y: Any,
    half: Any,
    colour: Any,
    *,
    horizontal: bool = False,
    cap: float = 3.0,
) -> ErrorbarContainer | None:
    """Draw `value ± half` at every point where both are known; None if there is none.

    `cap` is the length of the lines at both ends, in points.
    """
    places, values, halves = (np.asarray(part, np.float64) for part in (x, y, half))
    known = np.isfinite(places) & np.isfinite(values) & np.isfinite(halves)
    if not known.any():
        return None
    return axes.errorbar(
        places[known],
        values[known],
        xerr=halves[known] if horizontal else None,
        yerr=None if horizontal else halves[known],
        fmt="none",
        ecolor=colour,
        elinewidth=1.0,
        capsize=cap,
        capthick=1.0,
    )


def band(axes: Axes, x: Floats, y: Floats, half: Floats, **options: Any) -> PolyCollection | None:
    """Fill `value ± half`, with gaps where it is not known; None if it is known nowhere."""
    if not np.isfinite(y + half).any():
        return None
    return axes.fill_between(x, y - half, y + half, linewidth=0, **options)


def interval_note(mark: str, half: Floats, eligible: int | None = None) -> str | None:
    """What a band or whiskers are, from their half widths; None if no half width is known.

    `eligible` is the number of heads from which the heads were sampled at random, or None.
    """
    known = np.isfinite(half)
    if not known.any():
        return None
    over = "texts" if eligible is None else f"texts and the {eligible:,} eligible heads"
    return f"{mark}: 95 % interval over {over}{'' if known.all() else ', where it is known'}"
