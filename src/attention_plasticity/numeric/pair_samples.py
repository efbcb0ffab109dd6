"""A sample of key pairs: the keys, the pairs, and the query buckets that the pairs are scored for.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs, PairSampling
from attention_plasticity.numeric.pair_pool import WeightedKeys
from attention_plasticity.numeric.position import Basis, rotate
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

_FEWEST_PAIRS = 64  # of a cell from which pairs are left out


@dataclass(frozen=True)
class KeyVectors:
    """Keys of a head, and the basis of their differences."""

    vectors: Vectors  # (n, d)
    basis: Basis | None = None  # None: the vectors are in the positional basis

    def differences(self, pairs: KeyPairs) -> Array:
        """`W` (pairs, d): first key minus second key, in the positional basis."""
        W = key_differences(self.vectors, pairs)  # (pairs, d)
        return W if self.basis is None else rotate(W, self.basis.signs, self.basis.u)


def key_differences(X_k: Vectors, pairs: KeyPairs) -> Array:
    """`W` (pairs, d): first key minus second key."""
    W: Array = np.subtract(X_k[pairs.first], X_k[pairs.second], dtype=np.float64)
    return W


class PairDraw(Protocol):
    """Draws the pairs of one query bucket after the other."""

    def draw(self, eligible: Bools) -> KeyPairs:
        """The pairs of the next query bucket; `eligible` (key buckets,) are its key buckets."""


@dataclass(frozen=True)
class ContextDraw:
    """Draws pairs of any two earlier keys of a text."""

    keys: KeyIndex | WeightedKeys
    num_pairs_per_bucket: int
    rng: np.random.Generator

    def draw(self, eligible: Bools) -> KeyPairs:
        """The pairs of the next query bucket."""
        return self.keys.context_pairs(eligible, self.num_pairs_per_bucket, self.rng)


@dataclass
class OneCellDraw:
    """Pairs of another draw, all pairs of a query bucket in one cell."""

    pairs: PairDraw
    eligible: Bools  # (query buckets, key buckets) for the other draw
    done: int = 0  # query buckets

    def draw(self, reached: Bools) -> KeyPairs:
        """The pairs of the next query bucket; `reached` (1,) is not needed."""
        self.done += 1
        return self.pairs.draw(self.eligible[self.done - 1]).with_single_bucket()


def chosen_pairs(
    keys: KeyIndex,
    pair_sampling: PairSampling,
    num_pairs_per_bucket: int,
    max_rel_dist: float,
    rng: np.random.Generator,
) -> KeyPairs | PairDraw:
    """Pairs for all query buckets, or a draw for each of them, by the sampling method."""
    if pair_sampling == "context":
        return ContextDraw(keys, num_pairs_per_bucket, rng)
    return keys.draw(pair_sampling, num_pairs_per_bucket, max_rel_dist, rng)


def weighted_pairs(
    keys: WeightedKeys,
    pair_sampling: PairSampling,
    num_pairs_per_bucket: int,
    max_rel_dist: float,
    rng: np.random.Generator,
) -> KeyPairs | PairDraw:
    """The same in proportion to the product of the weights of both keys, with replacement."""
    if pair_sampling == "context":
        return ContextDraw(keys, num_pairs_per_bucket, rng)
    if pair_sampling == "local":
        return keys.local_pairs(num_pairs_per_bucket, max_rel_dist, rng)
    if pair_sampling == "bucket":
        return keys.bucket_pairs(num_pairs_per_bucket, rng)
    raise ValueError(f"pair_sampling: expected bucket, local or context, got {pair_sampling!r}")


@dataclass(frozen=True)
class PairSample:
    """Key pairs of a head, and the cells in which they are scored.

    A pair is used for a query bucket if the buckets of both keys are eligible. It is counted in the
    cell of its owner.
    """

    keys: KeyVectors
    pairs: KeyPairs | PairDraw  # for all query buckets, or drawn for each of them
    key_buckets: Ints  # (key buckets,)
    eligible: Bools  # (query buckets, key buckets)
    steps: Ints | None = None  # (query buckets, key buckets) one pair of so many is used; None: all

    def used(self, code: int, pairs: KeyPairs) -> Ints:
        """Numbers of the pairs of `pairs` that are scored for query bucket `code`."""
        row = self.eligible[code]
        used = row[pairs.owner] & row[pairs.other]
        if self.steps is not None:
            used &= (pairs.rank + code) % self.steps[code, pairs.owner] == 0
        return np.flatnonzero(used)


def thinning(pairs: KeyPairs, eligible: Bools, most: Ints) -> Ints:
    """(query buckets, key buckets) steps, so that a query bucket uses about `most` pairs.

    `most` is (query buckets,). Query buckets use different pairs of a cell, so that all pairs are
    used. A cell keeps at least 64 pairs if it has them.
    """
    sizes = np.bincount(pairs.owner, minlength=eligible.shape[1])  # (key buckets,)
    wanted: Ints = -(-(eligible @ sizes) // most)  # (query buckets,)
    steps: Ints = np.maximum(1, np.minimum(wanted[:, None], sizes // _FEWEST_PAIRS))
    return steps
