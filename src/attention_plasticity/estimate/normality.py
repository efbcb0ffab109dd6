"""Skewness, kurtosis and Kolmogorov–Smirnov tests of many columns at once.

Arrays in, arrays out; numpy and scipy only. For the KS statistic, the normal CDF is not computed
for every value. Both CDFs are monotone, so the values at the ends of a block of sorted values bound
the distance inside. Only blocks whose bound is above the largest distance at the ends can contain
the maximum. P-values of small samples are scipy's. Those of large samples come from the Pelz–Good
expansion: it is within 1e-6 of scipy's, which need .07 s for 64 columns of 2,000 values and 4 s for
60,000.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from attention_plasticity.estimate.blocks import row_blocks
from qk_toolkit.arrays import Array

_EXACT_BELOW = 400  # below this n, scipy's exact p-value replaces the expansion
_TAIL_FROM = 3.0  # of √n·D: above, p is below 3e-8 and the expansion suffers from cancellation


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
    """P(D_n ≥ statistic), within 1e-6 of scipy's `kstwo.sf`."""
    if n < _EXACT_BELOW:
        from scipy.stats import kstwo  # slow to import, and needed only for small samples

        exact: Array = kstwo.sf(statistics, n)
        return exact
    x = np.sqrt(n) * statistics
    tail = 2.0 * np.exp(-2.0 * (x + 1.0 / (6.0 * np.sqrt(n))) ** 2)
    body = 1.0 - _pelz_good_cdf(np.clip(x, 0.05, _TAIL_FROM), n)
    return np.clip(np.where(x > _TAIL_FROM, tail, body), 0.0, 1.0)


def _pelz_good_cdf(x: Array, n: int) -> Array:
    """Pelz and Good (1976): P(√n·D_n ≤ x) to order n^(-3/2), for moderate x."""
    x = x[..., None]  # the last axis runs over the terms of the series
    odd = np.pi**2 * (np.arange(12) + 0.5) ** 2  # π²(k+½)², k ≥ 0; k < 0 mirrors it
    even = np.pi**2 * np.arange(1, 13) ** 2.0  # π²k², k ≥ 1
    odd_term = 2.0 * np.exp(-odd / (2 * x**2))
    even_term = 2.0 * np.exp(-even / (2 * x**2))
    k0 = (odd_term / x).sum(-1)
    k1 = ((odd - x**2) * odd_term / (6 * x**4)).sum(-1)
    k2 = (
        (6 * x**6 + 2 * x**4 + odd * (2 * x**4 - 5 * x**2) + odd**2 * (1 - 2 * x**2))
        * odd_term
        / (72 * x**7)
    ).sum(-1) - (even * even_term / (36 * x**3)).sum(-1)
    k3 = (
        (
            odd**3 * (5 - 30 * x**2)
            + odd**2 * (-60 * x**2 + 212 * x**4)
            + odd * (135 * x**4 - 96 * x**6)
            - 30 * x**6
            - 90 * x**8
        )
        * odd_term
        / (6480 * x**10)
    ).sum(-1) + ((3 * even * x**2 - even**2) * even_term / (108 * x**6)).sum(-1)
    cdf: Array = np.sqrt(np.pi / 2) * (k0 + k1 / n**0.5 + k2 / n + k3 / n**1.5)
    return cdf
