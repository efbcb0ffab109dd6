"""Pairs of any two keys of one text that a later query can see.

Arrays in, arrays out; numpy only. The probability of a text is proportional to its number of
tokens. Within a text, the probability of a pair is proportional to the product of the weights of
its keys. If there are few possible pairs, all of them are used, with weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_plasticity.numeric.windows import Window
from qk_toolkit.arrays import Array, Ints

_ROUNDS = 64  # of drawing two different keys


class TextPairs(NamedTuple):
    """Pairs of keys, sorted by text."""

    first: Ints  # (p,) rows of the keys
    second: Ints  # (p,)
    text: Ints  # (p,)
    weight: Array  # (p,) in means over pairs

    def __len__(self) -> int:
        return len(self.first)


class PlacedPairs(NamedTuple):
    """Pairs of keys with the position of a token of their text that comes after both."""

    first: Ints  # (p,) rows of the keys
    second: Ints  # (p,)
    text: Ints  # (p,)
    position: Array  # (p,)


@dataclass(frozen=True)
class TextKeys:
    """Keys with a weight above 0, sorted by text and position, and the keys that they pair with.

    Key i pairs with the keys from `low[i]` to `high[i] − 1`, without itself.
    """

    rows: Ints  # (n,)
    text: Ints  # (n,) number of the text, from 0
    tokens: Array  # (n,) tokens that a key stands for
    weight: Array  # (n,) in units of the largest one of its text
    position: Array  # (n,)
    low: Ints  # (n,)
    high: Ints  # (n,)
    before: Ints  # (n,) number of the first key at the position of a key

    @classmethod
    def of(
        cls, text: Ints, position: Array, weight: Array, tokens: Array, window: Window | None
    ) -> TextKeys:
        """From the keys of a head: their texts, positions, weights and numbers of tokens (n,)."""
        rows = np.lexsort((position, text))
        rows = rows[weight[rows] > 0]
        _, number = np.unique(text[rows], return_inverse=True)
        at, own = position[rows], weight[rows]
        largest = np.zeros(int(number.max(initial=-1)) + 1)
        np.maximum.at(largest, number, own)
        reach = 0.0 if window is None else float(window.size)
        span = np.floor(at.max(initial=0.0)) + reach + 1.0
        place = at + number * span  # (n,) ascending
        end = (number + 1) * span if window is None else window.end_position(at) + number * span
        low = np.searchsorted(end, place, side="right")
        high = np.searchsorted(place, end, side="left")
        before = np.searchsorted(place, place, side="left")
        own = own / largest[number]
        return cls(rows, number, tokens[rows], own, at, low, high, before)

    def draw(self, most: int, rng: np.random.Generator) -> TextPairs:
        """At most `most` pairs: all of them if there are not more, else drawn."""
        later = self.high - np.arange(len(self.rows)) - 1  # (n,) later partners of a key
        texts = int(self.text.max(initial=-1)) + 1
        share = np.bincount(self.text, self.tokens, texts)  # (texts,)
        share[np.bincount(self.text, later, texts) == 0] = 0.0
        if not share.any():
            none = np.empty(0, np.int64)
            return TextPairs(none, none, none, np.empty(0))
        if later.sum() <= most:
            return self._all(later, share / share.sum())
        return self._drawn(share / share.sum(), most, rng)

    def _all(self, later: Ints, share: Array) -> TextPairs:
        """Every pair, with the product of its weights."""
        first = np.repeat(np.arange(len(self.rows)), later)
        begin = np.cumsum(later) - later
        second = np.arange(len(first)) - begin[first] + first + 1
        text = self.text[first]
        product = self.weight[first] * self.weight[second]  # (p,)
        total = np.bincount(text, product, len(share))
        weight = product * share[text] / total[text] * len(first)  # 1 on average
        return TextPairs(self.rows[first], self.rows[second], text, weight)

    def _drawn(self, share: Array, number: int, rng: np.random.Generator) -> TextPairs:
        """Texts are drawn in strata, so that each has its expected number of pairs up to one."""
        sums = self._sums
        n = np.arange(len(self.rows))
        others = (sums[n] - sums[self.low]) + (sums[self.high] - sums[n + 1])
        others[self.high - self.low < 2] = 0.0
        chance = self.weight * np.maximum(others, 0.0)  # (n,)
        total = np.bincount(self.text, chance, len(share))
        share = np.where(total > 0, share, 0.0)
        place = (np.arange(number) + rng.random(number)) / number
        text = np.searchsorted(np.cumsum(share) / share.sum(), place, side="right")
        text = np.minimum(text, np.flatnonzero(share)[-1])
        chance /= np.where(total > 0, total, 1.0)[self.text]
        ends = np.cumsum(chance)
        before = np.r_[0.0, ends][np.searchsorted(self.text, text)]
        possible = np.flatnonzero(chance > 0)
        found = np.searchsorted(ends[possible], before + rng.random(number), side="right")
        begin = np.searchsorted(self.text[possible], text)
        last = np.searchsorted(self.text[possible], text, side="right") - 1
        first = possible[np.clip(found, begin, last)]
        second = self._partner(first, rng.random(number))
        swap = rng.random(number) < 0.5
        one, other = np.where(swap, second, first), np.where(swap, first, second)
        return TextPairs(self.rows[one], self.rows[other], text, np.ones(number))

    def _partner(self, first: Ints, u: Array) -> Ints:
        """(p,) another key that `first` (p,) pairs with, in proportion to its weight."""
        sums, low, high = self._sums, self.low[first], self.high[first]
        left, right = sums[first] - sums[low], sums[high] - sums[first + 1]
        value = u * (left + right)
        is_left = (low < first) & ((value < left) | (first + 1 >= high))
        target = np.where(is_left, sums[low] + value, sums[first + 1] + (value - left))
        found = np.searchsorted(sums, target, side="right") - 1
        on_left = np.clip(found, low, np.maximum(first - 1, low))
        on_right = np.clip(found, np.minimum(first + 1, high - 1), high - 1)
        return np.where(is_left, on_left, on_right)

    def draw_placed(self, number: int, rng: np.random.Generator) -> PlacedPairs:
        """Tokens in proportion to what keys stand for, each with a pair of keys that it sees.

        A token without two earlier keys that it sees has no pair.
        """
        if not len(self.rows):
            none = np.empty(0, np.int64)
            return PlacedPairs(none, none, none, np.empty(0))
        ends = np.cumsum(self.tokens)
        place = (np.arange(number) + rng.random(number)) / number * ends[-1]
        token = np.minimum(np.searchsorted(ends, place, side="right"), len(ends) - 1)
        token = token[self.before[token] - self.low[token] >= 2]
        low, high = self.low[token], self.before[token]  # (p,)
        pair = np.zeros((2, len(token)), np.int64)
        open_ = np.arange(len(token))
        for _ in range(_ROUNDS):
            u = rng.random((2, len(open_)))
            pair[:, open_] = self._any(low[open_], high[open_], u)
            open_ = open_[pair[0, open_] == pair[1, open_]]
        known = pair[0] != pair[1]
        rows = self.rows[pair[:, known]]  # (2, p)
        token = token[known]
        return PlacedPairs(rows[0], rows[1], self.text[token], self.position[token])

    def _any(self, low: Ints, high: Ints, u: Array) -> Ints:
        """(2, p) keys from `low` (p,) to `high` − 1, in proportion to their weights."""
        sums = self._sums
        target = sums[low] + u * (sums[high] - sums[low])
        return np.clip(np.searchsorted(sums, target, side="right") - 1, low, high - 1)

    @property
    def _sums(self) -> Array:
        """(n + 1,) sums of the weights of the keys before each."""
        return np.concatenate([[0.0], np.cumsum(self.weight)])
