"""Key pairs that queries see through a window, each with a query that sees both keys.

Arrays in, arrays out; numpy only. For a bin of queries, the probability of a query and a pair is in
proportion to the product of their three weights, if the query sees both keys. So a pair is drawn in
proportion to V·u₁·u₂, where V is the weight of the queries that see it, and the query in proportion
to its weight among these.

The keys that a query sees are a range of the keys of a text in the order of positions. The sum over
the pairs of a range follows from cumulative sums, so no pair is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from attention_plasticity.numeric.blocks import row_blocks
from attention_plasticity.numeric.key_pairs import KeyPairs, PairSampling
from attention_plasticity.numeric.pair_pool import (
    WeightedKeys,
    key_at,
    keys_with_partner,
    neighbours,
)
from attention_plasticity.numeric.windows import Window
from qk_toolkit.arrays import Array, Bools, Ints

FEWEST_PAIRS = 64  # that the queries of a bin must see
FEWEST_TEXTS = 4  # of these pairs, and of the queries of the bin
_MOST_RANGES = 1 << 20  # ranges of keys in memory at a time


@dataclass(frozen=True)
class SeenPairs(KeyPairs):
    """Key pairs, each with a query that sees both keys. The owner is the bin of the later key."""

    query: Ints  # (pairs,) row of the query


class VisibleKeys:
    """Keys in the order of texts and positions, with sums of their weights.

    A key is the later one of pairs with the keys before it, down to a lower limit: the first key of
    its bin (`bucket`), of its text (`context`), or the key `reach` ranks before it (`local`).
    """

    def __init__(
        self,
        keys: WeightedKeys,
        position: Array,
        window: Window,
        sampling: PairSampling,
        max_rel_dist: float,
    ) -> None:
        """`position` (keys,) are the positions of the keys."""
        index = keys.index
        order = index.by_position[keys.weight[index.by_position] > 0]
        kept, sizes = keys_with_partner(index.examples[order])
        self.rows = order[kept]  # (n,)
        self.codes, self.bins = index.codes[self.rows], len(index.buckets)
        self.text, self.texts = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
        self._examples = index.examples[self.rows]  # (n,)
        self.position = position[self.rows]
        self.end = window.end_position(self.position)  # (n,) queries from here on do not see it
        self.sampling = sampling
        self.reach = np.maximum(1, np.floor(max_rel_dist * sizes).astype(np.int64))  # (texts,)
        weight = keys.weight[self.rows]
        self._sum_weights(weight / weight.max(initial=0.0) if len(weight) else weight)
        self._limits(np.cumsum(sizes) - sizes)

    def _sum_weights(self, weight: Array) -> None:
        self.weight = weight  # (n,) in units of the largest
        self.before = np.concatenate([[0.0], np.cumsum(weight)])  # (n + 1,)
        self._squares = np.concatenate([[0.0], np.cumsum(weight**2)])

    def _limits(self, text_starts: Ints) -> None:
        """`first`: the first partner of a key; `_cut`: where the part of a key begins and ends."""
        n = len(self.rows)
        number = np.arange(n)
        start = text_starts[self.text]  # (n,)
        self._cut_end = np.full(n + 1, n)
        self._whole = np.zeros(n + 1)
        if self.sampling not in ("bucket", "local", "context"):
            raise ValueError(f"expected bucket, local or context, got {self.sampling!r}")
        if self.sampling == "local":
            start = np.maximum(start, number - self.reach[self.text])
        if self.sampling == "bucket":
            cuts = np.flatnonzero(
                (np.diff(self.text, prepend=-1) != 0) | (np.diff(self.codes, prepend=-1) != 0)
            )
            sizes = np.diff(cuts, append=n)
            start = np.repeat(cuts, sizes)
            self._cut_end[:n] = np.repeat(cuts + sizes, sizes)
            pairs = self.weight * (self.before[:-1] - self.before[start])  # (n,) as later key
            self._whole = np.concatenate([[0.0], np.cumsum(pairs)])
        self.first = start

    @property
    def text_codes(self) -> Ints:
        """(texts,) the number of each text among all texts of the keys."""
        return self._examples[np.flatnonzero(np.diff(self.text, prepend=-1))]

    @cached_property
    def span(self) -> float:
        """A number of positions that no text reaches, for sums of text and position."""
        return float(max(self.position.max(initial=0.0), self.end.max(initial=0.0))) + 1.0

    def ranges(self, text: Ints, position: Array) -> tuple[Ints, Ints]:
        """First key that a query sees at `position`, and the first one after it, in `text`."""
        place = text * self.span + np.minimum(position, self.span - 0.5)
        ends, positions = self._places
        begin = np.searchsorted(ends, place, side="right")
        return begin, np.searchsorted(positions, place, side="right")

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """(n,) each: ends and positions of the keys, ascending over all texts."""
        offset = self.text * self.span
        return offset + self.end, offset + self.position

    def mass(self, begin: Ints, end: Ints) -> Array:
        """Sum over the pairs of ranges of keys of the products of weights.

        For `local` it is the sum of the weights of the keys, if they are two or more.
        """
        if self.sampling == "local":
            return np.where(end - begin > 1, self.before[end] - self.before[begin], 0.0)
        cut = self._cut_end[begin]
        middle = np.minimum(end, cut)
        weight = self.before[middle] - self.before[begin]
        squares = self._squares[middle] - self._squares[begin]
        part = np.where(middle - begin > 1, np.maximum(weight**2 - squares, 0.0) / 2.0, 0.0)
        return np.asarray(
            part + (self._whole[np.maximum(end, cut)] - self._whole[cut]) * (end > cut)
        )

    def pairs(self, begin: Ints, end: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Two different keys of each range; the ranges have pairs."""
        if self.sampling == "local":
            total = self.before[end] - self.before[begin]
            place = self.before[begin] + rng.random(len(begin)) * total
            anchor = key_at(self.before, place, begin, end - 1)
            reach = self.reach[self.text[anchor]]
            left, right = np.maximum(begin, anchor - reach), np.minimum(end - 1, anchor + reach)
            u = rng.random(len(begin))
            return anchor, neighbours(self.before, self.weight, anchor, left, right, u)
        later = self._later_keys(begin, end, rng.random(len(begin)))
        left = np.maximum(begin, self.first[later])
        place = rng.random(len(begin)) * (self.before[later] - self.before[left])
        return later, key_at(self.before, self.before[left] + place, left, later - 1)

    def _later_keys(self, begin: Ints, end: Ints, u: Array) -> Ints:
        """(ranges,) the later key of a pair, by a binary search of the sum up to a key."""
        total = self.mass(begin, end)
        value = np.minimum(u * total, np.nextafter(total, 0.0))
        low, high = begin.copy(), end.copy()  # mass up to low ≤ value < mass up to high
        for _ in range(int((end - begin).max(initial=1)).bit_length()):
            middle = (low + high) // 2
            above = self.mass(begin, middle) > value
            high = np.where(above, middle, high)
            low = np.where(above, low, middle)
        return np.asarray(high - 1)


