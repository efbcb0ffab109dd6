"""Normality of the residuals: skewness, kurtosis, Kolmogorov–Smirnov tests.

Arrays in, arrays out; numpy and scipy only.

Exact Kolmogorov–Smirnov tests against the normal distribution, for many columns at once. The
statistic is found without a full sort. Values are counted in narrow bins. Both CDFs are monotone,
so the counts give an upper bound of their distance inside each bin. Only bins whose bound exceeds
the distance at the bin edges can contain the maximum; only their values are sorted. The p-value
comes from the Pelz–Good expansion.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, ndtr, rgamma, smirnov

from attention_plasticity.numeric.blocks import LARGE_BLOCK, row_blocks
from attention_plasticity.numeric.scaling import column_maxima, require_range, row_maxima
from qk_toolkit.arrays import Array

_BIN_RANGE = 5.0  # bins cover ±5 standard deviations; one open bin on each side has the rest
_CHUNK_ELEMENTS = 1 << 17
_EXACT_BELOW = 500  # below this n, the exact p-value replaces the expansion
_EXACT_TAIL_BELOW = 1000  # below this n, the exact p-value replaces the expansion in the tail
_BOTH_SIDES = 2.2  # of n·D²: above, the probability of such a distance on both sides is below 1e-7
_TAIL_FROM = 3.0  # of √n·D: above, p is below 3e-8 and the expansion suffers from cancellation


def compute_first_component_residual_stats(
    residuals: Array, resid_var: Array
) -> tuple[float, float, float]:
    """Skewness, excess kurtosis and KS p-value of the first dimension of `residuals`.

    All are NaN if this dimension has no variance. Raises a `ValueError` for residuals out of the
    range 2^-200 to 2^127.

    Args:
        residuals: (n, d) rotated queries minus their fit on position.
        resid_var: (d,) variance of every dimension of the residuals.

    Returns:
        Three numbers. The p-value is that of a Kolmogorov–Smirnov test against a normal
            distribution with mean 0 and variance `resid_var[0]`.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import compute_first_component_residual_stats
        >>> even = np.linspace(-1.0, 1.0, 101)  # a uniform distribution
        >>> residuals = np.column_stack([even, even**2])  # (101, 2)
        >>> found = compute_first_component_residual_stats(residuals, residuals.var(axis=0))
        >>> skewness, kurtosis, p_value = found
        >>> round(abs(skewness), 6), round(kurtosis, 6)  # symmetric, with thin tails
        (0.0, -1.2)
    """
    first = residuals[:, :1].T  # (1, n)
    if resid_var[0] == 0:
        return float("nan"), float("nan"), float("nan")
    require_range("residuals", row_maxima(first))
    skew, kurt = skew_and_kurtosis(first)
    p = ks_normal_pvalues(first, np.sqrt(resid_var[:1]))
    return float(skew[0]), float(kurt[0]), float(p[0])


def compute_noise_normality_stats(
    residuals: Array,
    resid_var: Array,
    normality_max_dims: int = 64,
    p_alpha: float = 0.01,
    seed: int = 0,
) -> tuple[float, float, float, float]:
    """Normality of the semantic dimensions (all but the first) of `residuals`.

    Dimensions without variance are ignored; NaN if no dimension remains. Raises a `ValueError` for
    residuals out of the range 2^-200 to 2^127.

    Args:
        residuals: (n, d) rotated queries minus their fit on position.
        resid_var: (d,) variance of every dimension of the residuals.
        normality_max_dims: most dimensions of the Kolmogorov–Smirnov (KS) test.
        p_alpha: level of the KS test.
        seed: these dimensions are drawn by `default_rng(seed)`.

    Returns:
        Four numbers: medians over dimensions of |skewness|, |excess kurtosis| and the KS p-value,
            and the fraction of p-values below `p_alpha`.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import compute_noise_normality_stats
        >>> residuals = np.random.default_rng(0).normal(size=(1000, 3))
        >>> residuals[:, 2] **= 2  # the second of two semantic dimensions is not normal
        >>> found = compute_noise_normality_stats(residuals, residuals.var(axis=0))
        >>> found[3]  # one of two dimensions has a p-value below 0.01
        0.5
    """
    varying = 1 + np.flatnonzero(resid_var[1:] > 0)
    nan = float("nan")
    if len(varying) == 0:
        return nan, nan, nan, nan
    require_range("residuals", column_maxima(residuals)[varying])
    semantic = np.arange(1, residuals.shape[1])
    if len(semantic) > normality_max_dims:
        rng = np.random.default_rng(seed)
        semantic = np.sort(rng.choice(semantic, normality_max_dims, replace=False))
    tested = semantic[resid_var[semantic] > 0]
    columns = residuals.T  # (d, n)
    all_vary = len(varying) == len(columns) - 1
    skew, kurt = skew_and_kurtosis(columns[1:] if all_vary else columns[varying])
    if len(tested) == 0:
        return _median(np.abs(skew)), _median(np.abs(kurt)), nan, nan
    all_tested = len(tested) == len(columns) - 1
    p = ks_normal_pvalues(
        columns[1:] if all_tested else columns,
        np.sqrt(resid_var[tested]),
        None if all_tested else tested,
    )
    return (
        _median(np.abs(skew)),
        _median(np.abs(kurt)),
        _median(p),
        float((p < p_alpha).mean()),
    )


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


def _median(values: Array) -> float:
    valid = values[~np.isnan(values)]
    return float(np.median(valid)) if len(valid) else float("nan")


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
    """P(D_n ≥ statistic), within 4e-6 of scipy's `kstwo.sf`, which is not exact from n = 141 on."""
    if n < _EXACT_BELOW:
        return np.array([_exact_pvalue(float(statistic), n) for statistic in statistics])
    x = np.sqrt(n) * statistics
    body = 1.0 - _pelz_good_cdf(np.clip(x, 0.05, _TAIL_FROM), n)
    if n < _EXACT_TAIL_BELOW:
        far, tail = n * statistics**2 > _BOTH_SIDES, 2.0 * smirnov(n, statistics)
    else:
        far, tail = x > _TAIL_FROM, 2.0 * np.exp(-2.0 * (x + 1.0 / (6.0 * np.sqrt(n))) ** 2)
    return np.clip(np.where(far, tail, body), 0.0, 1.0)


