"""Key pairs in proportion to the attention that their keys receive.

Arrays in, arrays out; numpy only. Both keys of a pair belong to one text. The probability of a text
is that of `context` pairs: proportional to its number of pairs. Within a text, the probability of a
pair is proportional to the product of the attention of its two keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.attention_received import Received
from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LEAST = 2.0**-149  # attention; smaller values are zero in float32


class AttendedKeys:
    """The keys of a head that receive attention, sorted by text."""

    def __init__(self, index: KeyIndex, received: Received) -> None:
        order = index.by_position
        self._rows = order[received.attention[order] >= _LEAST]  # (n,)
        self._codes = index.codes[self._rows]
        self._texts = index.examples[self._rows]
        self._attention = received.attention[self._rows]
        self._queries = received.queries[self._rows]

    def pool(self, eligible: Bools) -> AttendedPool:
        """The possible pairs of keys in the eligible key buckets."""
        kept = np.flatnonzero(eligible[self._codes])
        texts = self._texts[kept]
        starts = np.flatnonzero(np.diff(texts, prepend=-1))
        sizes = np.diff(starts, append=len(kept))  # (texts,)
        kept = kept[np.repeat(sizes > 1, sizes)]
        return AttendedPool.of(
            self._rows[kept],
            self._codes[kept],
            self._attention[kept],
            self._queries[kept],
            sizes[sizes > 1],
        )


class _Text(NamedTuple):
    """The texts of a pool, as ranges of its keys."""

    starts: Ints  # (texts,)
    sizes: Ints  # (texts,)

    def sums(self, values: Array) -> Array:
        """(texts,) sums over the keys of each text."""
        return np.asarray(np.add.reduceat(values, self.starts)) if len(self.starts) else np.empty(0)

    def of_keys(self, values: Array) -> Array:
        """(n,) the value of the text of each key."""
        return np.repeat(values, self.sizes)


@dataclass(frozen=True)
class AttendedPool:
    """Keys from which the pairs of one query bucket are drawn. Every text has at least two.

    `largest` is the key of a text with the most attention. Sums over the other keys leave it out
    before the summation, because they can be much smaller than its attention.
    """

    rows: Ints  # (n,) of the keys
    codes: Ints  # (n,) bucket codes
    queries: Ints  # (n,) later queries
    attention: Array  # (n,) in units of the largest of its text
    text: _Text
    largest: Ints  # (texts,) number of the key
    first: Array  # (n,) probability of a key as first key of a pair of its text
    total: Array  # (texts,) sum over pairs, in both orders, of the products of attention

    @classmethod
    def of(
        cls, rows: Ints, codes: Ints, attention: Array, queries: Ints, sizes: Ints
    ) -> AttendedPool:
        """From keys sorted by text; `sizes` (texts,) are the numbers of keys, 2 or more."""
        text = _Text(np.cumsum(sizes) - sizes, sizes)
        largest = np.empty(0, np.int64)
        if len(sizes):
            top = np.maximum.reduceat(attention, text.starts)  # (texts,)
            attention = attention / text.of_keys(top)
            candidates = np.flatnonzero(attention == 1.0)
            owner = np.repeat(np.arange(len(sizes)), sizes)[candidates]
            largest = candidates[np.flatnonzero(np.diff(owner, prepend=-1))]
        chances = _times_others(attention, text, largest)
        total = text.sums(chances)
        first = chances / text.of_keys(total)
        return cls(rows, codes, queries, attention, text, largest, first, total)

    @property
    def pairs(self) -> Ints:
        """(texts,) numbers of possible pairs."""
        return self.text.sizes * (self.text.sizes - 1) // 2

    @property
    def effective_pairs(self) -> float:
        """1 / Σ P² over all possible pairs; NaN if there is none."""
        if len(self.rows) == 0:
            return float("nan")
        squares = self.attention**2
        concentration = self.text.sums(_times_others(squares, self.text, self.largest))
        share = self.pairs / self.pairs.sum()  # (texts,)
        return float(1.0 / (share**2 @ (2.0 * concentration / self.total**2)))

    @property
    def later_queries(self) -> float:
        """Mean number of later queries of a drawn key; NaN if there is no pair."""
        if len(self.rows) == 0:
            return float("nan")
        share = self.pairs / self.pairs.sum()  # (texts,)
        return float(share @ self.text.sums(self.first * self.queries))

    def draw(self, number: int, rng: np.random.Generator) -> KeyPairs:
        """Draw `number` pairs independently; none if there is no possible pair."""
        ends = np.cumsum(self.pairs)
        number = number if len(ends) else 0
        text = np.searchsorted(ends, rng.integers(0, max(1, ends[-1:].sum()), number), side="right")
        first = self._search(np.cumsum(self.first), text, rng.random(number))
        second = self._second(first, text, rng.random(number))
        low, high = np.minimum(first, second), np.maximum(first, second)
        swap = rng.random(number) < 0.5
        owner = np.maximum(self.codes[low], self.codes[high])
        other = np.minimum(self.codes[low], self.codes[high])
        by_owner = np.argsort(owner, kind="stable")
        return KeyPairs.sorted_by_owner(
            first=self.rows[np.where(swap, high, low)][by_owner],
            second=self.rows[np.where(swap, low, high)][by_owner],
            owner=owner[by_owner],
            other=other[by_owner],
        )

    def _second(self, first: Ints, text: Ints, u: Array) -> Ints:
        """(pairs,) another key of the same text, in proportion to its attention.

        The largest key of a text comes first in the order of the keys, unless it is taken.
        """
        rest = self.attention.copy()  # (n,) without the largest keys
        rest[self.largest] = 0.0
        total = self.text.sums(rest)  # (texts,)
        rest /= self.text.of_keys(total)
        ends = np.cumsum(rest)
        top = self.largest[text]  # (pairs,)
        taken = np.where(first == top, 0.0, self.attention[first])  # of the rest
        remaining = np.maximum(total[text] - taken, 0.0)
        value = np.where(first == top, u * remaining, u * (1.0 + remaining) - 1.0)
        place = np.maximum(value, 0.0) / total[text]  # (pairs,) in [0, 1]
        share = rest[first]
        before = ends[first] - share - text  # the texts before sum to 1 each
        place = place + np.where(place >= before, share, 0.0)
        found = np.where(value < 0, top, self._search(ends, text, place))
        begin, size = self.text.starts[text], self.text.sizes[text]
        return np.where(found == first, begin + (found + 1 - begin) % size, found)

    def _search(self, ends: Array, text: Ints, place: Array) -> Ints:
        """(pairs,) the key of a text at a place in [0, 1] of its cumulative sum."""
        found = np.searchsorted(ends, text + place, side="right")
        begin = self.text.starts[text]
        return np.clip(found, begin, begin + self.text.sizes[text] - 1)


def _times_others(values: Array, text: _Text, largest: Ints) -> Array:
    """(n,) value of a key times the sum over the other keys of its text."""
    rest = values.copy()
    rest[largest] = 0.0
    total = text.sums(rest)  # (texts,) without the largest
    others = text.of_keys(total + values[largest]) - values
    others[largest] = total
    return np.asarray(values * others)


@dataclass(frozen=True)
class AttendedDraw:
    """Draws the pairs of one query bucket after the other, and records the sizes of the pools."""

    keys: AttendedKeys
    num_pairs: int
    per_key_bucket: bool  # `num_pairs` for every eligible key bucket, or for all of them
    rng: np.random.Generator
    effective_pairs: list[float] = field(default_factory=list)
    later_queries: list[float] = field(default_factory=list)

    def draw(self, eligible: Bools) -> KeyPairs:
        """The pairs of the next query bucket, with these eligible key buckets."""
        pool = self.keys.pool(eligible)
        self.effective_pairs.append(pool.effective_pairs)
        self.later_queries.append(pool.later_queries)
        factor = int(eligible.sum()) if self.per_key_bucket else 1
        return pool.draw(self.num_pairs * factor, self.rng)
