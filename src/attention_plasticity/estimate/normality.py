"""Skewness, kurtosis and Kolmogorov–Smirnov tests of many columns at once.

Arrays in, arrays out; numpy and scipy only. The KS statistic is found without a full sort. Values
are counted in narrow bins. Both CDFs are monotone, so the counts give an upper bound of their
distance inside each bin. Only bins whose bound exceeds the distance at the bin edges can contain
the maximum; only their values are sorted. P-values of small samples are scipy's. Those of large
samples come from the Pelz–Good expansion: it is within 1e-6 of scipy's, which need .07 s for 64
columns of 2,000 values and 4 s for 60,000.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from attention_plasticity.estimate.blocks import LARGE_BLOCK, row_blocks
from qk_toolkit.arrays import Array

_BIN_RANGE = 5.0  # bins cover ±5 standard deviations; one open bin on each side has the rest
_CHUNK_ELEMENTS = 1 << 17
_EXACT_BELOW = 400  # below this n, scipy's exact p-value replaces the expansion
_TAIL_FROM = 3.0  # of √n·D: above, p is below 3e-8 and the expansion suffers from cancellation


def skew_and_kurtosis(columns: Array) -> tuple[Array, Array]:
    """Bias-corrected skewness and excess kurtosis of each row of (d, n).

    NaN if the variance is zero, or if n is too small for the correction (below 3 and 4 values).
    """
    d, n = columns.shape
    m2, m3, m4 = np.empty(d), np.empty(d), np.empty(d)
    for rows in row_blocks(d, n, LARGE_BLOCK):
        dev = columns[rows] - columns[rows].mean(axis=1, keepdims=True)  # (b, n)
        square = dev * dev
        m2[rows] = square.mean(axis=1)
        m3[rows] = np.einsum("dn,dn->d", square, dev) / n
        m4[rows] = np.einsum("dn,dn->d", square, square) / n
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
    n = columns.shape[1]
    count = len(columns) if chosen is None else len(chosen)
    bins = min(1 << 14, 1 << int(np.ceil(np.log2(20 * np.sqrt(n)))))
    edges = np.linspace(-_BIN_RANGE, _BIN_RANGE, bins + 1)
    cdf = np.concatenate([[0.0], ndtr(edges), [1.0]])  # (bins + 3,) with the two open bins
    step = max(1, _CHUNK_ELEMENTS // n)
    statistics = np.empty(count)
    for start in range(0, count, step):
        part = slice(start, start + step)
        chunk = columns[part if chosen is None else chosen[part]]  # (c, n)
        statistics[part] = _statistics_of_chunk(chunk, scale[part], cdf)
    return statistics


def _statistics_of_chunk(columns: Array, scale: Array, cdf: Array) -> Array:
    c, n = columns.shape
    bins = len(cdf) - 1
    # The bin number is a monotone function of the value, so ranks from bin counts are exact.
    base = np.arange(c)[:, None] * float(bins)  # each column has its own bins
    slot = columns * ((bins - 2) / (2 * _BIN_RANGE) / scale[:, None])  # (c, n)
    slot += base + bins / 2
    np.clip(slot, base, base + bins - 1.0, out=slot)
    flat = slot.astype(np.intp).reshape(-1)
    counts = np.bincount(flat, minlength=c * bins).reshape(c, bins)
    after = np.cumsum(counts, axis=1)  # values up to the end of each bin
    before = after - counts
    at_edges = np.abs(after / n - cdf[1:]).max(axis=1)  # (c,) largest distance at bin edges
    bound = np.maximum(after / n - cdf[:-1], cdf[1:] - before / n)  # (c, bins)
    candidate_bins = (bound >= at_edges[:, None] - 1e-12) & (counts > 0)
    candidates = np.flatnonzero(candidate_bins.reshape(-1)[flat])  # values that may be the maximum
    slots = flat[candidates]
    values = columns.reshape(-1)[candidates] / scale[slots // bins]
    order = np.lexsort((values, slots))
    values, slots = values[order], slots[order]
    firsts = np.flatnonzero(np.diff(slots, prepend=-1))
    bin_starts = np.repeat(firsts, np.diff(firsts, append=len(slots)))
    rank = before.reshape(-1)[slots] + np.arange(len(slots)) - bin_starts  # values strictly below
    level = ndtr(values)
    distance = np.maximum((rank + 1) / n - level, level - rank / n)
    column_starts = np.searchsorted(slots, np.arange(c) * bins)
    statistics: Array = np.maximum.reduceat(distance, column_starts)
    return statistics


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
