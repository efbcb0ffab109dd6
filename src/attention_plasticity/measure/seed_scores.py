"""Plasticity of key pairs under Gaussians of query buckets, for the seeds' columns.

Arrays in, arrays out; numpy only. Queries and keys are in one basis, as captured or
rotated; no number depends on it. The positional basis of a head is a reflection of the first axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from attention_plasticity.estimate.blocks import LARGE_BLOCK, row_blocks
from attention_plasticity.estimate.score import plasticity_of
from attention_plasticity.measure.seed_pairs import KeyIndex, KeyPairs, PairSampling
from attention_plasticity.statistics import Regression
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

QueryModel = Literal["positional", "full", "diagonal"]

_RELATIVE_RIDGE = 1e-12
_PANEL = 16  # columns of a triangular factor
_MOST = 512  # pairs that are scored together


@dataclass(frozen=True)
class BucketMoments:
    """Mean and covariance of the queries of every bucket with at least two queries."""

    bucket: Ints  # (g,) ascending, without bucket 0
    count: Ints  # (g,)
    position: Array  # (g,) mean position τ
    mean: Array  # (g, d)
    covariance: Array  # (g, d, d), n − 1 degrees of freedom


class FirstAxis(NamedTuple):
    """The first axis of the positional basis, and the queries along it by position."""

    reflection: Array  # (d,) unit u: I − 2uuᵀ maps the basis of the vectors to the positional one
    alpha: float
    beta: float
    variance: float  # of residuals


@dataclass(frozen=True)
class Gaussians:
    """N(mean, LLᵀ) of every bucket, with L lower triangular."""

    mean: Array  # (g, d)
    factor: Array  # (g, d, d)

    @cached_property
    def _panels(self) -> list[Array]:
        """(d − start, g, ≤ 16) the columns of all L from `start` on, without zeros above them."""
        starts = range(0, self.mean.shape[1], _PANEL)
        parts = (self.factor[:, start:, start : start + _PANEL] for start in starts)
        return [np.ascontiguousarray(part.swapaxes(0, 1)) for part in parts]

    def standardised(self, W: Array, buckets: slice = slice(None)) -> Array:
        """(pairs, buckets) mean of `w·q` over its standard deviation; 0 if both are 0.

        `W` (pairs, d) are differences of keys.
        """
        margin = W @ self.mean[buckets].T
        variance = np.zeros(margin.shape)
        for number, panel in enumerate(self._panels):
            own = panel[:, buckets]  # (d − start, buckets, ≤ 16)
            spread = W[:, number * _PANEL :] @ own.reshape(len(own), -1)
            np.multiply(spread, spread, out=spread)
            ones = np.ones(own.shape[2])
            variance += (spread.reshape(-1, len(ones)) @ ones).reshape(margin.shape)
        deviation = np.sqrt(variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            z: Array = margin / deviation
        z[(deviation == 0) & (margin == 0)] = 0.0
        return z


@dataclass(frozen=True)
class BucketSums:
    """Sums over the queries of every bucket, and the regression of all queries on position."""

    bucket: Ints  # (b,) ascending
    count: Ints  # (b,)
    position: Array  # (b,) mean position τ
    mean: Array  # (b, d)
    scatter: Array  # (b, d, d) Σ(x − mean)(x − mean)ᵀ
    fit: Regression

    @classmethod
    def of(cls, p: Array, b: Ints, X: Vectors) -> BucketSums:
        """From vectors `X` (n, d) at positions `p` (n,) in buckets `b` (n,)."""
        order = np.argsort(b, kind="stable")
        buckets, starts, n = np.unique(b[order], return_index=True, return_counts=True)
        d = X.shape[1]
        first = order[starts]  # sums are about these rows: equal rows have no variance at all
        origin, position = X[first].astype(np.float64), p[first].astype(np.float64)
        t_mean = p[0] + (p - p[0]).mean()
        t = p - t_mean  # (n,)
        total, along, of_t = np.zeros((len(n), d)), np.zeros((len(n), d)), np.zeros(len(n))
        scatter = np.zeros((len(n), d, d))
        for place, start in enumerate(starts):
            rows = order[start : start + n[place]]
            position[place] += (p[rows] - position[place]).mean()
            of_t[place] = t[rows].sum()
            for block in row_blocks(len(rows), d, LARGE_BLOCK):
                dev = X[rows[block]] - origin[place]  # (b, d)
                total[place] += np.ones(len(dev)) @ dev
                along[place] += t[rows[block]] @ dev
                scatter[place] += dev.T @ dev
        shift = total / n[:, None]
        scatter -= n[:, None, None] * shift[:, :, None] * shift[:, None, :]
        mean, away = origin + shift, origin - origin[0]  # (b, d)
        moved = (total.sum(axis=0) + n @ away) / len(p)  # (d,) mean minus the first origin
        cross = along.sum(axis=0) + of_t @ away - of_t.sum() * moved
        squares = np.einsum("bdd->d", scatter) + n @ (mean - origin[0] - moved) ** 2
        fit = Regression.of_sums(origin[0] + moved, squares, cross, t, t_mean)
        return cls(buckets, n, position, mean, scatter, fit)

    def moments(self) -> BucketMoments:
        """Moments of the buckets with at least two queries, without bucket 0."""
        kept = np.flatnonzero((self.bucket != 0) & (self.count >= 2))
        n = self.count[kept]
        covariance = self.scatter[kept] / (n - 1)[:, None, None]
        return BucketMoments(self.bucket[kept], n, self.position[kept], self.mean[kept], covariance)


def bucket_gaussians(query_model: QueryModel, moments: BucketMoments, axis: FirstAxis) -> Gaussians:
    """A Gaussian per bucket, in the basis of the moments.

    positional: along the first axis, mean and variance come from the regression on position; the
    other components have the mean and covariance of the bucket and are independent of the first.
    full: mean and covariance of the bucket. diagonal: mean and variances of the bucket, in the
    positional basis.
    """
    mean, covariance, d = moments.mean, moments.covariance, moments.mean.shape[1]
    basis = np.eye(d) - 2.0 * np.multiply.outer(axis.reflection, axis.reflection)  # (d, d)
    first, rest = basis[0], np.eye(d) - np.multiply.outer(basis[0], basis[0])
    if query_model == "diagonal":
        variances = np.einsum("gij,ri,rj->gr", covariance, basis, basis, optimize=True)
        covariance = (basis.T * variances[:, None, :]) @ basis
    if query_model == "positional":
        on_line = axis.alpha + axis.beta * moments.position  # (g,)
        mean = mean + (on_line - mean @ first)[:, None] * first
        along = covariance @ first  # (g, d)
        covariance = covariance - along[:, :, None] * first - first[:, None] * along[:, None, :]
        covariance += (along @ first)[:, None, None] * np.multiply.outer(first, first)
        ridge = _RELATIVE_RIDGE * np.trace(covariance, axis1=1, axis2=2) / max(1, d - 1)  # (g,)
        covariance += ridge[:, None, None] * rest
        covariance += axis.variance * np.multiply.outer(first, first)
    return Gaussians(mean, _factors(covariance))


def _factors(covariance: Array) -> Array:
    """(g, d, d) lower triangular L with LLᵀ = covariance (g, d, d), which may be singular."""
    try:
        return np.asarray(np.linalg.cholesky(covariance), np.float64)
    except np.linalg.LinAlgError:
        if len(covariance) > 1:
            return np.concatenate([_factors(one[None]) for one in covariance])
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None]  # root·rootᵀ is the covariance
    upper: Array = np.asarray(np.linalg.qr(root.swapaxes(1, 2), mode="r"))
    return upper.swapaxes(1, 2)


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
class PairChoice:
    """Which key pairs are drawn."""

    sampling: PairSampling
    number: int  # per key bucket
    max_rel_dist: float
    rng: np.random.Generator


def score_buckets(
    moments: BucketMoments,
    gaussians: Gaussians,
    keys: KeyIndex,
    vectors: Vectors,
    eligible: Bools,
    choice: PairChoice,
) -> AttentionPlasticity:
    """Plasticity of pairs of the keys `vectors` (n, d) under the Gaussian of every query bucket.

    A pair is used for a query bucket if the buckets of both keys are `eligible` (query buckets, key
    buckets). It is counted in the cell of its owner.
    """
    totals = np.zeros((2, *eligible.shape))  # of scores, and numbers of pairs
    number, rng, buckets = choice.number, choice.rng, len(eligible)
    parts: Iterable[tuple[slice, KeyPairs]]
    if choice.sampling == "context":
        drawn = (keys.context_pairs(eligible[code], number, rng) for code in range(buckets))
        parts = ((slice(code, code + 1), pairs) for code, pairs in enumerate(drawn))
    else:
        pairs = keys.draw(choice.sampling, number, choice.max_rel_dist, rng)
        parts = [(slice(0, buckets), pairs)]
    for members, pairs in parts:
        for block in row_blocks(len(pairs.first), 1, min(number, _MOST)):  # pairs of one cell
            own = KeyPairs(*(column[block] for column in pairs))
            _add(totals, own, vectors, gaussians, eligible, members)
    q_code, k_code = np.nonzero(eligible)
    with np.errstate(invalid="ignore"):
        cells, profile = totals[0] / totals[1], totals[0].sum(axis=1) / totals[1].sum(axis=1)
    return AttentionPlasticity(
        q_code=q_code,
        k_code=k_code,
        plasticity=cells[q_code, k_code],
        n_pairs=totals[1, q_code, k_code].astype(np.int64),
        query_buckets=moments.bucket,
        query_positions=moments.position,
        query_counts=moments.count,
        key_buckets=keys.buckets,
        profile=profile,
    )


def _add(
    totals: Array,
    pairs: KeyPairs,
    vectors: Vectors,
    gaussians: Gaussians,
    eligible: Bools,
    members: slice,
) -> None:
    """Add the scores and numbers of some pairs of the query buckets `members`."""
    used = eligible[members][:, pairs.owner] & eligible[members][:, pairs.other]  # (m, b)
    seen = np.flatnonzero(used.any(axis=1))
    if not len(seen):
        return
    used = used[seen[0] : seen[-1] + 1]
    codes = slice(members.start + int(seen[0]), members.start + int(seen[-1]) + 1)
    one, other = vectors[pairs.first], vectors[pairs.second]  # (b, d)
    W: Array = np.subtract(one, other, dtype=np.float64)
    values = np.where(used, plasticity_of(gaussians.standardised(W, codes)).T, 0.0)
    starts = np.flatnonzero(np.diff(pairs.owner, prepend=-1))
    added = np.add.reduceat(np.stack([values, used]), starts, axis=2)  # (2, m, cells)
    totals[:, codes, pairs.owner[starts]] += added
