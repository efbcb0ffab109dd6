"""From a value per key head to budgets, and intervals of ranks. Arrays in, arrays out."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from qk_toolkit.arrays import Array

DRAWS = 2000
"""Random draws behind the interval of a rank."""
_LEVEL = 0.95


def ranks(values: Array) -> Array:
    """(n,) ranks from 1 for the largest value; equal values share their mean rank."""
    return np.asarray(rankdata(-values, method="average"), np.float64)


def budgets(rank: Array, keep: float, spread: float) -> Array:
    """(n,) shares of keys, with the mean `keep`.

    A head gets the factor 1 + `spread` of the mean at rank 1, 1 - `spread` at the last rank, and
    between them a linear function of its rank. No head gets more than 1, which is all keys. What
    heads at this limit leave over is given to the others in proportion to their factors, so the
    mean stays `keep`.

    Examples:
        >>> import numpy as np
        >>> budgets(np.array([1.0, 2.0, 3.0]), 0.25, 0.8).tolist()
        [0.45, 0.25, 0.049999999999999996]
        >>> budgets(np.array([1.0, 2.0, 3.0]), 0.75, 0.8).round(3).tolist()
        [1.0, 1.0, 0.25]
    """
    n = len(rank)
    last = max(n - 1, 1)
    factor = 1.0 + spread * (1.0 - 2.0 * (rank - 1.0) / last) if n > 1 else np.ones(n)  # (n,)
    full = np.zeros(n, np.bool_)  # heads that keep all keys
    scale = keep
    while True:
        over = ~full & (scale * factor >= 1.0)
        if not over.any():
            break
        full |= over
        if full.all():
            break
        scale = (keep * n - np.count_nonzero(full)) / factor[~full].sum()
    return np.where(full, 1.0, scale * factor)


def rank_intervals(values: Array, deviations: Array) -> tuple[Array, Array]:
    """(n,) lowest and highest rank of each head, 95 % intervals from errors of the values.

    `deviations` is (n, m): the effect of each of m independent sources of error on every value, so
    the standard error of a value is the length of its row. Heads with the same sources have
    correlated errors. Every draw adds normal errors to all values and ranks them again.
    """
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((DRAWS, deviations.shape[1])) @ deviations.T  # (draws, n)
    drawn = np.asarray(rankdata(-(values + noise), method="average", axis=1))  # (draws, n)
    tail = (1.0 - _LEVEL) / 2.0
    low, high = np.quantile(
        drawn, [tail, 1.0 - tail], axis=0, method="inverted_cdf"
    )  # (2, n): ranks that were drawn
    own = ranks(values)
    return np.minimum(low, own), np.maximum(high, own)
