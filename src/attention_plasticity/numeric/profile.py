"""Plasticity of the cells and query buckets of a head, and means over query buckets.

Arrays in, arrays out; numpy only.

Plasticity by distance: between the two keys of a pair, and from the query to the nearer key.
Distances are differences of bucket numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class DistancePlasticity:
    """Mean plasticity over the pairs of every combination of distances, sorted."""

    query_distance: Ints  # (rows,) from the query to the nearer key
    key_distance: Ints  # (rows,) between the two keys
    plasticity: Array  # (rows,)
    n_pairs: Ints  # (rows,)


class DistanceSums:
    """Sums of plasticity by distance, over query buckets and blocks of pairs."""

    def __init__(self, query_buckets: Ints, key_buckets: Ints) -> None:
        self._query_buckets, self._key_buckets = query_buckets, key_buckets
        self._parts: list[tuple[Ints, Array, Ints]] = []

    def add(self, code: int, later: Ints, earlier: Ints, values: Array) -> None:
        """Add pairs of query bucket `code`. `later` and `earlier` are the codes of their keys."""
        keys = self._key_buckets
        query_distance = self._query_buckets[code] - keys[later]
        distances = np.stack([query_distance, keys[later] - keys[earlier]], axis=1)  # (pairs, 2)
        cells, slot = np.unique(distances, axis=0, return_inverse=True)
        sums = np.asarray(np.bincount(slot.ravel(), values, len(cells)), np.float64)
        self._parts.append((cells, sums, np.bincount(slot.ravel(), minlength=len(cells))))

    def finish(self) -> DistancePlasticity:
        """Means over all pairs that were added."""
        if not self._parts:
            empty = np.empty(0, np.int64)
            return DistancePlasticity(empty, empty, np.empty(0), empty)
        distances = np.concatenate([cells for cells, _, _ in self._parts])
        cells, slot = np.unique(distances, axis=0, return_inverse=True)
        sums = np.bincount(slot.ravel(), np.concatenate([part for _, part, _ in self._parts]))
        pairs = np.zeros(len(cells), np.int64)
        np.add.at(pairs, slot.ravel(), np.concatenate([part for _, _, part in self._parts]))
        return DistancePlasticity(cells[:, 0], cells[:, 1], sums / pairs, pairs)