class BinQueries(NamedTuple):
    """Queries of a bin in the order of positions."""

    rows: Ints  # (n,)
    weight: Array  # (n,)
    position: Array  # (m,) different positions
    starts: Ints  # (m + 1,) the first query at each position

    @classmethod
    def of(cls, rows: Ints, position: Array, weight: Array) -> BinQueries:
        """From the rows of the queries, their positions and weights, each (n,)."""
        order = np.argsort(position, kind="stable")
        positions, starts = np.unique(position[order], return_index=True)
        return cls(rows[order], weight[order], positions, np.append(starts, len(rows)))

    @property
    def totals(self) -> Array:
        """(m,) the weight of the queries at each position."""
        return np.asarray(np.add.reduceat(self.weight, self.starts[:-1]))

    def draw(self, place: Ints, rng: np.random.Generator) -> Ints:
        """(pairs,) rows of queries at the positions with these numbers, by weight."""
        before = np.concatenate([[0.0], np.cumsum(self.weight)])  # (n + 1,)
        begin, end = self.starts[place], self.starts[place + 1]
        value = before[begin] + rng.random(len(place)) * (before[end] - before[begin])
        return self.rows[key_at(before, value, begin, end - 1)]


class Visible(NamedTuple):
    """What the queries of a bin see."""

    key_bins: Bools  # (key bins,) with a key that a query sees
    pairs: int  # different pairs that a query sees
    texts: int  # of these pairs

    @classmethod
    def of(cls, keys: VisibleKeys, queries: BinQueries) -> Visible:
        """A key is seen if the next query sees it. A pair is seen if this query sees both keys."""
        n = len(keys.rows)
        place = np.searchsorted(queries.position, keys.position)  # (n,) of the next query
        following = np.append(queries.position, np.inf)[place]
        seen = np.flatnonzero(following < keys.end)
        begin, _ = keys.ranges(keys.text[seen], following[seen])
        partners = np.maximum(0, seen - np.maximum(begin, keys.first[seen]))
        key_bins = np.bincount(keys.codes[seen], minlength=keys.bins) > 0
        texts = len(np.unique(keys.text[seen[partners > 0]])) if n else 0
        return cls(key_bins, int(partners.sum()), texts)


