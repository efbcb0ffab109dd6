"""Key pairs of one text, drawn in proportion to the product of the weights of both keys.

Arrays in, arrays out; numpy only. The weight of a key is the number of tokens that it stands for,
or the attention that it receives. Pairs are drawn independently of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs
from qk_toolkit.arrays import Array, Bools, Ints


class Texts(NamedTuple):
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
class PairPool:
    """Keys from which pairs are drawn. Every text has at least two.

    `largest` is the key of a text with the largest weight. Sums over the other keys leave it out
    before the summation, because they can be much smaller than its weight.
    """

    rows: Ints  # (n,) of the keys
    codes: Ints  # (n,) bucket codes
    weight: Array  # (n,) in units of the largest of its text
    text: Texts
    largest: Ints  # (texts,) number of the key
    first: Array  # (n,) probability of a key as first key of a pair of its text
    total: Array  # (texts,) sum over pairs, in both orders, of the products of weights
    unit: Array  # (texts,) the largest weight

    @classmethod
    def of(cls, rows: Ints, codes: Ints, weight: Array, sizes: Ints) -> PairPool:
        """From keys sorted by text; `sizes` (texts,) are the numbers of keys, 2 or more."""
        text = Texts(np.cumsum(sizes) - sizes, sizes)
        largest, unit = np.empty(0, np.int64), np.empty(0)
        if len(sizes):
            unit = np.maximum.reduceat(weight, text.starts)  # (texts,)
            weight = weight / text.of_keys(unit)
            candidates = np.flatnonzero(weight == 1.0)
            owner = np.repeat(np.arange(len(sizes)), sizes)[candidates]
            largest = candidates[np.flatnonzero(np.diff(owner, prepend=-1))]
        chances = times_others(weight, text, largest)
        total = text.sums(chances)
        first = chances / text.of_keys(total)
        return cls(rows, codes, weight, text, largest, first, total, unit)

    @property
    def pairs(self) -> Ints:
        """(texts,) numbers of possible pairs."""
        return self.text.sizes * (self.text.sizes - 1) // 2

    def texts_by_weight(self, number: int, rng: np.random.Generator) -> Ints:
        """(number,) texts, in proportion to the sums over pairs of the products of weights."""
        if not len(self.unit):
            return np.empty(0, np.int64)
        ends = np.cumsum(self.total * (self.unit / self.unit.max()) ** 2)
        found = np.searchsorted(ends, rng.random(number) * ends[-1], side="right")
        return np.asarray(np.minimum(found, len(ends) - 1))

    def draw_of(self, text: Ints, rng: np.random.Generator) -> KeyPairs:
        """A pair of each of the given texts, sorted by owner: the bucket of the later key."""
        number = len(text)
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
        """(pairs,) another key of the same text, in proportion to its weight.

        The largest key of a text comes first in the order of the keys, unless it is taken.
        """
        rest = self.weight.copy()  # (n,) without the largest keys
        rest[self.largest] = 0.0
        total = self.text.sums(rest)  # (texts,)
        rest /= self.text.of_keys(total)
        ends = np.cumsum(rest)
        top = self.largest[text]  # (pairs,)
        taken = np.where(first == top, 0.0, self.weight[first])  # of the rest
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


def times_others(values: Array, text: Texts, largest: Ints) -> Array:
    """(n,) value of a key times the sum over the other keys of its text."""
    rest = values.copy()
    rest[largest] = 0.0
    total = text.sums(rest)  # (texts,) without the largest
    others = text.of_keys(total + values[largest]) - values
    others[largest] = total
    return np.asarray(values * others)


def keys_with_partner(texts: Ints) -> tuple[Bools, Ints]:
    """Keys (n,), sorted by text, whose text has another key; numbers of keys of these texts."""
    starts = np.flatnonzero(np.diff(texts, prepend=-1))
    sizes = np.diff(starts, append=len(texts))  # (texts,)
    return np.repeat(sizes > 1, sizes), sizes[sizes > 1]


@dataclass(frozen=True)
class WeightedKeys:
    """Keys with weights, for pairs in proportion to the product of both weights."""

    index: KeyIndex
    weight: Array  # (keys,)

    def bucket_pairs(self, num_pairs_per_bucket: int, rng: np.random.Generator) -> KeyPairs:
        """Draw pairs of keys of one bucket and one text, for every bucket with such keys."""
        order, drawn = self.index.by_bucket, []
        ends = np.cumsum(np.bincount(self.index.codes))
        for rows in np.split(order, ends[:-1]):
            pool = self._pool(rows)
            drawn.append(pool.draw_of(pool.texts_by_weight(num_pairs_per_bucket, rng), rng))
        return KeyPairs.sorted_by_owner(
            *(
                np.concatenate([getattr(pairs, name) for pairs in drawn])
                for name in ("first", "second", "owner", "other")
            )
        )

    def local_pairs(
        self, num_pairs_per_bucket: int, max_rel_dist: float, rng: np.random.Generator
    ) -> KeyPairs:
        """Draw an anchor key by weight, and a neighbour in rank by weight.

        The owner is the bucket of the anchor. The neighbour is one of the keys that
        `KeyIndex.local_pairs` allows.
        """
        index = self.index
        kept, sizes = keys_with_partner(index.examples[index.by_position])
        rows = index.by_position[kept]  # (n,)
        number = num_pairs_per_bucket * len(index.buckets) if len(rows) else 0
        weight = self.weight[rows]
        before = np.concatenate([[0.0], np.cumsum(weight)])  # (n + 1,)
        anchor = key_at(before, rng.random(number) * before[-1], 0, len(rows) - 1)
        text = np.searchsorted(np.cumsum(sizes), anchor, side="right")
        starts = (np.cumsum(sizes) - sizes)[text]
        reach = np.maximum(1, np.floor(max_rel_dist * sizes[text]).astype(np.int64))
        left = np.maximum(starts, anchor - reach)
        right = np.minimum(starts + sizes[text] - 1, anchor + reach)
        near = neighbours(before, weight, anchor, left, right, rng.random(number))
        swap = rng.random(number) < 0.5
        owner, other = index.codes[rows[anchor]], index.codes[rows[near]]
        by_owner = np.argsort(owner, kind="stable")
        return KeyPairs.sorted_by_owner(
            first=rows[np.where(swap, near, anchor)][by_owner],
            second=rows[np.where(swap, anchor, near)][by_owner],
            owner=owner[by_owner],
            other=other[by_owner],
        )

    def context_pairs(
        self, eligible: Bools, num_pairs_per_bucket: int, rng: np.random.Generator
    ) -> KeyPairs:
        """Draw pairs of keys of one text in the eligible key buckets."""
        rows = self.index.by_position[eligible[self.index.codes[self.index.by_position]]]
        pool = self._pool(rows)
        number = num_pairs_per_bucket * int(eligible.sum())
        return pool.draw_of(pool.texts_by_weight(number, rng), rng)

    def _pool(self, rows: Ints) -> PairPool:
        """The pool of some keys, which are sorted by text."""
        kept, sizes = keys_with_partner(self.index.examples[rows])
        rows = rows[kept]
        return PairPool.of(rows, self.index.codes[rows], self.weight[rows], sizes)


def neighbours(
    before: Array, weight: Array, anchor: Ints, left: Ints, right: Ints, u: Array
) -> Ints:
    """(pairs,) another key from `left` to `right`, by weight, from numbers `u` in [0, 1).

    `before` (n + 1,) are the cumulative sums of `weight` (n,), from 0 on.
    """
    others = before[right + 1] - before[left] - weight[anchor]  # (pairs,)
    place = before[left] + u * np.maximum(others, 0.0)
    place = place + np.where(place >= before[anchor], weight[anchor], 0.0)
    near = key_at(before, place, left, right)
    return np.where(near == anchor, np.where(anchor < right, anchor + 1, anchor - 1), near)


def key_at(before: Array, place: Array, left: Ints | int, right: Ints | int) -> Ints:
    """(pairs,) the key at a place of the cumulative sum, from `left` to `right`."""
    return np.clip(np.searchsorted(before, place, side="right") - 1, left, right)
