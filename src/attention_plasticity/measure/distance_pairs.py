"""Pairs of a query and an earlier key of its text, sampled evenly over bins of distance.

Arrays in, arrays out; numpy only. They are for rotary bands and the rotary kernel. The pairs of all
tokens are far too many, and most of them are far apart. So every bin of distance gets its own
sample, and a pair has a weight with which sums over the sample stand for sums over all pairs that
the queries see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.pairs import drawn_ranges
from attention_plasticity.estimate.visible import Visible
from qk_toolkit.arrays import Array, Ints

PAIRS_PER_BIN = 128  # of every bin
PAIRS_BY_WEIGHT = 4096  # further pairs, which go to bins that stand for many pairs
_MOST_QUERIES = 4096  # whose earlier keys are pairs
_STEPS = 4  # bins per octave, from a distance of 4 on


class PlacedRows(NamedTuple):
    """Where the queries or keys of a head are, and the tokens that each row stands for."""

    position: Array  # (n,)
    text: Ints  # (n,)
    weight: Array  # (n,)


@dataclass(frozen=True)
class DistancePairs:
    """Pairs, sorted by bin. The weights of a bin sum to that of all its pairs."""

    query: Ints  # (pairs,) rows of the queries
    key: Ints  # (pairs,) rows of the keys
    distance: Array  # (pairs,) tokens from the key to the query
    weight: Array  # (pairs,)
    bin: Ints  # (pairs,) number of the bin, among bins with pairs
    first: Array  # (bins,) first distance of every bin with pairs
    end: Array  # (bins,) first distance after it

    @property
    def counts(self) -> Ints:
        """(bins,) numbers of pairs."""
        return np.bincount(self.bin, minlength=len(self.first))


def distance_edges(largest: float) -> Array:
    """First distances of the bins up to the one that has `largest`, and the end of this bin.

    Distances 1 to 7 have bins of their own. From 4 on, an octave has four bins.

    Examples:
        >>> distance_edges(17).tolist()
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0]
    """
    edges = [1.0, 2.0, 3.0, 4.0]
    while edges[-1] <= largest:
        octave = 2.0 ** np.floor(np.log2(edges[-1]))
        edges.append(edges[-1] + octave / _STEPS)
    above = np.flatnonzero(np.array(edges) > largest)
    return np.array(edges[: max(2, int(above[0]) + 1)])


def distance_pairs(
    queries: PlacedRows,
    keys: PlacedRows,
    visible: Visible,
    rng: np.random.Generator,
    pairs_per_bin: int = PAIRS_PER_BIN,
    pairs_by_weight: int = PAIRS_BY_WEIGHT,
) -> DistancePairs:
    """A sample of the pairs of a query and an earlier key of its text that it sees.

    A bin with few pairs has all of them. Of other bins, pairs are drawn with probabilities in
    proportion to the weights of query and key, at even steps of the sum of these weights.
    """
    seen = _SeenKeys(queries, keys, visible)
    edges = distance_edges(seen.largest_distance)
    limits = seen.keys_from(edges)  # (bins + 1, n)
    begin, end = limits[1:], limits[:-1]  # (bins, n)
    mass = seen.weight * (seen.before[end] - seen.before[begin])
    totals, sizes = mass.sum(axis=1), (end - begin).sum(axis=1)  # (bins,) each
    number = pairs_per_bin + np.rint(pairs_by_weight * totals / (totals.sum() or 1.0))
    few = sizes <= number
    parts = [
        _all_pairs(seen, begin * few[:, None], end * few[:, None]),
        _some_pairs(seen, begin, end, mass, np.where(few, 0, number).astype(np.int64), rng),
    ]
    row, query, key, weight = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    used, place = np.unique(row[order], return_inverse=True)
    query, key = query[order], key[order]
    return DistancePairs(
        query=seen.queries[query],
        key=seen.keys[key],
        distance=queries.position[seen.queries[query]] - keys.position[seen.keys[key]],
        weight=weight[order],
        bin=place,
        first=edges[used],
        end=edges[used + 1],
    )


class _Drawn(NamedTuple):
    """Pairs of some bins; queries and keys are numbers in the order of `_SeenKeys`."""

    bin: Ints  # (pairs,)
    query: Ints  # (pairs,)
    key: Ints  # (pairs,)
    weight: Array  # (pairs,)


def _all_pairs(seen: _SeenKeys, begin: Ints, end: Ints) -> _Drawn:
    """Every query of each bin with all keys from `begin` to `end` (bins, n)."""
    row, query = np.nonzero(end > begin)
    size, first = (end - begin)[row, query], begin[row, query]
    key = np.arange(size.sum()) + np.repeat(first - (np.cumsum(size) - size), size)
    query = np.repeat(query, size)
    return _Drawn(np.repeat(row, size), query, key, seen.weight[query] * seen.key_weight[key])


def _some_pairs(
    seen: _SeenKeys,
    begin: Ints,
    end: Ints,
    mass: Array,  # (bins, n) weight of every query times that of its keys
    number: Ints,  # (bins,)
    rng: np.random.Generator,
) -> _Drawn:
    """A sample of the pairs of a query of each bin and one of its keys."""
    row, query, _ = drawn_ranges(mass, number, rng)
    first, stop = begin[row, query], end[row, query]  # (pairs,)
    low, high = seen.before[first], seen.before[stop]
    value = low + rng.random(len(row)) * (high - low)
    key = np.clip(np.searchsorted(seen.before, value, side="right") - 1, first, stop - 1)
    weight = mass.sum(axis=1)[row] / number[row]
    return _Drawn(row, query, key, weight)


class _SeenKeys:
    """Queries and keys in the order of texts and positions, and the keys that a query sees.

    The keys at some distances from a query are a range in this order. No pair is listed.
    """

    def __init__(self, queries: PlacedRows, keys: PlacedRows, visible: Visible) -> None:
        self.queries = np.lexsort((queries.position, queries.text))  # (n,)
        self.keys = np.lexsort((keys.position, keys.text))  # (k,)
        position, key_position = queries.position[self.queries], keys.position[self.keys]
        texts = np.unique(keys.text)  # ascending
        text, key_text = queries.text[self.queries], keys.text[self.keys]
        known = np.flatnonzero(np.isin(text, texts))
        known = known[:: -(-len(known) // _MOST_QUERIES) or 1]  # evenly spaced over texts
        self.queries, position, text = self.queries[known], position[known], text[known]
        largest = max(float(position.max(initial=0.0)), float(key_position.max(initial=0.0)))
        span = 2.0 * largest + 2.0  # places of two texts differ by more than any distance
        offset = np.searchsorted(texts, text) * span  # (n,)
        key_offset = np.searchsorted(texts, key_text) * span  # (k,)
        self._place, self._key_place = offset + position, key_offset + key_position
        self._first = np.searchsorted(key_text, text)  # (n,) the first key of the text
        if visible.is_limited:
            end = key_offset + np.minimum(visible.end(key_position), span - 0.5)
            hidden = np.searchsorted(end, self._place, side="right")  # keys that left the window
            self._first = np.maximum(self._first, hidden)
        self.weight, self.key_weight = queries.weight[self.queries], keys.weight[self.keys]
        self.before = np.concatenate([[0.0], np.cumsum(self.key_weight)])  # (k + 1,)

    @property
    def largest_distance(self) -> float:
        """The largest distance of a key that a query sees."""
        seen = np.flatnonzero(self._first < len(self._key_place))
        if len(seen) == 0:
            return 0.0
        return max(float((self._place[seen] - self._key_place[self._first[seen]]).max()), 0.0)

    def keys_from(self, distance: Array) -> Ints:
        """(…, n) the number of keys up to the last one at `distance` (…) or more before a query."""
        place = self._place - distance[:, None]
        return np.maximum(np.searchsorted(self._key_place, place, side="right"), self._first)
