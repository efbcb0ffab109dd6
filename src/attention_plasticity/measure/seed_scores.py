"""Plasticity of key pairs under the Gaussians of query buckets, for the seeds' columns.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.blocks import row_blocks
from attention_plasticity.estimate.score import plasticity_of
from attention_plasticity.measure.seed_models import (
    BucketMoments,
    Gaussian,
    margin_and_deviation,
)
from attention_plasticity.measure.seed_pairs import KeyIndex, KeyPairs, PairSampling
from attention_plasticity.statistics import Basis, rotate
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

_PAIR_BLOCK = 1 << 25  # float64 values of key differences in memory at a time


@dataclass(frozen=True)
class AttentionPlasticity:
    """Plasticity of a head per eligible (query bucket, key bucket), and per query bucket."""

    q_code: Ints  # (cells,) index into the query buckets
    k_code: Ints  # (cells,) index into the key buckets
    plasticity: Array  # (cells,) mean over the cell's pairs; NaN without a pair
    n_pairs: Ints  # (cells,)
    query_buckets: Ints  # (query buckets,)
    query_positions: Array  # (query buckets,) mean position
    query_counts: Ints  # (query buckets,)
    key_buckets: Ints  # (key buckets,)
    profile: Array  # (query buckets,) mean over all pairs of a query bucket; NaN without a pair

    @property
    def q_bucket(self) -> Ints:
        """Query bucket of every cell."""
        return self.query_buckets[self.q_code]

    @property
    def k_bucket(self) -> Ints:
        """Key bucket of every cell."""
        return self.key_buckets[self.k_code]

    @property
    def overall(self) -> float:
        """Mean of the profile, weighted by the number of queries per bucket."""
        valid = ~np.isnan(self.profile)
        total = float(self.query_counts[valid].sum())
        return float(self.profile[valid] @ self.query_counts[valid]) / total if total else np.nan


@dataclass(frozen=True)
class KeyVectors:
    """Keys of a head, and the basis of their differences."""

    vectors: Vectors  # (n, d)
    basis: Basis | None = None  # None: the vectors are in the positional basis

    def differences(self, first: Ints, second: Ints) -> Array:
        """(pairs, d): first key minus second key, in the positional basis."""
        W = np.empty((len(first), self.vectors.shape[1]), order="F")  # for BLAS
        for rows in row_blocks(*W.shape):
            one, other = self.vectors[first[rows]], self.vectors[second[rows]]  # (b, d)
            own: Array = np.subtract(one, other, dtype=np.float64)
            W[rows] = (
                own if self.basis is None else rotate(own, 0.0, self.basis.signs, self.basis.u)
            )
        return W


@dataclass(frozen=True)
class PairChoice:
    """Which key pairs are drawn."""

    sampling: PairSampling
    number: int  # per key bucket
    max_rel_dist: float
    rng: np.random.Generator


def score_buckets(
    moments: BucketMoments,
    gaussians: list[Gaussian],
    keys: KeyIndex,
    vectors: KeyVectors,
    eligible: Bools,
    choice: PairChoice,
) -> AttentionPlasticity:
    """Plasticity of the key pairs of every query bucket under its Gaussian.

    A pair is used for a query bucket if the buckets of both keys are `eligible` (query buckets, key
    buckets). It is counted in the cell of its owner.
    """
    sums, counts = np.zeros(eligible.shape), np.zeros(eligible.shape, np.int64)
    codes = np.arange(len(eligible))
    if choice.sampling == "context":
        parts = [(codes[code : code + 1], _drawn(keys, choice, eligible[code])) for code in codes]
    else:
        parts = [(codes, _drawn(keys, choice))]
    for members, pairs in parts:
        for block in row_blocks(len(pairs.first), vectors.vectors.shape[1], _PAIR_BLOCK):
            part = KeyPairs(*(column[block] for column in pairs))
            W = vectors.differences(part.first, part.second)  # (b, d)
            for code in members.tolist():
                _add(sums[code], counts[code], W, part, gaussians[code], eligible[code])
    q_code, k_code = np.nonzero(eligible)
    with np.errstate(invalid="ignore"):
        cells, profile = sums / counts, sums.sum(axis=1) / counts.sum(axis=1)
    return AttentionPlasticity(
        q_code=q_code,
        k_code=k_code,
        plasticity=cells[q_code, k_code],
        n_pairs=counts[q_code, k_code],
        query_buckets=moments.bucket,
        query_positions=moments.position,
        query_counts=moments.count,
        key_buckets=keys.buckets,
        profile=profile,
    )


def _drawn(keys: KeyIndex, choice: PairChoice, eligible: Bools | None = None) -> KeyPairs:
    """The pairs of all query buckets, or of the query bucket that sees the `eligible` buckets."""
    if choice.sampling == "context":
        assert eligible is not None
        return keys.context_pairs(eligible, choice.number, choice.rng)
    return keys.draw(choice.sampling, choice.number, choice.max_rel_dist, choice.rng)


def _add(
    sums: Array, counts: Ints, W: Array, pairs: KeyPairs, gaussian: Gaussian, eligible: Bools
) -> None:
    """Add the scores of the pairs of one query bucket to its cells."""
    used = np.flatnonzero(eligible[pairs.owner] & eligible[pairs.other])
    if not len(used):
        return
    whole = used[-1] + 1 - used[0] == len(used)
    rows = slice(int(used[0]), int(used[-1]) + 1) if whole else used
    margin, deviation = margin_and_deviation(W[rows], gaussian)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = margin / deviation
    z[(deviation == 0) & (margin == 0)] = 0.0
    owner = pairs.owner[rows]
    counts += np.bincount(owner, minlength=len(counts))
    sums += np.bincount(owner, plasticity_of(z), minlength=len(sums))
