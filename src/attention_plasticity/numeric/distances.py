"""Plasticity by distance: between the two keys of a pair, and from the query to the nearer key.

Arrays in, arrays out; numpy only. Distances are differences of bucket numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qk_toolkit.arrays import Array, Ints


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
