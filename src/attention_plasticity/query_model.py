"""Queries of a bucket as one Gaussian: a mean and a factor F of the covariance, Σ = FFᵀ.

Arrays in, arrays out; numpy only. The three models differ only in how they make μ and Σ; to the
scorer they are the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attention_plasticity.statistics import row_blocks

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.floating[Any]]

_RELATIVE_RIDGE = 1e-12


@dataclass(frozen=True)
class BucketMoments:
    """Mean and covariance of the queries of every bucket that has at least two of them."""

    bucket: Ints  # (g,) ascending, without bucket 0
    count: Ints  # (g,)
    position: Array  # (g,) mean position τ
    mean: Array  # (g, d)
    covariance: Array  # (g, d, d), n − 1 degrees of freedom


@dataclass(frozen=True)
class Gaussian:
    """N(mean, FFᵀ). A one-dimensional factor stands for a diagonal matrix."""

    mean: Array  # (d,)
    factor: Array  # (d, r) or (d,)


def bucket_moments(p: Array, b: Ints, X: Vectors) -> BucketMoments:
    """Moments of the query buckets the metric is defined on: not bucket 0, two queries or more."""
    buckets, starts, counts = np.unique(b, return_index=True, return_counts=True)
    is_sorted = bool((b[1:] >= b[:-1]).all())
    order = None if is_sorted else np.argsort(b, kind="stable")
    if not is_sorted:
        starts = np.cumsum(counts) - counts
    kept = np.flatnonzero((buckets != 0) & (counts >= 2))
    d = X.shape[1]
    mean, covariance = np.empty((len(kept), d)), np.empty((len(kept), d, d))
    position = np.empty(len(kept))
    for slot, code in enumerate(kept):
        members: slice | npt.NDArray[np.intp] = slice(starts[code], starts[code] + counts[code])
        if order is not None:
            members = order[members]
        mean[slot], covariance[slot] = _mean_and_covariance(X[members])
        positions = p[members]
        position[slot] = positions[0] + (positions - positions[0]).mean()
    return BucketMoments(buckets[kept], counts[kept], position, mean, covariance)


def _mean_and_covariance(rows: Vectors) -> tuple[Array, Array]:
    """Sums about the first row, so that equal rows have a covariance of exactly zero."""
    n, d = rows.shape
    origin = rows[0].astype(np.float64)  # (d,)
    mean = origin + _block_sum(rows, origin) / n
    scatter = np.zeros((d, d))
    for block in row_blocks(n, d):
        dev = rows[block] - mean  # (b, d)
        scatter += dev.T @ dev
    return mean, scatter / (n - 1)


def _block_sum(rows: Vectors, origin: Array) -> Array:
    total = np.zeros_like(origin)
    for block in row_blocks(*rows.shape):
        dev = rows[block] - origin  # (b, d)
        total += np.ones(len(dev)) @ dev
    return total


def bucket_gaussians(
    query_model: Literal["positional", "full", "diagonal"],
    moments: BucketMoments,
    alpha_rot: Array,
    beta_rot: Array,
    resid_var: Array,
) -> list[Gaussian]:
    """One Gaussian per bucket, in the rotated space.

    positional: the first component follows the regression on position, the others have the
    bucket's mean and covariance, and the two blocks are independent. full: the bucket's mean and
    covariance. diagonal: the bucket's mean and variances.
    """
    if query_model == "full":
        factors = [covariance_factor(covariance) for covariance in moments.covariance]
        return [Gaussian(*pair) for pair in zip(moments.mean, factors, strict=True)]
    if query_model == "diagonal":
        spread = np.sqrt(np.diagonal(moments.covariance, axis1=1, axis2=2))  # (g, d)
        return [Gaussian(*pair) for pair in zip(moments.mean, spread, strict=True)]
    first = alpha_rot[0] + beta_rot[0] * moments.position  # (g,)
    return [
        _positional(at, mean, covariance, float(resid_var[0]))
        for at, mean, covariance in zip(first, moments.mean, moments.covariance, strict=True)
    ]


def _positional(first_mean: float, mean: Array, covariance: Array, first_var: float) -> Gaussian:
    d = len(mean)
    semantic = covariance[1:, 1:].copy()  # (d - 1, d - 1)
    if d > 1:
        semantic[np.diag_indices(d - 1)] += _RELATIVE_RIDGE * float(np.trace(semantic)) / (d - 1)
    block = covariance_factor(semantic)  # (d - 1, r)
    factor = np.zeros((d, 1 + block.shape[1]))
    factor[0, 0] = np.sqrt(first_var)
    factor[1:, 1:] = block
    return Gaussian(np.concatenate([[first_mean], mean[1:]]), factor)


def covariance_factor(covariance: Array) -> Array:
    """F with FFᵀ = covariance: Cholesky where it exists, else from the eigenvectors."""
    try:
        lower: Array = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
        return lower
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        positive = values > 0
        factor: Array = vectors[:, positive] * np.sqrt(values[positive])
        return factor
