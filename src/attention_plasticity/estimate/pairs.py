"""The one sampler of key pairs: sorted keys, a range of partners, cumulative weights.

Arrays in, arrays out; numpy only. Keys are in an order in which the partners of a key are a range
before it. The probability of a pair is in proportion to the product of the weights of both keys
and, if queries see keys for a limited time, to the weight of the queries that see both. Sums over
pairs follow from cumulative sums, so no pair is listed.

Pairs are drawn at even steps of the cumulative probability, each at a random place of its step. So
every text has its expected number of pairs up to two. If keys have equal weights and as many pairs
are drawn as there are, each is drawn once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qk_toolkit.arrays import Array, Bools, Ints


class Pairs(NamedTuple):
    """Pairs of keys; both are numbers in the order of the keys."""

    later: Ints  # (pairs,)
    earlier: Ints  # (pairs,)


class Seen(NamedTuple):
    """How long keys are seen, in cumulative weights of the queries in the order of positions."""

    start: Array  # (n,) weight of the queries before a key
    end: Array  # (n,) weight of the queries before the first one that no longer sees a key


class PairSampler:
    """Pairs of a key and one of the keys from `low` on that come before it."""

    def __init__(self, weight: Array, low: Ints, seen: Seen | None = None) -> None:
        """`weight` (n,) are those of the keys, `low` (n,) the first partner of each."""
        self.weight, self.low = weight, low
        self._before = _cumulative(weight)  # (n + 1,)
        self._seen = seen
        self._until = None if seen is None else _cumulative(weight * seen.end)  # (n + 1,)
        number = np.arange(len(weight))
        partners = np.where(low < number, self._mass(number, number), 0.0)
        self.chance = weight * np.maximum(partners, 0.0)  # (n,) of all pairs with this later key

    def draw(self, factor: Array | Bools, number: Ints, rng: np.random.Generator) -> list[Pairs]:
        """Draw `number` (b,) pairs for every row of `factor` (b, n), or all if they are fewer.

        The probability of a pair is multiplied by the factor of its later key. No pair is drawn if
        none has a probability above 0.
        """
        chance = self.chance * factor  # (b, n)
        ends = np.zeros((len(chance), 1 + chance.shape[1]))
        np.cumsum(chance, axis=1, out=ends[:, 1:])
        partners = np.arange(len(self.low)) - self.low  # (n,)
        number = np.minimum(number, np.where(chance > 0, partners, 0).sum(axis=1))
        bounds = np.cumsum(number)[:-1]
        row = np.repeat(np.arange(len(number)), number)  # (pairs,)
        step = np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)
        place = (step + rng.random(len(row))) / number[row] * ends[row, -1]
        later = np.zeros(0, np.int64)
        if len(row):
            last = chance.shape[1] - 1 - np.argmax(chance[:, ::-1] > 0, axis=1)  # (b,)
            found = zip(ends, np.split(place, bounds), strict=True)
            later = np.concatenate([np.searchsorted(own, at, side="right") for own, at in found])
            later = np.minimum(later - 1, last[row])
        share = np.clip((place - ends[row, later]) / chance[row, later], 0.0, 1.0)
        earlier = self._partner(later, share)
        parts = zip(np.split(later, bounds), np.split(earlier, bounds), strict=True)
        return [Pairs(*own) for own in parts]

    def _partner(self, later: Ints, share: Array) -> Ints:
        """(pairs,) the partner at a share in [0, 1] of the cumulative weight of all partners."""
        low = self.low[later]
        value = share * self._mass(later, later)
        if self._seen is None:
            found = np.searchsorted(self._before, self._before[low] + value, side="right") - 1
            return np.clip(found, low, later - 1)
        left, right = low.copy(), later.copy()  # mass up to left ≤ value, mass up to right > value
        for _ in range(int((later - low).max(initial=1)).bit_length()):
            middle = (left + right + 1) // 2
            above = self._mass(middle, later) > value
            right = np.where(above, middle - 1, right)
            left = np.where(above, left, middle)
        return np.clip(left, low, later - 1)

    def _mass(self, end: Ints, later: Ints) -> Array:
        """The weight of the partners of `later` up to `end`."""
        low = self.low[later]
        weight = self._before[end] - self._before[low]
        if self._seen is None or self._until is None:
            return np.asarray(weight)
        return np.asarray(self._until[end] - self._until[low] - self._seen.start[later] * weight)


def run_starts(*columns: Ints) -> Ints:
    """(n,) the first of the neighbouring rows that are equal in all columns."""
    changed = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        changed |= np.diff(column, prepend=column[:1] - 1) != 0
    starts = np.flatnonzero(changed)
    return np.repeat(starts, np.diff(starts, append=len(changed)))


def dealt(pairs: int, numbers: Ints, rng: np.random.Generator) -> list[Ints]:
    """The numbers of the pairs of a cell that each bin uses, `numbers` (bins,) for every bin.

    The pairs of a cell are in the order of texts. Every bin gets pairs from all parts of the order.
    If there are enough pairs, no pair is used twice; else bins share pairs.
    """
    if pairs < int(numbers.sum()):
        return [_evenly(pairs, number, rng) for number in numbers.tolist()]
    bins = np.repeat(np.arange(len(numbers)), numbers)
    step = np.arange(len(bins)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    order = np.argsort((step + rng.random(len(bins))) / numbers[bins], kind="stable")
    parts = np.split(np.argsort(bins[order], kind="stable"), np.cumsum(numbers)[:-1])
    return parts[: len(numbers)]  # none without a bin


def _evenly(pairs: int, number: int, rng: np.random.Generator) -> Ints:
    """`number` of `pairs` at even steps from a random place on, or all of them."""
    if number >= pairs:
        return np.arange(pairs if number else 0)
    return np.asarray(((np.arange(number) + rng.random()) * pairs / number).astype(np.int64))


def _cumulative(values: Array) -> Array:
    """(n + 1,) sums of the values before each."""
    return np.concatenate([[0.0], np.cumsum(values)])
