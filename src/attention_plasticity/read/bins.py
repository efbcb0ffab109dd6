"""Bins of positions, in which plasticity at one position is computed.

All heads of a run have the same bins. The buckets of a dump are
those of its sampler; bins do not depend on the sampler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.sizes import FIFTHS
from qk_toolkit.arrays import Array, Ints

FEW_QUERIES = 32  # in a bin; the bias of plasticity is large with fewer
_ENOUGH = 0.9  # share of the bins that are expected to hold this many queries
_BINS, _FEWEST_BINS = 16, 8  # of the longest text
_MOST_POSITIONS = 1 << 20  # at which expected numbers are computed


@dataclass(frozen=True)
class Bins:
    """Bins of `size` tokens, from position 0 on; bin b begins at `b · size`."""

    size: int
    context: int  # tokens of the longest text

    def of(self, position: Array) -> Ints:
        """(n,) the bin of every position."""
        return np.asarray(np.floor(position / self.size), np.int64)

    def starts(self, bins: Ints) -> Ints:
        """The first position of each bin."""
        return bins * self.size

    def ends(self, bins: Ints) -> Ints:
        """The last position of each bin."""
        return bins * self.size + (self.size - 1)

    @property
    def near(self) -> int:
        """The largest distance in bins from queries of the first fifth to their keys."""
        return max(1, math.ceil(self.context / FIFTHS / self.size) - 1)

    def fifths(self, position: Array) -> Ints:
        """(n,) the fifth of the context, from 0 to 4, in which every position is."""
        fifth = np.floor(FIFTHS * position / self.context)
        return np.asarray(np.clip(fifth, 0, FIFTHS - 1), np.int64)


@dataclass(frozen=True)
class ExpectedQueries:
    """Numbers of queries that are expected at some positions."""

    position: Array  # (n,)
    number: Array  # (n,)

    def enough(self, size: int, context: int) -> bool:
        """Whether 90 % of the bins that a text reaches are expected to hold 32 queries."""
        bins = Bins(size, context)
        count = -(-context // size)
        expected = np.bincount(bins.of(self.position), self.number, count)[:count]
        return bool(np.count_nonzero(expected >= FEW_QUERIES) >= _ENOUGH * count)


def bin_size(context: int, expected: ExpectedQueries) -> int:
    """The power of two nearest by ratio to a sixteenth of the context, or a larger one.

    It is doubled until the bins are expected to hold enough queries, at most to an eighth of the
    context.
    """
    size = 1 << max(0, round(math.log2(context / _BINS)))
    while 2 * size <= context / _FEWEST_BINS and not expected.enough(size, context):
        size *= 2
    return size


def grid(context: int) -> tuple[Ints, int]:
    """Positions of the longest text, and the number of positions that each of them stands for."""
    step = -(-context // _MOST_POSITIONS)
    return np.arange(0, context, step, dtype=np.int64), step


def texts_at(lengths: Ints, positions: Ints) -> Ints:
    """(n,) the number of texts that have a token at each position."""
    return len(lengths) - np.searchsorted(np.sort(lengths), positions, side="right")
