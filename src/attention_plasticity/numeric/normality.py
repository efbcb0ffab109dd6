"""Normality of the residuals: skewness, kurtosis, Kolmogorov–Smirnov tests.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.blocks import LARGE_BLOCK, row_blocks
from attention_plasticity.numeric.kolmogorov import ks_normal_pvalues
from attention_plasticity.numeric.scaling import column_maxima, require_range, row_maxima

Array = npt.NDArray[np.float64]


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
