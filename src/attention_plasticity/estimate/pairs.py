"""The one sampler of key pairs: sorted keys, ranges of later keys, cumulative weights.

Arrays in, arrays out; numpy only. Keys are in an order in which the partners of a key are a range
before it. The probability of a pair is in proportion to the product of the weights of both keys
and, if queries see keys for a limited time, to the weight of the queries that see both. Sums over
pairs follow from cumulative sums, so no pair is listed. What is drawn together is a row: some
ranges of later keys, such as the keys of every text in a bin.

Pairs are drawn at even steps of the cumulative probability, each at a random place of its step. So
every text has its expected number of pairs up to two. If keys have equal weights and as many pairs
are drawn as there are, each is drawn once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qk_toolkit.arrays import Array, Ints


class Pairs(NamedTuple):
    """Pairs of keys; keys are numbers in their order."""

    row: Ints  # (pairs,) ascending
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
        self._chances = _cumulative(self.chance)  # (n + 1,)
        possible = _cumulative((weight > 0).astype(np.float64))  # (n + 1,)
        partners = np.where(self.chance > 0, possible[number] - possible[low], 0.0)
        self._pairs = _cumulative(partners)  # (n + 1,)

    def number(self, begin: Ints, end: Ints) -> Array:
        """Number of the pairs whose later key is in a range."""
        return np.asarray(self._pairs[end] - self._pairs[begin])

    def draw(
        self,
        begin: Ints,
        end: Ints,
        number: Ints,
        rng: np.random.Generator,
        weight: Array | None = None,
    ) -> Pairs:
        """Draw `number` (rows,) pairs for every row, or as many as there are.

        The later keys of a row are in the ranges from `begin` to `end` (rows, ranges). Ranges have
        the probabilities of their `weight` (rows, ranges); without it, of all their pairs.
        """
        chance = self._chances[end] - self._chances[begin]  # (rows, ranges)
        mass = chance if weight is None else np.where(chance > 0, weight, 0.0)
        possible = np.where(mass > 0, self.number(begin, end), 0.0).sum(axis=1)
        number = np.minimum(number, possible.astype(np.int64))
        row, place, share = drawn_ranges(mass, number, rng)  # (pairs,) each
        if not len(row):
            return Pairs(row, row, row)
        used = row, place
        low, high = self._chances[begin[used]], self._chances[end[used]]
        value = np.minimum(low + share * (high - low), np.nextafter(high, -np.inf))
        later = np.searchsorted(self._chances, value, side="right") - 1
        later = np.clip(later, begin[used], end[used] - 1)
        share = np.clip((value - self._chances[later]) / self.chance[later], 0.0, 1.0)
        return Pairs(row, later, self._partner(later, share))

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


def drawn_ranges(mass: Array, number: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, Array]:
    """Rows, ranges, and shares of the ranges: `number` (rows,) of them for every row.

    They are at even steps of the cumulative `mass` (rows, ranges), each at a random place of its
    step. Nothing is drawn of a row without mass.
    """
    total = mass.sum(axis=1, keepdims=True)
    mass = mass / np.where(total > 0, total, 1.0)
    number = np.where(total[:, 0] > 0, number, 0)
    row = np.repeat(np.arange(len(number)), number)  # (drawn,)
    if not len(row):
        return row, row, np.zeros(0)
    step = np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)
    place = (step + rng.random(len(row))) / number[row]  # in [0, 1)
    before = np.zeros(mass.shape)
    np.cumsum(mass[:, :-1], axis=1, out=before[:, 1:])
    starts = np.arange(len(mass))[:, None] + before  # of one row after the other
    found = np.searchsorted(starts.ravel(), row + place, side="right") - 1
    last = mass.shape[1] - 1 - np.argmax(mass[:, ::-1] > 0, axis=1)  # (rows,)
    used = np.minimum(found - row * mass.shape[1], last[row])
    share = np.clip((place - before[row, used]) / mass[row, used], 0.0, 1.0)
    return row, used, share


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
