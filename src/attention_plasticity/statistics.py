"""Position in the queries and normality of the rest: the functions that the analysis is made of.

Arrays in, arrays out; numpy and scipy only. Vectors may be float32. Every sum and product is
float64. No threshold is absolute, so scaling the input never changes a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dger

from attention_plasticity.estimate.blocks import (
    near_mean,
    row_blocks,
    scale_exponent,
)
from attention_plasticity.estimate.normality import ks_normal_pvalues, skew_and_kurtosis
from qk_toolkit.arrays import Array, Vectors

__all__ = [
    "LinearFit",
    "compute_first_component_residual_stats",
    "compute_noise_normality_stats",
    "compute_scalar_position_predictability",
    "fit_multioutput_linear_regressor",
    "make_pos_rotation",
    "orientation_from_keys",
]

_EPS = float(np.finfo(np.float64).eps)


class LinearFit(NamedTuple):
    """`x_d = alpha_d + beta_d · t` for every dimension d, with its R²."""

    alpha: Array  # (d,)
    beta: Array  # (d,)
    r2: Array  # (d,)
    r2_mean: float


@dataclass(frozen=True)
class Regression:
    """A linear regression on position, with the sums of squares for R²."""

    mean: Array  # (d,)
    alpha: Array  # (d,)
    beta: Array  # (d,)
    ss_total: Array  # (d,) sum of squares about the mean
    ss_position: Array  # (d,) sum of squares explained by position
    mean_square: float  # mean squared length of a vector; rounding errors are relative to it

    @classmethod
    def of_sums(
        cls, mean: Array, squares: Array, cross: Array, t: Array, t_mean: float
    ) -> Regression:
        """From positions `t` (n,) minus their mean, and sums of n vectors about their mean.

        `squares` (d,) are sums of squares, `cross` (d,) are sums of products with positions.
        """
        ss_t, ss_total = float(t @ t), np.maximum(squares, 0.0)
        beta = cross / ss_t if ss_t > 0 else np.zeros(len(mean))
        return cls(
            mean=mean,
            alpha=mean - beta * t_mean,
            beta=beta,
            ss_total=ss_total,
            ss_position=np.minimum(beta**2 * ss_t, ss_total),
            mean_square=float((ss_total / len(t) + mean**2).sum()),
        )

    @property
    def r2(self) -> Array:
        """R² per dimension; 0 for a constant dimension."""
        r2 = np.zeros_like(self.ss_total)  # (d,)
        np.divide(self.ss_position, self.ss_total, out=r2, where=self.ss_total > 0)
        return np.minimum(r2, 1.0)

    @property
    def r2_total(self) -> float:
        """1 − ΣSS_res/ΣSS_tot over dimensions; it does not depend on the basis."""
        total = float(self.ss_total.sum())
        return min(float(self.ss_position.sum()) / total, 1.0) if total > 0 else 0.0


def fit_multioutput_linear_regressor(t: npt.ArrayLike, X: Vectors) -> LinearFit:
    """Regress every dimension of `X` on `t` by least squares.

    Args:
        t: (n,) positions, one per vector.
        X: (n, d) vectors.

    Returns:
        `alpha`, `beta` and `r2`, (d,) each, and `r2_mean`, the mean of `r2`.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import fit_multioutput_linear_regressor
        >>> t = np.arange(5)
        >>> X = np.column_stack([1.0 + 2.0 * t, [1, 0, 1, 0, 1]])  # (5, 2)
        >>> fit = fit_multioutput_linear_regressor(t, X)
        >>> fit.beta.round(6).tolist()  # the first dimension is a line, the second has no trend
        [2.0, 0.0]
        >>> fit.r2.round(6).tolist()
        [1.0, 0.0]
    """
    exponent = scale_exponent(X)
    fit = regress(np.asarray(t, np.float64), np.ldexp(X, -exponent))
    alpha, beta = np.ldexp(fit.alpha, exponent), np.ldexp(fit.beta, exponent)
    return LinearFit(alpha, beta, fit.r2, float(fit.r2.mean()))


def regress(t: Array, X: Vectors) -> Regression:
    """Regress every dimension of `X` (n, d) on `t` (n,) in one pass over the rows.

    Sums are taken about a point near the mean, then moved to the mean. This point equals the value
    of a constant column exactly, so the variance of a constant dimension is exactly zero.
    """
    n, d = X.shape
    origin = near_mean(X)  # (d,)
    t_mean = t[0] + (t - t[0]).mean()
    t_dev = t - t_mean  # (n,)
    total, squares, cross = np.zeros(d), np.zeros(d), np.zeros(d)
    for rows in row_blocks(n, d):
        dev = X[rows] - origin  # (b, d)
        total += np.ones(len(dev)) @ dev
        squares += np.einsum("nd,nd->d", dev, dev)
        cross += t_dev[rows] @ dev
    shift = total / n  # (d,) mean minus origin
    squares, cross = squares - n * shift**2, cross - t_dev.sum() * shift
    return Regression.of_sums(origin + shift, squares, cross, t_dev, t_mean)


def compute_scalar_position_predictability(
    p: npt.ArrayLike, X: Vectors, beta: Array
) -> tuple[float, float, float]:
    """Predict `log2(p+1)` from the projection on `beta`: R², MAE of the mean, MAE of the fit.

    If `beta` is zero, R² is 0 and both errors are that of the mean. Works at any scale of `X`.

    Args:
        p: (n,) positions, one per vector.
        X: (n, d) vectors.
        beta: (d,) direction; its length has no effect.

    Returns:
        Three numbers. MAE is the mean absolute error, in units of `log2(p+1)`.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import compute_scalar_position_predictability
        >>> p = np.array([0, 1, 3, 7])  # log2(p+1) is 0, 1, 2, 3
        >>> X = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
        >>> found = compute_scalar_position_predictability(p, X, beta=np.array([1.0, 0.0]))
        >>> np.round(found, 6).tolist()  # the first dimension predicts the position exactly
        [1.0, 1.0, 0.0]
    """
    X = np.ldexp(X, -scale_exponent(X))
    direction = _unit(beta)  # (d,)
    scores = np.concatenate([X[rows] @ direction for rows in row_blocks(*X.shape)])  # (n,)
    return predictability_from_scores(np.asarray(p, np.float64), scores)


def predictability_from_scores(p: Array, scores: Array) -> tuple[float, float, float]:
    """Like `compute_scalar_position_predictability`, from the projections `scores` (n,)."""
    y = np.log2(p + 1)  # (n,)
    fit = regress(scores, y[:, None])
    baseline = float(np.abs(y - fit.mean[0]).mean())
    error = float(np.abs(y - fit.alpha[0] - fit.beta[0] * scores).mean())
    return float(fit.r2[0]), baseline, error


def orientation_from_keys(b_k: npt.ArrayLike, X_k: Vectors) -> Array:
    """±1 per dimension: sign of the mean over key buckets of the bucket means; +1 for 0.

    Args:
        b_k: (n,) buckets, one per key.
        X_k: (n, d) keys.

    Returns:
        (d,) signs.

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import orientation_from_keys
        >>> keys = np.array([[1.0, -2.0], [3.0, -2.0], [1.0, -4.0]])
        >>> orientation_from_keys(b_k=[0, 0, 1], X_k=keys).tolist()
        [1.0, -1.0]
    """
    codes = np.unique(np.asarray(b_k), return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))
    means = np.zeros(X_k.shape[1])  # (d,)
    for start, end in zip(np.r_[0, ends[:-1]], ends, strict=True):
        means += _column_sums(X_k, order[start:end]) / (end - start)
    return np.where(means < 0, -1.0, 1.0)


def make_pos_rotation(beta: npt.ArrayLike) -> Array:
    """The orthogonal reflection H that maps `beta/‖beta‖` to the first axis.

    H is symmetric. It is the identity if `beta` is zero.

    Args:
        beta: (d,) direction of position, the slopes of the regression.

    Returns:
        (d, d) matrix H. `X @ H` rotates vectors `X` (n, d).

    Examples:
        >>> import numpy as np
        >>> from attention_plasticity import make_pos_rotation
        >>> beta = np.array([3.0, 4.0])
        >>> H = make_pos_rotation(beta)
        >>> np.allclose(beta @ H, [5.0, 0.0])  # 5 is the length of beta
        True
        >>> np.allclose(H @ H.T, np.eye(2))
        True
    """
    u = reflection_vector(np.asarray(beta, np.float64))
    return np.eye(len(u)) - 2.0 * np.outer(u, u)


def reflection_vector(beta: Array) -> Array:
    """Unit `u` (d,): `H = I − 2uuᵀ` maps `beta/‖beta‖` to e1. Zeros if H is the identity."""
    if not beta.any():
        return np.zeros_like(beta)
    u = _unit(beta)  # (d,)
    rest = float(u[1:] @ u[1:])
    # β̂₀ − 1, computed without cancellation when β̂ is close to e1
    u[0] = -rest / (1.0 + u[0]) if u[0] > 0 else u[0] - 1.0
    return _unit(u)


def rotate(X: Vectors, origin: Array | float, signs: Array, u: Array) -> Array:
    """(n, d) `(X − origin)·diag(signs)·H` as a rank-one update, in the order of Fortran."""
    rotated = np.empty(X.shape, order="F")
    for rows in row_blocks(*X.shape):
        block = np.subtract(X[rows], origin, dtype=np.float64)  # (b, d)
        block *= signs
        along = block @ (2.0 * u)  # (b,)
        rotated[rows] = dger(-1.0, u, along, a=block.T, overwrite_a=1).T  # block − along·uᵀ
    return rotated


def residual_variance(residuals: Array, mean_square: float) -> Array:
    """Variance per dimension of `residuals` (d, n), with n − 2 degrees of freedom.

    If position explains a dimension fully, its residuals are rounding errors. These grow with n
    and with the size of the queries. Variances below this bound are set to zero.
    """
    n = residuals.shape[1]
    squares = np.einsum("dn,dn->d", residuals, residuals)
    noise = n * mean_square * (_EPS * max(64, n / 4)) ** 2
    variance: Array = np.where(squares > noise, squares, 0.0) / (n - 2)
    return variance


def _unit(x: Array) -> Array:
    """`x/‖x‖`, or zeros. Scaled first, against overflow and underflow of squares."""
    scale = np.abs(x).max()
    if scale == 0:
        return np.zeros_like(x)
    scaled = x / scale
    unit: Array = scaled / np.linalg.norm(scaled)
    return unit


def _column_sums(X: Vectors, chosen: npt.NDArray[np.intp]) -> Array:
    total = np.zeros(X.shape[1])
    for rows in row_blocks(len(chosen), X.shape[1]):
        total += X[chosen[rows]].sum(axis=0, dtype=np.float64)
    return total


def compute_first_component_residual_stats(
    residuals: Array, resid_var: Array
) -> tuple[float, float, float]:
    """Skewness, excess kurtosis and KS p-value of the first dimension of `residuals`.

    All are NaN if this dimension has no variance.

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

    Dimensions without variance are ignored; NaN if no dimension remains.

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


def _median(values: Array) -> float:
    valid = values[~np.isnan(values)]
    return float(np.median(valid)) if len(valid) else float("nan")
