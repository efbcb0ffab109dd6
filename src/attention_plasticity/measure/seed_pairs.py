"""Key pairs of the seeds' columns, and the cells of query bucket and key bucket that they are in.

Arrays in, arrays out; numpy only. Both keys of a pair belong to one example. Every possible pair
has a number. Numbers are drawn, and the pairs are computed from them in one vectorised step. Keys
have equal weights here; all other numbers draw their pairs with `estimate/pairs.py`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.visible import Visible
from qk_toolkit.arrays import Array, Bools, Ints

PairSampling = Literal["bucket", "local", "context"]


class KeyPairs(NamedTuple):
    """Pairs of key rows. A pair is counted in the cell of its `owner` bucket."""

    first: Ints  # (pairs,) row of k1
    second: Ints  # (pairs,) row of k2
    owner: Ints  # (pairs,) bucket code, ascending
    other: Ints  # (pairs,) bucket code of the other key


class _Groups(NamedTuple):
    """Groups of keys with the same bucket and example. Pairs are numbered in this order."""

    starts: Ints  # (groups,) index of the first key
    sizes: Ints  # (groups,) number of keys
    codes: Ints  # (groups,) bucket code
    pair_ends: Ints  # (groups,) number of pairs up to the end of the group
    bucket_ends: Ints  # (buckets,) number of pairs up to the end of the bucket


class KeyIndex:
    """The sorted keys of a head. It is built once and used by all query heads of the key head."""

    def __init__(
        self, p_k: npt.ArrayLike, b_k: npt.ArrayLike, example_ids_k: npt.ArrayLike
    ) -> None:
        positions = np.asarray(p_k, np.float64)
        self.buckets, self.codes = np.unique(np.asarray(b_k), return_inverse=True)  # codes (n,)
        self.examples = np.unique(np.asarray(example_ids_k), return_inverse=True)[1]  # (n,)
        self.by_bucket = np.lexsort((self.examples, self.codes))
        self.by_position = np.lexsort((positions, self.examples))  # (n,) by example, then position

    def draw(
        self,
        pair_sampling: Literal["bucket", "local"],
        num_pairs_per_bucket: int,
        max_rel_dist: float,
        rng: np.random.Generator,
    ) -> KeyPairs:
        """Draw pairs with the given sampling method."""
        if pair_sampling == "bucket":
            return self.bucket_pairs(num_pairs_per_bucket, rng)
        if pair_sampling == "local":
            return self.local_pairs(num_pairs_per_bucket, max_rel_dist, rng)
        raise ValueError(f"pair_sampling: expected bucket, local or context, got {pair_sampling!r}")

    def context_pairs(
        self, eligible: Bools, num_pairs_per_bucket: int, rng: np.random.Generator
    ) -> KeyPairs:
        """Draw pairs of keys in the eligible key buckets, uniformly and without replacement.

        Both keys belong to one example; their buckets may differ. `num_pairs_per_bucket` pairs are
        drawn for every eligible bucket, or all pairs if there are fewer. The owner of a pair is the
        bucket of the later key.
        """
        keys = self.by_position[eligible[self.codes[self.by_position]]]
        examples = self.examples[keys]
        starts = np.flatnonzero(np.diff(examples, prepend=-1))
        sizes = np.diff(starts, append=len(keys))  # (examples,)
        pair_ends = np.cumsum(sizes * (sizes - 1) // 2)
        total = int(pair_ends[-1]) if len(pair_ends) else 0
        number = _draw_numbers(total, num_pairs_per_bucket * int(eligible.sum()), rng)
        example = np.searchsorted(pair_ends, number, side="right")
        before = pair_ends[example] - sizes[example] * (sizes[example] - 1) // 2
        low, high = _unrank_pairs(number - before)
        swap = rng.random(len(number)) < 0.5
        one, two = keys[starts[example] + low], keys[starts[example] + high]
        owner = np.maximum(self.codes[one], self.codes[two])
        other = np.minimum(self.codes[one], self.codes[two])
        by_owner = np.argsort(owner, kind="stable")
        return KeyPairs(
            first=np.where(swap, two, one)[by_owner],
            second=np.where(swap, one, two)[by_owner],
            owner=owner[by_owner],
            other=other[by_owner],
        )

    @cached_property
    def _groups(self) -> _Groups:
        order = self.by_bucket
        codes, examples = self.codes[order], self.examples[order]
        starts = np.flatnonzero(
            np.diff(codes, prepend=-1).astype(bool) | np.diff(examples, prepend=-1).astype(bool)
        )
        sizes = np.diff(starts, append=len(order))  # (groups,)
        pair_ends = np.cumsum(sizes * (sizes - 1) // 2)  # (groups,)
        last = np.searchsorted(codes[starts], np.arange(len(self.buckets)), side="right") - 1
        return _Groups(starts, sizes, codes[starts], pair_ends, pair_ends[last])

    def bucket_pairs(self, num_pairs_per_bucket: int, rng: np.random.Generator) -> KeyPairs:
        """Draw pairs of each bucket uniformly and without replacement; all pairs if there are few.

        Both keys of a pair have the same bucket and example.
        """
        order = self.by_bucket
        group_starts, sizes, group_codes, pair_ends, bucket_ends = self._groups
        numbers = [
            begin + _draw_numbers(int(end - begin), num_pairs_per_bucket, rng)
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
        """Draw an anchor key and a neighbour in rank. The owner is the bucket of the anchor."""
        order = self.by_position
        lengths = np.bincount(self.examples)
        if lengths.max() < 2:
            empty = np.empty(0, np.int64)
            return KeyPairs(empty, empty, empty, empty)
        example, anchor, neighbour = _draw_neighbours(
            lengths, num_pairs_per_bucket * len(self.buckets), max_rel_dist, rng
        )
        starts = np.cumsum(lengths) - lengths
        at, near = order[starts[example] + anchor], order[starts[example] + neighbour]
        swap = rng.random(len(at)) < 0.5
        by_owner = np.argsort(self.codes[at], kind="stable")
        return KeyPairs(
            first=np.where(swap, near, at)[by_owner],
            second=np.where(swap, at, near)[by_owner],
            owner=self.codes[at][by_owner],
            other=self.codes[near][by_owner],
        )


def sample_key_pairs(
    lengths: npt.ArrayLike,
    num_pairs: int,
    max_rel_dist: float = 0.05,
    rng: np.random.Generator | None = None,
) -> Ints:
    """Draw `(example, rank1, rank2)` rows: two nearby keys of one example, in random order.

    The probability of an example is proportional to its number of keys; examples with fewer than
    two keys are left out. The anchor is uniform in the example, the neighbour is uniform within
    ±max(1, ⌊max_rel_dist · length⌋) ranks of the anchor.

    Args:
        lengths: (examples,) number of keys of every example.
        num_pairs: number of pairs.
        max_rel_dist: largest distance of the two keys, as a fraction of the number of keys.
        rng: random generator; the default is another one in every call.

    Returns:
        (num_pairs, 3) rows: number of the example, and ranks of its two keys from 0.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import sample_key_pairs
        >>> pairs = sample_key_pairs([100, 1], num_pairs=50, rng=np.random.default_rng(0))
        >>> pairs.shape
        (50, 3)
        >>> set(pairs[:, 0].tolist())  # example 1 has no pair of keys
        {0}
        >>> int(np.abs(pairs[:, 1] - pairs[:, 2]).max())  # 5 % of 100 keys
        5
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
    """(example, anchor, neighbour), each (pairs,). One uniform draw gives example and anchor."""
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
    neighbour += neighbour >= anchor  # skip the anchor itself
    return example, anchor, neighbour


