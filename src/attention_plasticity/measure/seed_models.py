"""Gaussian models of the queries of a bucket, for the seeds' columns.

Arrays in, arrays out; numpy and scipy only. A model is a mean μ and a triangular factor L of
Σ = LLᵀ. The three models differ only in μ and Σ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg.blas import dtrmm

from attention_plasticity.estimate.blocks import LARGE_BLOCK, near_mean, row_blocks
from qk_toolkit.arrays import Array, Ints, Vectors

_RELATIVE_RIDGE = 1e-12
_BLOCK = 1 << 17  # float64 values of products with a triangular factor at a time


@dataclass(frozen=True)
class BucketMoments:
    """Mean and covariance of the queries of every bucket with at least two queries."""

    bucket: Ints  # (g,) ascending, without bucket 0
    count: Ints  # (g,)
    position: Array  # (g,) mean position τ
    mean: Array  # (g, d)
    covariance: Array  # (g, d, d), n − 1 degrees of freedom


@dataclass(frozen=True)
class Gaussian:
    """N(mean, LLᵀ) with L lower triangular. A one-dimensional factor is the diagonal of L."""

    mean: Array  # (d,)
    factor: Array  # (d, d) or (d,)


def bucket_moments(p: Array, b: Ints, X: Vectors) -> BucketMoments:
    """Moments of the query buckets with at least two queries, without bucket 0."""
    order = None if (b[1:] >= b[:-1]).all() else np.argsort(b, kind="stable")
    buckets, rows = _bucket_rows(b if order is None else b[order])
    d = X.shape[1]
    mean, covariance = np.empty((len(rows), d)), np.empty((len(rows), d, d))
    count, position = np.empty(len(rows), np.int64), np.empty(len(rows))
    for code, members in enumerate(rows):
        chosen = members if order is None else order[members]
        mean[code], covariance[code] = _mean_and_covariance(X[chosen])
        count[code], position[code] = members.stop - members.start, _mean_position(p[chosen])
    return BucketMoments(buckets, count, position, mean, covariance)


def _mean_position(positions: Array) -> float:
    """Mean of the positions of a bucket, without the rounding errors of a large sum."""
    return float(positions[0] + (positions - positions[0]).mean())


def _bucket_rows(b: Ints) -> tuple[Ints, list[slice]]:
    """The query buckets with at least two queries, and their rows; `b` (n,) is ascending."""
    buckets, starts, counts = np.unique(b, return_index=True, return_counts=True)
    kept = np.flatnonzero((buckets != 0) & (counts >= 2))
    rows = [slice(int(starts[code]), int(starts[code] + counts[code])) for code in kept]
    return buckets[kept], rows


def _mean_and_covariance(rows: Vectors) -> tuple[Array, Array]:
    """Sums about a point near the mean, then moved to it; equal rows have zero variance exactly."""
    n, d = rows.shape
    origin = near_mean(rows)  # (d,)
    total, scatter = np.zeros(d), np.zeros((d, d))
    for block in row_blocks(n, d, LARGE_BLOCK):
        dev = rows[block] - origin  # (b, d)
        total += np.ones(len(dev)) @ dev
        scatter += dev.T @ dev
    shift = total / n  # (d,)
    scatter -= n * np.multiply.outer(shift, shift)
    scatter /= n - 1
    return origin + shift, scatter


def bucket_gaussians(
    query_model: Literal["positional", "full", "diagonal"],
    moments: BucketMoments,
    alpha_rot: Array,
    beta_rot: Array,
    resid_var: Array,
) -> list[Gaussian]:
    """One Gaussian per bucket, in the rotated space.

    positional: the first component has mean and variance from the regression on position; the other
    components have the mean and covariance of the bucket and are independent of the first.
    full: mean and covariance of the bucket. diagonal: mean and variances of the bucket.
    """
    if query_model == "full":
        factors = [_covariance_factor(covariance) for covariance in moments.covariance]
        return [Gaussian(*pair) for pair in zip(moments.mean, factors, strict=True)]
    if query_model == "diagonal":
        spread = np.sqrt(np.diagonal(moments.covariance, axis1=1, axis2=2))  # (g, d)
        return [Gaussian(*pair) for pair in zip(moments.mean, spread, strict=True)]
    first_means = alpha_rot[0] + beta_rot[0] * moments.position  # (g,)
    return [
        _positional(first_mean, mean, covariance, float(resid_var[0]))
        for first_mean, mean, covariance in zip(
            first_means, moments.mean, moments.covariance, strict=True
        )
    ]


def _positional(first_mean: float, mean: Array, covariance: Array, first_var: float) -> Gaussian:
    d = len(mean)
    semantic = covariance[1:, 1:].copy()  # (d - 1, d - 1)
    if d > 1:
        semantic[np.diag_indices(d - 1)] += _RELATIVE_RIDGE * float(np.trace(semantic)) / (d - 1)
    factor = np.zeros((d, d))
    factor[0, 0] = np.sqrt(first_var)
    factor[1:, 1:] = _covariance_factor(semantic)
    return Gaussian(np.concatenate([[first_mean], mean[1:]]), factor)


def _covariance_factor(covariance: Array) -> Array:
    """Lower triangular L with LLᵀ = covariance. The covariance may be singular."""
    lower: Array
    try:
        lower = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))  # root·rootᵀ is the covariance
        lower = np.asarray(np.linalg.qr(root.T, mode="r")).T
    return lower


def margin_and_deviation(W: Array, gaussian: Gaussian) -> tuple[Array, Array]:
    """Mean and standard deviation of `w·q`, each (pairs,)."""
    return W @ gaussian.mean, np.sqrt(_variance(W, gaussian.factor))


def _variance(W: Array, factor: Array) -> Array:
    """`‖Lᵀw‖²` per row of `W`; fastest if `W` is in the order of Fortran."""
    if factor.ndim == 1:
        spread = W * factor  # (pairs, d)
        return np.asarray(np.einsum("pd,pd->p", spread, spread))
    variance = np.empty(len(W))
    for rows in row_blocks(len(W), len(factor), _BLOCK):
        spread = dtrmm(1.0, factor.T, W[rows], side=1, trans_a=1)  # (b, d) W·L
        variance[rows] = np.einsum("pd,pd->p", spread, spread)
    return variance
