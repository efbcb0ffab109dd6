"""Powers of two that bring vectors into the range in which nothing over- or underflows.

No metric but ‖β‖ depends on the scale of queries or keys, but squares and fourth powers of their
values are computed on the way. Values between 2^-200 and 2^127 keep all of these inside float64.
Multiplying by a power of two changes no bit of a result. Float32 is always in that range. Numpy
only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating[Any]]

_LARGEST, _SMALLEST = 2.0**127, 2.0**-200
_TOP = 100  # exponent of the largest value after scaling
SPAN = 300  # powers of two between the largest and the smallest value that can be scaled together


def scale_exponent(tops: Array) -> int:
    """The power of two to divide by, 0 when nothing has to be done.

    `tops` are the largest absolute values of the groups (dimensions, buckets, rows) that must stay
    in range, each on its own. Raises a `ValueError` when they lie too far apart.
    """
    known = tops[tops > 0]
    if len(known) == 0 or not np.isfinite(known).all():
        return 0
    smallest, largest = float(known.min()), float(known.max())
    if smallest >= _SMALLEST and largest <= _LARGEST:
        return 0
    exponent = int(np.frexp(largest)[1]) - _TOP
    if np.frexp(smallest)[1] < exponent + _TOP - SPAN:
        raise ValueError(
            f"values differ by more than a factor of 2^{SPAN}: {smallest:.3g} is the largest of "
            f"some, {largest:.3g} of others"
        )
    return exponent


def rescaled(X: Vectors, exponent: int) -> Vectors:
    """`X / 2^exponent`, which is exact; `X` itself when the exponent is 0."""
    return np.ldexp(X, -exponent) if exponent else X


def is_wide(X: Vectors) -> bool:
    """Whether the numbers of `X` can lie outside the range at all."""
    return X.dtype.itemsize > 4


def column_tops(X: Vectors) -> Array:
    """(d,) largest absolute value of every dimension of `X` (n, d)."""
    return _tops(X, axis=0) if len(X) else np.zeros(X.shape[1])


def row_tops(X: Vectors) -> Array:
    """(n,) largest absolute value of every row of `X` (n, d)."""
    return _tops(X, axis=1)


def _tops(X: Vectors, axis: int) -> Array:
    tops: Array = np.maximum(X.max(axis=axis), -X.min(axis=axis)).astype(np.float64)
    return tops


def bucket_tops(X: Vectors, b: npt.NDArray[np.int64]) -> Array:
    """Largest absolute value of every bucket of the rows of `X` (n, d)."""
    codes = np.unique(b, return_inverse=True)[1]
    tops = np.zeros(int(codes.max(initial=-1)) + 1)
    np.maximum.at(tops, codes, row_tops(X))
    return tops


def require_range(name: str, tops: Array) -> None:
    """Raise a `ValueError` that says by what to multiply an array that is out of range."""
    exponent = scale_exponent(tops)
    if exponent:
        raise ValueError(
            f"{name} is out of range; multiply {name} (and what was computed from it) by "
            f"2**{-exponent}, which changes no result but ‖β‖"
        )
