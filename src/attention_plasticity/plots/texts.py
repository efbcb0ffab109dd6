"""The number of texts in each bin or query bucket, as a strip between the data and the x axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from attention_plasticity.plots.style import INK, QUIET, SMALLEST, beside_axes
from qk_toolkit.formatting import count

Floats = npt.NDArray[np.float64]

_HEIGHT, _SPACE = 10.0, 2.0  # points: the strip, above and below it
_DIGIT = 0.72 * SMALLEST  # points; width of a digit with space
_AXES_WIDTH = 200.0  # points, about
_LIGHT, _DARK = 0.96, 0.62  # greys of no text and of most texts


def texts_by_bucket(cells: pd.DataFrame) -> pd.Series[float]:
    """Per query bucket, the largest number of texts over heads; empty if it is not known."""
    if "n_texts" not in cells:
        return pd.Series(dtype=np.float64)
    return cells.groupby("q_bucket")["n_texts"].max().dropna()


def texts_note(texts: pd.Series[float], part: str) -> str | None:
    """`12 texts in every bucket`, if the number is the same everywhere."""
    if texts.empty or texts.nunique() > 1:
        return None
    return f"{count(int(texts.iloc[0]), 'text')} in every {part}"


def texts_sentence(texts: pd.Series[float], part: str) -> str | None:
    """The sentence of the caption."""
    if texts.empty:
        return None
    low, high = int(texts.min()), int(texts.max())
    if low == high:
        return f"Every {part} has queries of {count(low, 'text')}."
    return (
        f"The grey strip has the number of texts with queries in each {part}, from {high:,} to "
        f"{low:,}."
    )


def draw_texts(axes: Axes, texts: pd.Series[float], left: Floats, right: Floats) -> None:
    """Draw the strip below the data, if the numbers differ, and move the x axis below it.

    `left` and `right` are the borders of every bucket on the x axis.
    """
    if texts.nunique() < 2:
        return
    places = beside_axes(axes, "x")
    left, right = (np.clip(border, *axes.get_xlim()) for border in (left, right))
    numbers = np.asarray(texts, np.float64)
    tiles = [
        Rectangle((start, -_SPACE - _HEIGHT), end - start, _HEIGHT)
        for start, end in zip(left, right, strict=True)
    ]
    greys = _LIGHT + (_DARK - _LIGHT) * numbers / numbers.max()
    axes.add_artist(
        PatchCollection(
            tiles,
            facecolors=[str(grey) for grey in greys],
            edgecolors="white",
            linewidths=0.4 if len(tiles) <= 40 else 0.0,
            transform=places,
            clip_on=False,
        )
    )
    middle = -_SPACE - 0.5 * _HEIGHT
    scale = axes.xaxis.get_transform()  # positions may have a logarithmic scale
    centres = scale.inverted().transform(0.5 * (scale.transform(left) + scale.transform(right)))
    for number in _labelled(numbers):
        _write(axes, centres[number], middle, f"{numbers[number]:,.0f}")
    axes.annotate(
        "texts",
        (0, 0),
        (-4, middle),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=SMALLEST,
        color=QUIET,
    )
    axes.spines["bottom"].set_position(("outward", 2 * _SPACE + _HEIGHT))


def _labelled(numbers: Floats) -> list[int]:
    """The tiles that have a number: as many as fit, always the first and the last."""
    digits = len(f"{numbers.max():,.0f}")
    fit = max(2, int(_AXES_WIDTH / (digits * _DIGIT + 2)))
    step = -(-len(numbers) // fit)
    chosen = list(range(0, len(numbers) - step, step))
    return [*chosen, len(numbers) - 1]


def _write(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(
        x,
        y,
        text,
        transform=beside_axes(axes, "x"),
        ha="center",
        va="center",
        fontsize=SMALLEST,
        color=INK,
        clip_on=False,
    )
