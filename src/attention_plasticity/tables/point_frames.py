"""The frames in which the table of points has coordinates: before and after RoPE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_plasticity.metrics import AFTER_ROPE, BEFORE_ROPE


@dataclass(frozen=True)
class PointFrame:
    """A frame, and the names of its columns."""

    name: str  # on the page and in its address
    words: str
    coordinates: tuple[str, str]  # columns of the table of points
    ending: str  # of its columns in the table of drift


FRAMES = (
    PointFrame("before", "before RoPE", ("pc0", "pc1"), BEFORE_ROPE),
    PointFrame("after", "after RoPE", (f"pc0{AFTER_ROPE}", f"pc1{AFTER_ROPE}"), ""),
)
"""In the order in which they are shown."""


def known_frames(points: pd.DataFrame) -> list[PointFrame]:
    """The frames of which these points, such as those of a head, have coordinates.

    Tables of earlier versions have coordinates before RoPE only.
    """
    return [
        frame
        for frame in FRAMES
        if set(frame.coordinates) <= set(points.columns)
        and points[[*frame.coordinates]].notna().all(axis=None)
    ]


def are_equal(points: pd.DataFrame) -> bool:
    """Whether points are the same before and after RoPE, because the layer has none."""
    if len(known_frames(points)) < len(FRAMES):
        return False
    before, after = (points[[*frame.coordinates]].to_numpy() for frame in FRAMES)  # (n, 2)
    return bool(np.array_equal(before, after))
