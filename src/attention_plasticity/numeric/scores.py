"""Plasticity 4p(1−p) of key pairs under a Gaussian, with derivatives for errors and bias.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from attention_plasticity.numeric.blocks import row_blocks
from attention_plasticity.numeric.query_model import Gaussian
from qk_toolkit.arrays import Array

_PANELS = 4


class PairScores(NamedTuple):
    """Scores of key pairs. `f` is plasticity as a function of `z = m/√v`."""

    z: Array  # (pairs,) ±∞ or 0 where v is zero
    deviation: Array  # (pairs,) √v
    value: Array  # (pairs,) f
    first: Array  # (pairs,) f'; zero where v is zero
    second: Array  # (pairs,) f''; zero where v is zero

    @property
    def width_slope(self) -> Array:
        """(pairs,) derivative of f with respect to the relative change of v; never negative."""
        slope: Array = np.maximum(-0.5 * self.first * self.z, 0.0)
        return slope


def score_margins(margin: Array, deviation: Array) -> PairScores:
    """Scores from `m` (pairs,) and `√v` (pairs,)."""
    z = standardised(margin, deviation)
    finite = np.where(np.isfinite(z), z, 0.0)
    tail = ndtr(-np.abs(z))
    density = np.exp(-0.5 * finite**2) / math.sqrt(2.0 * math.pi)
    density[deviation == 0] = 0.0  # the derivatives are zero
    first = -4.0 * density * np.sign(finite) * (1.0 - 2.0 * tail)
    second = -finite * first - 8.0 * density**2
    return PairScores(finite, deviation, 4.0 * tail * (1.0 - tail), first, second)


def standardised(margin: Array, deviation: Array) -> Array:
    """`z = m/√v`; ±∞ or 0 where v is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z: Array = margin / deviation
    z[(deviation == 0) & (margin == 0)] = 0.0
    return z


def margin_and_deviation(W: Array, gaussian: Gaussian) -> tuple[Array, Array]:
    """Mean and standard deviation of `w·q`, each (pairs,)."""
    return W @ gaussian.mean, np.sqrt(_variance(W, gaussian.factor))


def _variance(W: Array, factor: Array) -> Array:
    """`‖Lᵀw‖²` per row of `W`. Column panels of L skip most of its zero half."""
    variance = np.zeros(len(W))
    if factor.ndim == 1:
        spread = W * factor  # (pairs, d)
        return np.einsum("pd,pd->p", spread, spread, out=variance)
    d = len(factor)
    panel = -(-d // _PANELS)
    for rows in row_blocks(*W.shape):
        for start in range(0, d, panel):
            spread = W[rows, start:] @ factor[start:, start : start + panel]  # (b, panel)
            variance[rows] += np.einsum("pd,pd->p", spread, spread)
    return variance


def plasticity_from_margin(z: Array) -> Array:
    """4p(1−p), computed from the tail probability: accurate for large |z|, never negative."""
    tail = ndtr(-np.abs(z))
    value: Array = 4.0 * tail * (1.0 - tail)
    return value
