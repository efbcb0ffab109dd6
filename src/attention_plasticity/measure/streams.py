"""The random streams of a head. Every purpose has a number of its own, here and nowhere else.

Streams of seeds' columns are older and follow another rule: `pair_seed`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Purpose(IntEnum):
    """What is drawn."""

    BIN_PAIRS = 1  # key pairs of plasticity at one position, for a key head
    ATTENDED_PAIRS = 2  # for a query head
    DISTANCE_PAIRS = 3  # pairs of a query and an earlier key, for a key head
    SEEN_PAIRS = 6  # key pairs of the table of key heads


class Streams(NamedTuple):
    """The streams of a query head or a key head."""

    seed: int
    layer: int
    head: int

    def rng(self, purpose: Purpose) -> np.random.Generator:
        """The generator of one purpose."""
        key = [self.seed, self.layer, self.head, int(purpose)]
        return np.random.default_rng(np.random.SeedSequence(key))


def pair_seed(seed: int, layer: int, q_head: int) -> int:
    """Seed of the key pairs of the seeds' columns."""
    return seed + 10007 * layer + 379 * q_head
