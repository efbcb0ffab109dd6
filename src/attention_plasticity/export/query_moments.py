"""Mean and covariance of the queries of a head over tokens, and their errors over texts.

Arrays in, arrays out; numpy only. A captured query has a weight: it stands for the tokens that were
not captured. Only ratios of weights matter. Errors come from the groups of texts, as for
plasticity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.blocks import LARGE_BLOCK, near_mean, row_blocks
from attention_plasticity.estimate.quantity import MIN_GROUPS
from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors


@dataclass(frozen=True)
class Means:
    """Means of columns over tokens, and how far each group of texts moves them."""

    value: Array  # (d,)
    influences: Array  # (g, d) first-order change of the mean with the rows of a group
    group: Ints | None  # (n,) None: not known

    @property
    def error(self) -> float:
        """Length of the standard errors / length of the means; NaN if it is not known."""
        return relative_error(self.influences, self.value, self.group)


@dataclass(frozen=True)
class QueryMoments:
    """Mean and covariance over tokens, and the error of each relative to its length."""

    mean: Array  # (d,)
    covariance: Array  # (d, d) divided by N − 1 if all N weights are equal
    products: Array  # (d, d) mean of x·xᵀ, without subtracting the mean
    mean_error: float  # NaN if texts are not known, or their groups are too few
    covariance_error: float


def column_means(X: Vectors, weight: Array, group: Ints | None) -> Means:
    """Means of the columns of `X` (n, d) with weights (n,). `group` (n,): None: not known."""
    share = weight / weight.sum()  # (n,)
    known = _known(group, len(X))
    origin = near_mean(X)  # (d,)
    sums = np.zeros((GROUPS, X.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        for number, rows in _blocks(known, X.shape[1]):
            sums[number] += share[rows] @ (X[rows] - origin)
        shift = sums.sum(axis=0)  # (d,)
        totals = np.bincount(known, share, GROUPS)  # (g,)
        return Means(origin + shift, sums - np.multiply.outer(totals, shift), group)


def query_moments(X: Vectors, weight: Array, group: Ints | None) -> QueryMoments:
    """Moments of two or more vectors `X` (n, d) with weights (n,). `group` (n,): None: not known.

    With shares s = w / Σw the covariance is Σ s (x − μ)(x − μ)ᵀ / (1 − Σ s²). This is unbiased for
    independent rows, and the sum divided by N − 1 if all weights are equal.
    """
    n, d = X.shape
    share = weight / weight.sum()  # (n,)
    known = _known(group, n)
    means = column_means(X, weight, group)
    mean = means.value  # (d,)
    scatter = np.zeros((GROUPS, d, d))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        for number, rows in _blocks(known, d):
            centered = X[rows] - mean  # (b, d)
            scatter[number] += (centered * share[rows, None]).T @ centered
        plain = scatter.sum(axis=0)  # (d, d)
        totals = np.bincount(known, share, GROUPS)  # (g,)
        on_covariance = scatter - np.multiply.outer(totals, plain)  # (g, d, d)
        return QueryMoments(
            mean,
            plain / (1.0 - share @ share),
            plain + np.multiply.outer(mean, mean),
            means.error,
            relative_error(on_covariance, plain, group),
        )


def relative_error(influences: Array, value: Array, group: Ints | None) -> float:
    """Length of the standard errors of `value` / length of `value`, from influences (g, …).

    NaN if groups are not known or too few, or if the value is zero.
    """
    groups = 0 if group is None else len(np.unique(group))
    length = float(np.linalg.norm(value))
    if groups < MIN_GROUPS or length == 0.0:
        return float("nan")
    return float(np.linalg.norm(influences) * np.sqrt(groups / (groups - 1.0)) / length)


@dataclass(frozen=True)
class TopDirection:
    """The direction in which queries are longest."""

    direction: Array  # (d,) of length 1, signed towards the mean query
    runner_up: float  # second singular value / first; near 1 the direction is arbitrary


def top_direction(moments: QueryMoments) -> TopDirection:
    """The top right singular vector of the queries with their weights."""
    values, vectors = np.linalg.eigh(moments.products)  # ascending
    direction = vectors[:, -1]  # (d,)
    if direction @ moments.mean < 0:
        direction = -direction
    first, second = float(values[-1]), float(values[-2]) if len(values) > 1 else 0.0
    ratio = np.sqrt(max(second, 0.0) / first) if first > 0 else 1.0
    return TopDirection(np.asarray(direction), float(ratio))


def _known(group: Ints | None, n: int) -> Ints:
    """(n,) the groups; one group if they are not known."""
    return np.zeros(n, np.int64) if group is None else group


def _blocks(group: Ints, d: int) -> Iterator[tuple[int, Ints]]:
    """Row numbers of every group, in blocks that fit into the CPU cache."""
    for number in np.unique(group).tolist():
        rows = np.flatnonzero(group == number)
        for block in row_blocks(len(rows), d, LARGE_BLOCK):
            yield number, rows[block]
