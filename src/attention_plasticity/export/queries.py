"""Mean and covariance of the queries of a head over tokens, and their errors over texts.

Arrays in, arrays out; numpy only. A captured query has a weight: it stands for the tokens that were
not captured. Only ratios of weights matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.quantity import (
    Quantity,
    group_sums,
    leave_one_out,
    present_groups,
    quantity,
    ratio_of_means,
)
from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors


@dataclass(frozen=True)
class QueryMoments:
    """Mean and covariance over tokens, and the error of each relative to its length."""

    mean: Array  # (d,)
    covariance: Array  # (d, d) divided by N − 1 if all N weights are equal
    products: Array  # (d, d) mean of x·xᵀ, without subtracting the mean
    errors: dict[str, float]  # NaN if texts are not known, or their groups are too few


def mean_and_error(X: Vectors, weight: Array, group: Ints | None) -> tuple[Array, float]:
    """(d,) means of the columns of `X` (n, d) with weights (n,), and their relative error.

    `group` (n,) has the groups of texts; None: not known.
    """
    mean = np.average(X.astype(np.float64), axis=0, weights=weight)
    return mean, relative_error(ratio_of_means(np.asarray(X), weight, group), mean)


def query_moments(X: Vectors, weight: Array, group: Ints | None) -> QueryMoments:
    """Moments of two or more vectors `X` (n, d) with weights (n,) and groups of texts (n,).

    With shares s = w / Σw the covariance is Σ s (x − μ)(x − μ)ᵀ / (1 − Σ s²). This is unbiased for
    independent rows, and the sum divided by N − 1 if all weights are equal.
    """
    n, d = X.shape
    mean, mean_error = mean_and_error(X, weight, group)
    known = np.zeros(n, np.int64) if group is None else group
    share = weight / weight.sum()  # (n,)
    centred = X - mean  # (n, d)
    scaled = centred * share[:, None]  # (n, d)
    scatter = np.zeros((GROUPS, d, d))
    for number in np.unique(known).tolist():
        rows = known == number
        scatter[number] = scaled[rows].T @ centred[rows]
    w, ww = (leave_one_out(group_sums(one, known)) for one in (share, share**2))  # (1 + g)
    with np.errstate(invalid="ignore", divide="ignore"):  # nothing is left without the only group
        shift = leave_one_out(group_sums(scaled, known)) / w[:, None]  # (1 + g, d) of the means
        plain = leave_one_out(scatter) / w[:, None, None]  # (1 + g, d, d)
        plain -= shift[:, :, None] * shift[:, None, :]
        replicates = plain / (1.0 - ww / w**2)[:, None, None]  # (1 + g, d, d)
    present = present_groups(known) & (group is not None)
    error = relative_error(quantity(replicates, present), replicates[0])
    errors = {"mean_relative_error": mean_error, "covariance_relative_error": error}
    return QueryMoments(mean, replicates[0], plain[0] + np.multiply.outer(mean, mean), errors)


def relative_error(found: Quantity, value: Array) -> float:
    """Length of the standard errors of all entries / length of `value`; NaN if not known."""
    length = float(np.linalg.norm(value))
    return float(np.linalg.norm(found.influences)) / length if length else float("nan")


def top_direction(moments: QueryMoments) -> tuple[Array, float]:
    """(d,) direction of length 1 in which queries are longest, signed towards the mean query.

    With it, the second singular value of the queries divided by the first one. If this is near 1,
    the direction is arbitrary.
    """
    values, vectors = np.linalg.eigh(moments.products)  # ascending
    direction = vectors[:, -1]  # (d,)
    if direction @ moments.mean < 0:
        direction = -direction
    first, second = float(values[-1]), float(values[-2]) if len(values) > 1 else 0.0
    ratio = np.sqrt(max(second, 0.0) / first) if first > 0 else 1.0
    return np.asarray(direction), float(ratio)
