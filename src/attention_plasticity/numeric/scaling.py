"""Scaling of vectors by powers of two, against overflow and underflow. Numpy only.

The analysis computes squares and fourth powers of values. They fit into float64 if the values are
between 2^-200 and 2^127. Float32 values are always in this range. Scaling by a power of two is
exact, and no metric except ‖β‖ depends on the scale of queries or keys.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qk_toolkit.arrays import Array, Vectors

_LARGEST, _SMALLEST = 2.0**127, 2.0**-200
_TARGET_EXPONENT = 100  # of the largest value after scaling
SPAN = 300  # largest supported ratio of two maxima, as an exponent of two


def scale_exponent(maxima: Array) -> int:
    """Exponent of the power of two to divide by; 0 if all values are in range.

    `maxima` are the largest absolute values of dimensions, buckets or rows. All of them must be in
    range after scaling. Raises a `ValueError` if they differ by more than 2^300.
    """
    nonzero = maxima[maxima > 0]
    if len(nonzero) == 0 or not np.isfinite(nonzero).all():
        return 0
    smallest, largest = float(nonzero.min()), float(nonzero.max())
    if smallest >= _SMALLEST and largest <= _LARGEST:
        return 0
    exponent = int(np.frexp(largest)[1]) - _TARGET_EXPONENT
    if np.frexp(smallest)[1] < exponent + _TARGET_EXPONENT - SPAN:
        raise ValueError(
            f"values differ by more than a factor of 2^{SPAN}: the largest value of one dimension, "
            f"bucket or row is {smallest:.3g}, of another {largest:.3g}"
        )
    return exponent


def rescaled(X: Vectors, exponent: int) -> Vectors:
    """`X / 2^exponent`, exactly; `X` itself if the exponent is 0."""
    return np.ldexp(X, -exponent) if exponent else X


def wider_than_float32(X: Vectors) -> bool:
    """Whether values of `X` can be out of range: its type is wider than float32."""
    return X.dtype.itemsize > 4


def column_maxima(X: Vectors) -> Array:
    """(d,) largest absolute value of every dimension of `X` (n, d)."""
    return _maxima(X, axis=0) if len(X) else np.zeros(X.shape[1])


def row_maxima(X: Vectors) -> Array:
    """(n,) largest absolute value of every row of `X` (n, d)."""
    return _maxima(X, axis=1)


def _maxima(X: Vectors, axis: int) -> Array:
    maxima: Array = np.maximum(X.max(axis=axis), -X.min(axis=axis)).astype(np.float64)
    return maxima


def bucket_maxima(X: Vectors, b: npt.NDArray[np.int64]) -> Array:
    """Largest absolute value of every bucket of the rows of `X` (n, d)."""
    codes = np.unique(b, return_inverse=True)[1]
    maxima = np.zeros(int(codes.max(initial=-1)) + 1)
    np.maximum.at(maxima, codes, row_maxima(X))
    return maxima


def require_range(name: str, maxima: Array) -> None:
    """Raise a `ValueError` if an array is out of range. The message gives the factor to use."""
    exponent = scale_exponent(maxima)
    if exponent:
        raise ValueError(
            f"{name} is out of range; multiply {name} and all arrays computed from it by "
            f"2**{-exponent}; only ‖β‖ changes"
        )
