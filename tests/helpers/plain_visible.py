"""Which keys a query sees, and steps of a sampler, one at a time."""

import numpy as np


def sees(t, key, visible):
    """Whether a query at t sees the key at a position."""
    if key > t or visible.size is None:
        return key <= t
    same = t // visible.size == key // visible.size
    return same if visible.chunked else t - key < visible.size


class Even:
    """In place of a random generator: the same place of every step."""

    def __init__(self, place):
        self.place = place

    def random(self, number):
        return np.full(number, self.place)
