"""Which keys a query sees, and steps of a sampler, one at a time."""

from __future__ import annotations

import numpy as np

from attention_plasticity.estimate.visible import Visible


def sees(t: float, key: float, visible: Visible) -> bool:
    """Whether a query at t sees the key at a position."""
    if key > t or visible.size is None:
        return key <= t
    same = t // visible.size == key // visible.size
    return same if visible.chunked else t - key < visible.size


class Even:
    """In place of a random generator: the same place of every step."""

    def __init__(self, place: float) -> None:
        self.place = place

    def random(self, number: int) -> np.ndarray:
        return np.full(number, self.place)
