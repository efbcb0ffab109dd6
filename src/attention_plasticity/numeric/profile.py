"""Plasticity of the cells and query buckets of a head, and means over query buckets.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.distances import DistancePlasticity
from attention_plasticity.numeric.errors.counting import CountedPlasticity
from attention_plasticity.numeric.errors.uncertainty import Uncertainty
from attention_plasticity.numeric.sizes import FIFTHS
from qk_toolkit.arrays import Array, Ints


@dataclass(frozen=True)
class AttentionPlasticity:
    """Plasticity of a head per eligible (query bucket, key bucket), and per query bucket."""

    q_code: Ints  # (cells,) index into the query buckets
    k_code: Ints  # (cells,) index into the key buckets
    plasticity: Array  # (cells,) mean over the cell's pairs; NaN without a pair
    n_pairs: Ints  # (cells,)
    query_buckets: Ints  # (query buckets,)
    query_positions: Array  # (query buckets,) mean position
    query_counts: Ints  # (query buckets,)
    key_buckets: Ints  # (key buckets,)
    profile: Array  # (query buckets,) mean over all pairs of a query bucket; NaN without a pair
    uncertainty: Uncertainty | None = None
    counted: CountedPlasticity | None = None
    distances: DistancePlasticity | None = None

    @property
    def q_bucket(self) -> Ints:
        """Query bucket of every cell."""
        return self.query_buckets[self.q_code]

    @property
    def k_bucket(self) -> Ints:
        """Key bucket of every cell."""
        return self.key_buckets[self.k_code]

    @property
    def overall(self) -> float:
        """Mean of the profile, weighted by the number of queries per bucket."""
        return weighted_mean(self.profile, self.query_counts)


def weighted_mean(values: Array, weights: npt.NDArray[Any]) -> float:
    """Weighted mean of the values that are not NaN; NaN if there is no such value."""
    valid = ~np.isnan(values)
    total = float(weights[valid].sum())
    return float(values[valid] @ weights[valid]) / total if total > 0 else float("nan")


def fifth_of(positions: Array, context: float) -> Ints:
    """The fifth of `[0, context]`, from 0 to 4, in which each position is."""
    if context <= 0:
        return np.zeros(len(positions), np.int64)
    return np.minimum((FIFTHS * positions / context).astype(np.int64), FIFTHS - 1)


def means_by_fifth(profile: Array, positions: Array, counts: Ints, context: float) -> Array:
    """(5,) means of the profile over each fifth of `[0, context]`, weighted by queries."""
    fifth = fifth_of(positions, context)
    return np.array([weighted_mean(profile[fifth == i], counts[fifth == i]) for i in range(FIFTHS)])
