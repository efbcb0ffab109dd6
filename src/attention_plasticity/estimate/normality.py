"""Skewness, kurtosis and Kolmogorov–Smirnov tests of many columns at once.

Arrays in, arrays out; numpy and scipy only. For the KS statistic, the normal CDF is not computed
for every value. Both CDFs are monotone, so the values at the ends of a block of sorted values bound
the distance inside. Only blocks whose bound is above the largest distance at the ends can contain
the maximum. P-values of small samples are scipy's. Those of large samples are those of the limiting
distribution at a corrected distance: within 5e-5 of scipy's, which need .07 s for 64 columns of
2,000 values and 4 s for 60,000.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import kolmogorov, ndtr

from attention_plasticity.estimate.blocks import row_blocks
from qk_toolkit.arrays import Array

_EXACT_BELOW = 400  # below this n, p-values are scipy's exact ones


def skew_and_kurtosis(columns: Array) -> tuple[Array, Array]:
    """Bias-corrected skewness and excess kurtosis of each row of (d, n).

    NaN if the variance is zero, or if n is too small for the correction (below 3 and 4 values).
    """
    d, n = columns.shape
    m2, m3, m4 = np.empty(d), np.empty(d), np.empty(d)
    for rows in row_blocks(d, n):
        dev = columns[rows] - columns[rows].mean(axis=1, keepdims=True)  # (b, n)
        square = dev * dev
        m2[rows] = square.mean(axis=1)
        m3[rows] = np.vecdot(square, dev) / n
        m4[rows] = np.vecdot(square, square) / n
    nan = np.full(d, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        g1 = m3 / m2**1.5
        g2 = m4 / m2**2 - 3.0
    skew = g1 * np.sqrt(n * (n - 1)) / (n - 2) if n > 2 else nan
    kurt = ((n + 1) * g2 + 6) * (n - 1) / ((n - 2) * (n - 3)) if n > 3 else nan
    return skew, kurt


def ks_normal_pvalues(
    columns: Array, scale: Array, chosen: npt.NDArray[np.intp] | None = None
) -> Array:
    """P-values of `kstest(column / scale, "norm")` for the (chosen) rows of `columns` (m, n)."""
    return ks_pvalues(ks_normal_statistics(columns, scale, chosen), columns.shape[1])


def ks_normal_statistics(
    columns: Array, scale: Array, chosen: npt.NDArray[np.intp] | None = None
) -> Array:
    """Largest distance between the empirical CDF of each column / scale and the normal CDF."""
    count = len(columns) if chosen is None else len(chosen)
    statistics = np.empty(count)
    for part in row_blocks(count, columns.shape[1]):
        values = np.sort(columns[part if chosen is None else chosen[part]], axis=1)  # (c, n)
        statistics[part] = _largest_distance(values, scale[part, None])
    return statistics


def _largest_distance(values: Array, scale: Array) -> Array:
    """(c,) largest distance between the two CDFs, for sorted values (c, n) / scale (c, 1)."""
    n = values.shape[1]
    size = max(1, round(math.sqrt(n) / 10))  # of a block; it takes the least time
    ends = np.append(np.arange(0, n - 1, size), n - 1)  # (blocks + 1,) places of ends of blocks
    level = ndtr(values[:, ends] / scale)  # (c, blocks + 1)
    found: Array = np.maximum((ends + 1) / n - level, level - ends / n).max(axis=1)
    bound = np.maximum((ends[1:] + 1) / n - level[:, :-1], level[:, 1:] - ends[:-1] / n)
    row, block = np.nonzero(bound >= found[:, None])
    place = np.minimum(ends[block, None] + np.arange(size), n - 1)  # (m, size)
    level = ndtr(values[row[:, None], place] / scale[row])
    inside = np.maximum((place + 1) / n - level, level - place / n).max(axis=1)  # (m,)
    np.maximum.at(found, row, inside)
    return found


def ks_pvalues(statistics: Array, n: int) -> Array:
    """P(D_n ≥ statistic), within 5e-5 of scipy's `kstwo.sf`."""
    if n < _EXACT_BELOW:
        from scipy.stats import kstwo  # slow to import, and needed only for small samples

        exact: Array = kstwo.sf(statistics, n)
        return exact
    x = np.sqrt(n) * statistics
    p: Array = kolmogorov(x + 1.0 / (6.0 * np.sqrt(n)) + (x - 1.0) / (4.0 * n))
    return p