def _exact_pvalue(statistic: float, n: int) -> float:
    """P(D_n ≥ statistic) for a small n. `scipy.stats` has it too, but takes a second to import.

    In the tail it is twice the one-sided probability, because both sides are hardly ever so far.
    """
    if math.isnan(statistic):
        return statistic
    if n * statistic <= 0.5:
        return 1.0
    if statistic >= 1.0:
        return 0.0
    if n * statistic**2 > _BOTH_SIDES:
        return min(1.0, 2.0 * float(smirnov(n, statistic)))
    return min(max(1.0 - _matrix_cdf(statistic, n), 0.0), 1.0)


def _matrix_cdf(d: float, n: int) -> float:
    """Marsaglia, Tsang and Wang (2003): P(D_n < d) = n!/nⁿ · (Hⁿ)ₖₖ."""
    k = int(n * d) + 1
    h, m = k - n * d, 2 * k - 1
    i = np.arange(m)
    H = np.tri(m, k=1)  # (m, m)
    H[:, 0] -= h ** (i + 1)
    H[-1] -= h ** (m - i)
    H[-1, 0] += max(0.0, 2.0 * h - 1.0) ** m
    H *= rgamma(np.maximum(i[:, None] - i, 0) + (i[:, None] >= i) + 1.0)  # 1 / (i − j + 1)!
    power, log_scale = np.eye(m), float(gammaln(n + 1)) - n * math.log(n)
    square, log_square = H, 0.0
    while n:
        if n % 2:
            power, log_scale = power @ square, log_scale + log_square
        square, log_square = square @ square, 2.0 * log_square
        size = square.max()  # against overflow
        square, log_square = square / size, log_square + math.log(size)
        n //= 2
    return float(power[k - 1, k - 1]) * math.exp(log_scale)


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
