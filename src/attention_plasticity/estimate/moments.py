"""Sums over vectors and positions per group of texts, and what follows from them.

Arrays in, arrays out; numpy only. Rows have weights, so that sums are those of all tokens; only
ratios of weights matter. The sums are Σw, Σwτ, Σwτ², Σwx, Σwτx and Σw‖x‖², with τ a position and x
a vector minus a point near the mean. They can be those of queries or keys before RoPE, as they
enter the attention, or turned to one position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from attention_plasticity.estimate.blocks import near_mean
from attention_plasticity.estimate.quantity import (
    Quantity,
    leave_one_out,
    quantity,
    unknown,
)
from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

COMPONENTS = 2
ROUNDING = 8.0  # rounding errors of a rotated vector, in units of its precision
_MOST_ROWS = 1 << 12  # for principal components
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


class Components(NamedTuple):
    """The leading principal components of vectors. NaN if there is no such component."""

    share: Array  # (2,) of the variance
    r: Array  # (2,) absolute correlation with position


@dataclass(frozen=True)
class Moments:
    """The sums over the rows of every group."""

    rows: Vectors  # (n, d) vectors minus `origin`, sorted by group
    weight: Array  # (n,) in units of the largest
    tau: Array  # (n,) positions about their mean, in units of `unit`
    starts: Ints  # (groups + 1,) the first row of each group that has rows, and the end
    groups: Ints  # (groups,) their numbers
    origin: Array  # (d,)
    unit: float  # tokens per unit of τ
    known: bool  # whether groups of texts are known

    @classmethod
    def of(cls, position: Array, X: Vectors, weight: Array, group: Ints | None) -> Moments:
        """From vectors (n, d) at positions (n,) with weights and groups of texts (n,)."""
        known = group is not None
        group = np.zeros(len(X), np.int64) if group is None else group
        order = np.argsort(group, kind="stable")
        origin = near_mean(X).astype(X.dtype)  # (d,)
        w = (weight / weight.max())[order]
        tau = position[order] - position[0]
        tau -= float(w @ tau) / float(w.sum())
        unit = float(np.abs(tau).max()) or 1.0
        numbers, starts = np.unique(group[order], return_index=True)
        starts = np.append(starts, len(X))
        rows = X[order] - origin
        return cls(rows, w, tau / unit, starts, numbers, origin.astype(np.float64), unit, known)

    @cached_property
    def sums(self) -> Sums:
        """Sums of every group; their first axis has 16 groups."""
        w, t = self.weight, self.tau
        d = self.rows.shape[1]
        scalars = np.zeros((3, GROUPS))
        x, tx, xx = np.zeros((GROUPS, d)), np.zeros((GROUPS, d)), np.zeros(GROUPS)
        squares = np.einsum("nd,nd->n", self.rows, self.rows)  # (n,)
        factors = np.stack([w, w * t, w * t * t])  # (3, n)
        for number, begin, end in self._slices():
            part = slice(begin, end)
            scalars[:, number] = factors[:, part].sum(axis=1)
            both = factors[:2, part].astype(self.rows.dtype) @ self.rows[part]  # (2, d)
            x[number], tx[number] = both
            xx[number] = w[part] @ squares[part]
        return Sums(scalars[0], scalars[1], scalars[2], x, tx, xx)

    def _slices(self) -> list[tuple[int, int, int]]:
        """Number, first row and end of every group that has rows."""
        numbers, bounds = self.groups.tolist(), self.starts.tolist()
        return list(zip(numbers, bounds[:-1], bounds[1:], strict=True))

    @cached_property
    def replicates(self) -> Sums:
        """(1 + g) sums of all groups, then without each."""
        return Sums(*(leave_one_out(part) for part in self.sums))

    @cached_property
    def present(self) -> Bools:
        """(g,) the groups with rows; none if groups are not known."""
        return np.asarray(np.isin(np.arange(GROUPS), self.groups) & self.known)

    @cached_property
    def varies(self) -> bool:
        """Whether the vectors vary by more than their rounding errors."""
        all_rows = Sums(*(part[:1] for part in self.replicates))
        variance = float(all_rows.scatter()[0] / all_rows.w[0])
        mean = self.means[0]  # (d,)
        noise = (ROUNDING * float(np.finfo(self.rows.dtype).eps)) ** 2
        return variance > noise * (variance + float(mean @ mean))

    @cached_property
    def moves(self) -> bool:
        """Whether the rows are at more than one position."""
        return bool(self.tau.any())

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

    @cached_property
    def correlation(self) -> Quantity:
        """Cross-fitted correlation of position and the projection on the axis of the drift.

        The axis of a group is the covariance of vector and position of the other groups. An axis
        that is fitted to the rows it is tested on would have a positive correlation for vectors
        without any drift. This removes the bias, so no other correction is made. NaN for one group,
        one position, or vectors that do not vary.
        """
        if not (self.varies and self.moves and len(self.groups) > 1):
            return unknown()
        total = self.replicates
        used = np.flatnonzero(np.r_[True, self.sums.w > 0])  # replicates that leave a group out
        axes, centres = (part.astype(self.rows.dtype) for part in self._axes(used))
        sums = np.zeros((3, len(used)))  # Σws, Σwτs, Σws² with s the projection of a row
        factors = np.stack([self.weight, self.weight * self.tau])  # (2, n)
        for place, (number, begin, end) in enumerate(self._slices()):
            scores = self.rows[begin:end] @ axes[place].T - centres[place]  # (m, r)
            scores[:, used == 1 + number] = 0.0  # without this group it has no rows
            sums[:2] += factors[:, begin:end] @ scores
            sums[2] += self.weight[begin:end] @ (scores * scores)
        value = np.zeros((3, 1 + GROUPS))
        value[:, used] = sums
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = value[2] - value[0] ** 2 / total.w
            along = value[1] - value[0] * total.t / total.w
            spread = variance * total.position_variance()
            found = along / np.sqrt(np.where(spread > 0, spread, np.nan))
        return quantity(found, self.present)._replace(value=float(found[0]))

    def _axes(self, used: Ints) -> tuple[Array, Array]:
        """Axes (groups, r, d) from the rows of other groups, and projections (groups, r) of means.

        `used` (r,) are the replicates whose rows are used.
        """
        rest = Sums(
            *(
                part[used][None] - own[self.groups][:, None]
                for part, own in zip(self.replicates, self.sums, strict=True)
            )
        )  # (groups, r, …)
        with np.errstate(invalid="ignore", divide="ignore"):
            axis = rest.tx - (rest.t / rest.w)[..., None] * rest.x
            length = np.sqrt(np.einsum("grd,grd->gr", axis, axis))
            axis /= np.where(length > 0, length, 1.0)[..., None]
            return axis, np.einsum("grd,grd->gr", axis, rest.x) / rest.w

    @cached_property
    def components(self) -> Components:
        """Shares and correlations of the two leading principal components of all rows."""
        d = self.rows.shape[1]
        share, r = np.full(COMPONENTS, np.nan), np.full(COMPONENTS, np.nan)
        if not self.varies:
            return Components(share, r)
        total = Sums(*(part[:1] for part in self.replicates))
        step = -(-len(self.rows) // _MOST_ROWS)  # evenly spaced rows are enough
        weight = self.weight[::step]
        weighted = self.rows[::step] * np.sqrt(weight).astype(self.rows.dtype)[:, None]  # (m, d)
        second = (weighted.T @ weighted).astype(np.float64) / weight.sum()  # (d, d)
        mean = (weight @ self.rows[::step]) / weight.sum()
        known = min(COMPONENTS, d)
        values, vectors = eigh(  # ascending
            second - np.multiply.outer(mean, mean),
            subset_by_index=[d - known, d - 1],
            check_finite=False,
        )
        values = np.maximum(values[::-1][:known], 0.0)  # (2,) or (1,)
        share[:known] = values / max(float(total.scatter()[0] / total.w[0]), values.sum())
        along = np.abs(vectors[:, ::-1][:, :known].T @ total.with_position()[0]) / total.w[0]
        spread = np.sqrt(values * total.position_variance()[0] / total.w[0])
        clear = (share[:known] > ROUNDING * np.finfo(self.rows.dtype).eps) & (spread > 0)
        r[:known][clear] = np.minimum(along[clear] / spread[clear], 1.0)
        return Components(share, r)


def product(slopes: Array, means: Array, present: Bools) -> Quantity:
    """The product of slopes (1 + g, d) and means (1 + g, d); a group is left out of both."""
    return quantity(np.einsum("rd,rd->r", slopes, means), present)
