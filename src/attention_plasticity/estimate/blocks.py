"""Blocks of rows that fit into the CPU cache, and a point near the mean of rows.

Arrays in, arrays out; numpy only. Vectors may be float32. Blocks of rows are converted to float64
one at a time, so no float64 copy of all data is made.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qk_toolkit.arrays import Array, Vectors

# float64 values per block, so that a block fits into the CPU cache
BLOCK = 1 << 16
LARGE_BLOCK = 1 << 18  # for matrix products and whole columns
_ORIGIN_ROWS = 64


def row_blocks(n: int, d: int, elements: int = BLOCK) -> Iterator[slice]:
    """Slices that cover n rows of d values, with about `elements` values per slice."""
    step = max(1, elements // max(1, d))
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def near_mean(X: Vectors) -> Array:
    """A point (d,) close to the mean of the rows. It equals the value of a constant column."""
    first = X[:_ORIGIN_ROWS].astype(np.float64)  # (m, d)
    origin: Array = first[0] + (first - first[0]).mean(axis=0)
    return origin


def scale_exponent(X: Vectors) -> int:
    """The exponent of the power of two above every absolute value of `X`; 0 for zeros.

    Divided by this power, squares and fourth powers of the values are finite. The division is
    exact, and no metric except ‖β‖ depends on the scale of queries or keys.
    """
    largest = max(float(X.max(initial=0.0)), -float(X.min(initial=0.0)))
    return int(np.frexp(largest)[1])
