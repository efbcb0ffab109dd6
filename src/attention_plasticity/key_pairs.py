"""Which pairs of keys are compared. Two keys of a pair always belong to one example.

Arrays in, arrays out; numpy only. Pairs are drawn by rank: every admissible pair has a number,
numbers are drawn, and the pair is computed from its number, for all pairs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PAIR_BLOCK = 1 << 25  # float64 values of key differences that are held at a time


@dataclass(frozen=True)
class KeyPairs:
    """Pairs of key rows. `owner` is the key bucket whose cell a pair counts in."""

    first: Ints  # (pairs,) row of k1
    second: Ints  # (pairs,) row of k2
    owner: Ints  # (pairs,) bucket code, ascending
    other: Ints  # (pairs,) bucket code of the key that does not decide the owner

    def __len__(self) -> int:
        return len(self.first)

    def part(self, rows: slice) -> KeyPairs:
        """Some of the pairs, in the same order."""
        return KeyPairs(self.first[rows], self.second[rows], self.owner[rows], self.other[rows])


class _Groups(NamedTuple):
    """Keys of one bucket and example, group after group; pairs are numbered in that order."""

    starts: Ints  # (groups,) first of the group's keys
    sizes: Ints  # (groups,) keys
    codes: Ints  # (groups,) bucket code
    pair_ends: Ints  # (groups,) pairs up to the end of the group
    bucket_ends: Ints  # (buckets,) pairs up to the end of the bucket


class KeyIndex:
    """The keys of a head, sorted and counted once, so that each query head only has to draw."""

    def __init__(
        self, p_k: npt.ArrayLike, b_k: npt.ArrayLike, example_ids_k: npt.ArrayLike
    ) -> None:
        positions = np.asarray(p_k, np.float64)
        self.buckets, self._codes = np.unique(np.asarray(b_k), return_inverse=True)
        self._examples = np.unique(np.asarray(example_ids_k), return_inverse=True)[1]
        self._by_bucket = np.lexsort((self._examples, self._codes))
        self._by_position = np.lexsort((positions, self._examples))

    def draw(
        self,
        pair_sampling: Literal["bucket", "local"],
        num_pairs_per_bucket: int,
        max_rel_dist: float,
        rng: np.random.Generator,
    ) -> KeyPairs:
        """Pairs by the named way of sampling."""
        if pair_sampling == "bucket":
            return self.bucket_pairs(num_pairs_per_bucket, rng)
        return self.local_pairs(num_pairs_per_bucket, max_rel_dist, rng)

    def count(self, pair_sampling: Literal["bucket", "local"], num_pairs_per_bucket: int) -> int:
        """How many pairs `draw` gives."""
        if pair_sampling == "local":
            some = int(np.bincount(self._examples).max()) >= 2
            return num_pairs_per_bucket * len(self.buckets) if some else 0
        available = np.diff(self._groups.bucket_ends, prepend=0)  # (buckets,)
        return int(np.minimum(available, num_pairs_per_bucket).sum())

    @cached_property
    def _groups(self) -> _Groups:
        order = self._by_bucket
        codes, examples = self._codes[order], self._examples[order]
        starts = np.flatnonzero(
            np.diff(codes, prepend=-1).astype(bool) | np.diff(examples, prepend=-1).astype(bool)
        )
        sizes = np.diff(starts, append=len(order))  # (groups,)
        pair_ends = np.cumsum(sizes * (sizes - 1) // 2)  # (groups,)
        last = np.searchsorted(codes[starts], np.arange(len(self.buckets)), side="right") - 1
        return _Groups(starts, sizes, codes[starts], pair_ends, pair_ends[last])

    def bucket_pairs(self, num_pairs_per_bucket: int, rng: np.random.Generator) -> KeyPairs:
        """Uniform over the pairs of one bucket and example; all of them when they are few.

        Pairs of a bucket are drawn without replacement.
        """
        order = self._by_bucket
        group_starts, sizes, group_codes, pair_ends, bucket_ends = self._groups
        numbers = [
            begin + _some_of(int(end - begin), num_pairs_per_bucket, rng)
            for begin, end in zip(np.r_[0, bucket_ends[:-1]], bucket_ends, strict=True)
        ]
        number = np.concatenate(numbers)  # (pairs,)
        group = np.searchsorted(pair_ends, number, side="right")
        within = number - (pair_ends[group] - sizes[group] * (sizes[group] - 1) // 2)
        low, high = _unrank_pairs(within)
        swap = rng.random(len(number)) < 0.5
        base = group_starts[group]
        owner = group_codes[group]
        return KeyPairs(
            first=order[base + np.where(swap, high, low)],
            second=order[base + np.where(swap, low, high)],
            owner=owner,
            other=owner,
        )

    def local_pairs(
        self, num_pairs_per_bucket: int, max_rel_dist: float, rng: np.random.Generator
    ) -> KeyPairs:
        """Neighbours in rank within an example, anchored anywhere; owned by the anchor's bucket."""
        order = self._by_position
        lengths = np.bincount(self._examples)
        if lengths.max() < 2:
            none = np.empty(0, np.int64)
            return KeyPairs(none, none, none, none)
        example, anchor, neighbour = _draw_neighbours(
            lengths, num_pairs_per_bucket * len(self.buckets), max_rel_dist, rng
        )
        starts = np.cumsum(lengths) - lengths
        at, near = order[starts[example] + anchor], order[starts[example] + neighbour]
        swap = rng.random(len(at)) < 0.5
        by_owner = np.argsort(self._codes[at], kind="stable")
        return KeyPairs(
            first=np.where(swap, near, at)[by_owner],
            second=np.where(swap, at, near)[by_owner],
            owner=self._codes[at][by_owner],
            other=self._codes[near][by_owner],
        )


