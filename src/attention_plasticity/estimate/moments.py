"""Sums over vectors and positions per group of texts, and what follows from them.

Arrays in, arrays out; numpy only. Rows have weights, so that sums are those of all tokens; only
ratios of weights matter. The sums are Σw, Σwτ, Σwτ², Σwx, Σwτx and Σw‖x‖², with τ a position and x
a vector minus a point near the mean. They can be those of queries or keys before RoPE, as they
enter the attention, or de-rotated. The sums of vectors are one product of a matrix of weights and
the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.blocks import near_mean
from attention_plasticity.estimate.quantity import Quantity, group_sums, leave_one_out, quantity
from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

ROUNDING = 8.0  # rounding errors of a rotated vector, in units of its precision
_SMALL = 1e-13  # of a sum of squares: rounding errors of its parts


class Sums(NamedTuple):
    """The sums of every group, or of all groups and of all without each, along the first axis."""

    w: Array  # (r,)
    t: Array  # (r,)
    tt: Array  # (r,)
    x: Array  # (r, d)
    tx: Array  # (r, d)
    xx: Array  # (r,)

    def position_variance(self) -> Array:
        """(r,) variance of τ times Σw; 0 if it is a rounding error."""
        found = self.tt - self.t**2 / self.w
        return np.where(found > _SMALL * self.tt, found, 0.0)

    def with_position(self) -> Array:
        """(r, d) covariance of x and τ times Σw."""
        found: Array = self.tx - (self.t / self.w)[:, None] * self.x
        return found

    def scatter(self) -> Array:
        """(r,) sum of the variances of all dimensions times Σw."""
        found = self.xx - np.einsum("rd,rd->r", self.x, self.x) / self.w
        return np.asarray(np.maximum(found, 0.0))


@dataclass(frozen=True)
class Moments:
    """The sums over the rows of every group."""

    sums: Sums  # of every group
    origin: Array  # (d,)
    unit: float  # tokens per unit of τ
    moves: bool  # whether the rows are at more than one position
    precision: float  # of the vectors
    present: Bools  # (g,) the groups with rows; none if groups are not known

    @classmethod
    def of(cls, position: Array, X: Vectors, weight: Array, group: Ints | None) -> Moments:
        """From vectors (n, d) at positions (n,) with weights and groups of texts (n,)."""
        known = group is not None
        group = np.zeros(len(X), np.int64) if group is None else group
        origin = near_mean(X).astype(X.dtype)  # (d,)
        w = weight / weight.max()
        tau = position - position[0]
        tau -= float(w @ tau) / float(w.sum())
        unit = float(np.abs(tau).max()) or 1.0
        tau /= unit
        rows = X - origin  # (n, d)
        factors = np.zeros((2, GROUPS, len(X)), X.dtype)
        factors[:, group, np.arange(len(X))] = w, w * tau
        x, tx = (factors.reshape(2 * GROUPS, -1) @ rows).reshape(2, GROUPS, -1).astype(np.float64)
        squares = np.einsum("nd,nd->n", rows, rows)  # (n,)
        columns = (w, w * tau, w * tau * tau, w * squares)
        one, t, tt, xx = (group_sums(column, group) for column in columns)  # (g,) each
        sums = Sums(one, t, tt, x, tx, xx)
        precision = float(np.finfo(X.dtype).eps)
        present = (np.bincount(group, minlength=GROUPS) > 0) & known
        moves = bool(tau.any())
        return cls(sums, origin.astype(np.float64), unit, moves, precision, present)

    @cached_property
    def replicates(self) -> Sums:
        """(1 + g) sums of all groups, then without each."""
        return Sums(*(leave_one_out(part) for part in self.sums))

    @cached_property
    def varies(self) -> bool:
        """Whether the vectors vary by more than their rounding errors."""
        all_rows = Sums(*(part[:1] for part in self.replicates))
        variance = float(all_rows.scatter()[0] / all_rows.w[0])
        mean = self.means[0]  # (d,)
        noise = (ROUNDING * self.precision) ** 2
        return variance > noise * (variance + float(mean @ mean))

    @cached_property
    def means(self) -> Array:
        """(1 + g, d) mean vectors: of all groups, then without each."""
        sums = self.replicates
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Array = self.origin + sums.x / sums.w[:, None]
        return found

    @cached_property
    def slopes(self) -> Array:
        """(1 + g, d) change of the mean vector per token; NaN for one position."""
        sums = self.replicates
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = sums.position_variance()
            variance = np.where(variance > 0, variance, np.nan)
            found: Array = sums.with_position() / variance[:, None] / self.unit
        return found

    @cached_property
    def r2(self) -> Quantity:
        """The share of the variance that a line in position explains; 0 without variance."""
        sums = self.replicates
        if not (self.varies and self.moves):
            return quantity(np.zeros(1 + GROUPS), self.present)
        with np.errstate(invalid="ignore", divide="ignore"):
            along = sums.with_position()  # (1 + g, d)
            below = sums.position_variance() * sums.scatter()
            share = np.einsum("rd,rd->r", along, along) / below
        return quantity(np.where(below > 0, np.minimum(share, 1.0), 0.0), self.present)

    @cached_property
    def mean_share(self) -> Quantity:
        """‖mean‖² / mean of ‖x‖²; NaN if all vectors are zero."""
        sums, mean = self.replicates, self.means
        with np.errstate(invalid="ignore", divide="ignore"):
            length = np.einsum("rd,rd->r", mean, mean)
            square = sums.scatter() / sums.w + length
            return quantity(length / np.where(square > 0, square, np.nan), self.present)


def product(slopes: Array, means: Array, present: Bools) -> Quantity:
    """The product of slopes (1 + g, d) and means (1 + g, d); a group is left out of both."""
    return quantity(np.einsum("rd,rd->r", slopes, means), present)