@dataclass
class VisibleDraw:
    """Draws the pairs of one bin of queries after the other."""

    keys: VisibleKeys
    queries: Sequence[BinQueries]  # of every bin, in the order of the draws
    num_pairs_per_bin: int
    rng: np.random.Generator
    text_weight: Array | None = None  # (bins, texts); None: texts by the sums over their pairs
    done: int = 0  # bins

    def draw(self, eligible: Bools) -> SeenPairs:
        """The pairs of the next bin; `eligible` (key bins,) are the key bins that it sees."""
        queries = self.queries[self.done]
        of_texts = None if self.text_weight is None else self.text_weight[self.done]
        self.done += 1
        return self._pairs(queries, of_texts, self.num_pairs_per_bin * int(eligible.sum()))

    def _pairs(self, queries: BinQueries, of_texts: Array | None, number: int) -> SeenPairs:
        keys, rng = self.keys, self.rng
        begin, end, place = self._ranges(queries, of_texts, number)
        one, two = keys.pairs(begin, end, rng)
        query = queries.draw(place, rng)
        swap = rng.random(len(one)) < 0.5
        owner = np.maximum(keys.codes[one], keys.codes[two])
        other = np.minimum(keys.codes[one], keys.codes[two])
        by_owner = np.argsort(owner, kind="stable")
        pairs = KeyPairs.sorted_by_owner(
            first=keys.rows[np.where(swap, two, one)][by_owner],
            second=keys.rows[np.where(swap, one, two)][by_owner],
            owner=owner[by_owner],
            other=other[by_owner],
        )
        return SeenPairs(**vars(pairs), query=query[by_owner])

    def _ranges(
        self, queries: BinQueries, of_texts: Array | None, number: int
    ) -> tuple[Ints, Ints, Ints]:
        """(pairs,) each: the range of keys that a pair is drawn from, and the position number.

        Positions and texts are drawn together, in proportion to the weight of the queries times the
        sum over pairs. With `of_texts` (texts,), these are the weights of the texts.
        """
        keys, totals = self.keys, queries.totals
        blocks = list(row_blocks(len(totals), keys.texts, _MOST_RANGES))

        @lru_cache(maxsize=1)
        def block_of(at: int) -> tuple[Ints, Ints, Array]:
            position = queries.position[blocks[at]]  # (b,)
            text, place = np.divmod(np.arange(keys.texts * len(position)), len(position))
            begin, end = keys.ranges(text, position[place])
            masses = keys.mass(begin, np.maximum(begin, end)) * totals[blocks[at]][place]
            return begin, end, masses

        factor = np.ones(keys.texts)
        by_text = [
            block_of(at)[2].reshape(keys.texts, block.stop - block.start).sum(axis=1)
            for at, block in enumerate(blocks)
        ]  # (texts,) each
        if of_texts is not None:
            total = np.sum(by_text, axis=0)  # (texts,)
            factor = np.where(total > 0, of_texts / np.where(total > 0, total, 1.0), 0.0)
        drawn = [np.zeros((3, 0), np.int64)]
        sums = np.array([factor @ masses for masses in by_text])
        numbers = np.zeros(len(blocks), np.int64)
        if sums.sum() > 0:
            numbers = self.rng.multinomial(number, sums / sums.sum())
        for at in np.flatnonzero(numbers).tolist():
            begin, end, masses = block_of(at)
            size = blocks[at].stop - blocks[at].start
            ends = np.cumsum(masses if of_texts is None else masses * np.repeat(factor, size))
            value = np.minimum(self.rng.random(numbers[at]) * ends[-1], np.nextafter(ends[-1], 0.0))
            chosen = np.searchsorted(ends, value, side="right")
            drawn.append(np.stack([begin[chosen], end[chosen], blocks[at].start + chosen % size]))
        begin, end, place = np.concatenate(drawn, axis=1)
        return begin, end, place