def sample_key_pairs(
    lengths: npt.ArrayLike,
    num_pairs: int,
    max_rel_dist: float = 0.05,
    rng: np.random.Generator | None = None,
) -> Ints:
    """Draw `(example, rank1, rank2)` rows: two keys of one example, near each other, in any order.

    An example is drawn in proportion to its number of keys (those with fewer than two never), the
    anchor uniformly in it, the neighbour uniformly within ±max(1, ⌊max_rel_dist · length⌋) ranks.
    """
    rng = np.random.default_rng() if rng is None else rng
    counts = np.asarray(lengths)
    if counts.ndim != 1 or (counts.size and not np.issubdtype(counts.dtype, np.integer)):
        raise ValueError("lengths must be a one-dimensional array of integers")
    if num_pairs < 0 or not 0 <= max_rel_dist < np.inf or (counts < 0).any():
        raise ValueError("lengths, num_pairs and max_rel_dist must be finite and not negative")
    if counts.size == 0 or counts.max() < 2:
        raise ValueError("no example has two keys, so there is no pair to draw")
    example, anchor, neighbour = _draw_neighbours(
        counts.astype(np.int64), num_pairs, max_rel_dist, rng
    )
    swap = rng.random(num_pairs) < 0.5
    first, second = np.where(swap, neighbour, anchor), np.where(swap, anchor, neighbour)
    return np.stack([example, first, second], axis=1)


def _draw_neighbours(
    lengths: Ints, num_pairs: int, max_rel_dist: float, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """(example, anchor, neighbour), each (pairs,). A key drawn uniformly is example and anchor."""
    usable = np.flatnonzero(lengths >= 2)
    ends = np.cumsum(lengths[usable])
    key = rng.integers(0, ends[-1], size=num_pairs)
    slot = np.searchsorted(ends, key, side="right")
    example = usable[slot]
    length = lengths[example]
    anchor = key - (ends[slot] - length)
    reach = np.maximum(1, np.floor(max_rel_dist * length).astype(np.int64))
    left = np.maximum(0, anchor - reach)
    right = np.minimum(length - 1, anchor + reach)
    neighbour = left + rng.integers(0, right - left, size=num_pairs)
    neighbour += neighbour >= anchor  # the anchor itself is left out
    return example, anchor, neighbour


def _some_of(total: int, most: int, rng: np.random.Generator) -> Ints:
    if total <= most:
        return np.arange(total)
    return rng.choice(total, most, replace=False)


def _unrank_pairs(number: Ints) -> tuple[Ints, Ints]:
    """Pair `number` in the order (0,1), (0,2), (1,2), (0,3), …, exact for any int64 in use."""
    high = ((1.0 + np.sqrt(1.0 + 8.0 * number)) / 2.0).astype(np.int64)
    high -= high * (high - 1) // 2 > number  # the root may be rounded up
    high += (high + 1) * high // 2 <= number  # or down
    return number - high * (high - 1) // 2, high
