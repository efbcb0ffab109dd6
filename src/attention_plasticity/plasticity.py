"""Plasticity of one head from arrays, as the seeds define it: Gaussians of query buckets.

Arrays in, arrays out; numpy and scipy only. `sample_key_pairs` is defined in `measure/seed_pairs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.blocks import row_blocks, scale_exponent
from attention_plasticity.estimate.score import plasticity_of
from attention_plasticity.measure.eligibility import earlier_cells
from attention_plasticity.measure.seed_models import (
    BucketMoments,
    Gaussian,
    bucket_gaussians,
    bucket_moments,
    margin_and_deviation,
)
from attention_plasticity.measure.seed_pairs import (
    KeyIndex,
    KeyPairs,
    PairSampling,
    sample_key_pairs,
)
from attention_plasticity.statistics import Basis, rotate
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

__all__ = ["AttentionPlasticity", "compute_attention_plasticity", "sample_key_pairs"]

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
        W: Array = np.subtract(self.vectors[first], self.vectors[second], dtype=np.float64)
        return W if self.basis is None else rotate(W, self.basis.signs, self.basis.u)


@dataclass(frozen=True)
class PairChoice:
    """Which key pairs are drawn."""

    sampling: PairSampling
    number: int  # per key bucket
    max_rel_dist: float
    rng: np.random.Generator


def compute_attention_plasticity(
    p_q: npt.ArrayLike,
    b_q: npt.ArrayLike,
    X_q_rot: Vectors,
    alpha_rot: Array,
    beta_rot: Array,
    resid_var: Array,
    p_k: npt.ArrayLike,
    b_k: npt.ArrayLike,
    example_ids_k: npt.ArrayLike,
    X_k_rot: Vectors,
    num_pairs_per_bucket: int = 256,
    bucket_window_limits: Mapping[int, int] | None = None,
    *,
    query_model: Literal["positional", "full", "diagonal"] = "positional",
    pair_sampling: PairSampling = "bucket",
    max_rel_dist: float = 0.05,
    rng: np.random.Generator | None = None,
) -> AttentionPlasticity:
    """Plasticity of one head from queries and keys in the rotated space.

    A query bucket is compared with all earlier key buckets. Bucket 0 and buckets with one query
    have no result. Plasticity does not depend on the scale of queries or keys.

    Args:
        p_q: (n,) positions, one per query.
        b_q: (n,) buckets, one per query.
        X_q_rot: (n, d) queries in the rotated space.
        alpha_rot: (d,) intercepts of the regression of `X_q_rot` on position.
        beta_rot: (d,) slopes of this regression.
        resid_var: (d,) variances of its residuals.
        p_k: (m,) positions, one per key.
        b_k: (m,) buckets, one per key.
        example_ids_k: (m,) texts, one per key. Both keys of a pair have the same text.
        X_k_rot: (m, d) keys in the rotated space.
        num_pairs_per_bucket: key pairs drawn per key bucket, or all pairs if there are fewer.
        bucket_window_limits: query bucket → lowest key bucket within the window; without it there
            is no window.
        query_model: how a Gaussian describes the queries of a bucket. `positional` takes only the
            first numbers of `alpha_rot`, `beta_rot` and `resid_var`; `full` and `diagonal` take
            none of them.
        pair_sampling: two keys of one bucket (`bucket`), nearby keys (`local`), or any two earlier
            keys of a text (`context`).
        max_rel_dist: of `local` pairs, as in `sample_key_pairs`.
        rng: random generator; the default is `default_rng(0)`.

    Returns:
        `profile` (query buckets,) and `plasticity` (cells,), where a cell is a query bucket and an
            earlier key bucket; `overall`, the mean of the profile weighted by queries.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import compute_attention_plasticity
        >>> zeros, ones = np.zeros(2), np.ones(2)
        >>> regression = {"alpha_rot": zeros, "beta_rot": zeros, "resid_var": ones}
        >>> queries = np.array([[1.0, 2.0], [-1.0, -2.0]])  # mean 0: no key is preferred
        >>> q = {"p_q": [4, 5], "b_q": [1, 1], "X_q_rot": queries}
        >>> k = {"p_k": [0, 1], "b_k": [0, 0], "example_ids_k": [7, 7], "X_k_rot": np.eye(2)}
        >>> compute_attention_plasticity(**q, **regression, **k).overall
        1.0
    """
    positions, buckets = np.asarray(p_q, np.float64), np.asarray(b_q, np.int64)
    moments = bucket_moments(positions, buckets, np.ldexp(X_q_rot, -scale_exponent(X_q_rot)))
    unit = 2.0 ** -scale_exponent(X_q_rot)
    gaussians = bucket_gaussians(
        query_model, moments, alpha_rot * unit, beta_rot * unit, resid_var * unit * unit
    )
    keys = KeyIndex(p_k, b_k, example_ids_k)
    eligible = earlier_cells(moments.bucket, keys.buckets)  # (query buckets, key buckets)
    if bucket_window_limits is not None:
        lowest = np.array([bucket_window_limits.get(int(j), 0) for j in moments.bucket])
        eligible &= keys.buckets[None, :] >= lowest[:, None]
    rng = np.random.default_rng(0) if rng is None else rng
    choice = PairChoice(pair_sampling, num_pairs_per_bucket, max_rel_dist, rng)
    vectors = KeyVectors(np.ldexp(X_k_rot, -scale_exponent(X_k_rot)))
    return score_buckets(moments, gaussians, keys, vectors, eligible, choice)


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