def _draw_numbers(total: int, limit: int, rng: np.random.Generator) -> Ints:
    if total <= limit:
        return np.arange(total)
    return rng.choice(total, limit, replace=False)


def _unrank_pairs(number: Ints) -> tuple[Ints, Ints]:
    """Keys of the pair with this number, in the order (0,1), (0,2), (1,2), (0,3) and so on."""
    high = ((1.0 + np.sqrt(1.0 + 8.0 * number)) / 2.0).astype(np.int64)
    high -= high * (high - 1) // 2 > number  # if the root was rounded up
    high += (high + 1) * high // 2 <= number  # if the root was rounded down
    return number - high * (high - 1) // 2, high


def earlier_cells(query_buckets: Ints, key_buckets: Ints) -> Bools:
    """(query buckets, key buckets): True where the keys come before the queries."""
    earlier: Bools = key_buckets[None, :] < query_buckets[:, None]
    return earlier


def seen_cells(
    query_buckets: Ints,
    key_buckets: Ints,
    visible: Visible,
    p_q: Array,
    b_q: Ints,
    p_k: Array,
    b_k: Ints,
) -> Bools:
    """Earlier cells with a key that a query sees.

    With a window of w tokens, a query at p sees keys in [p − w, p] here, and the cell of the
    previous bucket is always eligible: this is the seeds' rule. With chunks, a query sees the keys
    of its own chunk up to p.
    """
    earlier = earlier_cells(query_buckets, key_buckets)
    if visible.size is None:
        return earlier
    inside = np.isin(b_q, query_buckets)
    order = np.argsort(b_q[inside], kind="stable")
    queries = p_q[inside][order]  # (n,) sorted by bucket
    if not len(queries):
        return earlier
    first = queries - visible.size
    if visible.chunked:
        first = np.floor(queries / visible.size) * visible.size
    starts = np.searchsorted(b_q[inside][order], query_buckets)
    by_bucket = np.lexsort((p_k, b_k))
    bounds = np.searchsorted(b_k[by_bucket], [key_buckets, key_buckets + 1])
    near = np.zeros(earlier.shape, np.bool_)
    for column, (begin, end) in enumerate(bounds.T):
        keys = p_k[by_bucket[begin:end]]  # ascending
        last = np.searchsorted(keys, queries, side="right") - 1  # the last key at or before p
        within = (last >= 0) & (keys[np.maximum(last, 0)] >= first)  # (n,)
        near[:, column] = np.logical_or.reduceat(within, starts)
    if not visible.chunked:
        near |= key_buckets[None, :] == query_buckets[:, None] - 1
    return earlier & near
