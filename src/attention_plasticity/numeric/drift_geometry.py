"""Along which axis vectors drift with position, and how much of a logit this changes.

Arrays in, arrays out; numpy only. Everything follows from the weighted sums of every group of
texts, so leaving a group out is a subtraction. The correlation with position is cross-fitted: the
axis of a group comes from the other groups. An axis that is fitted to the rows it is tested on
would have a positive correlation for vectors without any drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.blocks import LARGE_BLOCK, near_mean, row_blocks
from attention_plasticity.numeric.errors.text_groups import MIN_GROUPS
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

COMPONENTS = 2
_ROUNDING = 8.0  # rounding errors of a rotated vector, in units of its precision

_Kept = npt.NDArray[np.bool_]  # (g,) whether a group is used


class Components(NamedTuple):
    """The leading principal components of vectors. NaN if there is no such component."""

    mean: Array  # (d,)
    axes: Array  # (d, 2) unit vectors; their correlation with position is not negative
    share: Array  # (2,) of the variance
    r: Array  # (2,) absolute correlation with position


@dataclass(frozen=True)
class GroupMoments:
    """Σ w y yᵀ over the rows of every group, with y = (1, τ, x − origin) and τ a scaled position.

    The entries are Σw, Σwτ, Σwτ², Σwx, Σwτx and Σwxxᵀ.
    """

    sums: Array  # (g, 2 + d, 2 + d)
    origin: Array  # (d,) a point near the mean
    unit: float  # tokens per unit of τ
    varies: bool  # the vectors vary by more than their rounding errors

    @classmethod
    def of(cls, t: Array, X: Vectors, weight: Array, group: Ints) -> GroupMoments:
        """From vectors (n, d) at positions `t` (n,), with weights and groups of texts (n,).

        Only ratios of weights matter. Squares of the vectors must be finite.
        """
        d = X.shape[1]
        w = weight / weight.max()  # (n,)
        tau = t - t[0]
        tau -= float(w @ tau) / float(w.sum())
        unit = float(np.abs(tau).max()) or 1.0
        root = np.sqrt(w)  # (n,)
        beside = root * np.stack([np.ones(len(t)), tau / unit])  # (2, n)
        origin = near_mean(X)  # (d,)
        sums = np.zeros((GROUPS, 2 + d, 2 + d))
        for one in np.unique(group):
            members = np.flatnonzero(group == one)
            for block in row_blocks(len(members), d, LARGE_BLOCK):
                rows = members[block]
                y = np.empty((len(rows), 2 + d))
                y[:, :2] = beside[:, rows].T
                np.subtract(X[rows], origin, out=y[:, 2:])
                y[:, 2:] *= root[rows, None]
                sums[one] += y.T @ y
        total = sums.sum(axis=0)  # (2 + d, 2 + d)
        variance = float(np.trace(_covariance(total)))
        mean = origin + total[0, 2:] / total[0, 0]  # (d,)
        noise = (_ROUNDING * float(np.finfo(X.dtype).eps)) ** 2
        return cls(sums, origin, unit, variance > noise * (variance + float(mean @ mean)))

    @property
    def kept(self) -> _Kept:
        """(g,) whether a group has rows."""
        return np.asarray(self.sums[:, 0, 0] > 0)

    @cached_property
    def groups(self) -> int:
        """Number of groups with rows."""
        return int(np.count_nonzero(self.kept))

    @cached_property
    def moves(self) -> bool:
        """Whether the rows are at more than one position."""
        return bool(self.sums[:, 1, 1].any())

    @cached_property
    def correlation(self) -> Estimate:
        """Cross-fitted correlation of position and the projection on the axis of the drift.

        The axis is the covariance of vector and position, which has the direction of the slopes of
        a regression. NaN for one group, one position, or vectors that do not vary.
        """
        if not (self.varies and self.moves and self.groups > 1):
            return _jackknife(lambda kept: np.nan, self.kept)
        return _jackknife(lambda kept: _cross_fitted(self.sums[kept]), self.kept)

    @cached_property
    def components(self) -> Components:
        """The two leading principal components of all rows."""
        total = self.sums.sum(axis=0)  # (2 + d, 2 + d)
        d = len(self.origin)
        mean = self.origin + total[0, 2:] / total[0, 0]  # (d,)
        axes = np.full((d, COMPONENTS), np.nan)
        share, r = np.full(COMPONENTS, np.nan), np.full(COMPONENTS, np.nan)
        if not self.varies:
            return Components(mean, axes, share, r)
        values, vectors = np.linalg.eigh(_covariance(total))  # ascending: (d,), (d, d)
        known = min(COMPONENTS, d)
        values = np.maximum(values[::-1][:known], 0.0)  # (2,) or (1,)
        axes[:, :known] = vectors[:, ::-1][:, :known]
        share[:known] = values / float(np.trace(_covariance(total)))
        along = axes[:, :known].T @ _with_position(total)  # (2,)
        axes[:, :known] *= np.where(along < 0, -1.0, 1.0)
        spread = np.sqrt(values * _position_variance(total))
        clear = (share[:known] > _ROUNDING * np.finfo(np.float64).eps) & (spread > 0)
        r[:known][clear] = np.minimum(np.abs(along[clear]) / spread[clear], 1.0)
        return Components(mean, axes, share, r)


def slope_along_mean(moving: GroupMoments, fixed: GroupMoments) -> Estimate:
    """The slope of the vectors `moving` per token, times the mean of the vectors `fixed`.

    A group is left out of both. NaN if the moving vectors are at one position.
    """

    def product(kept: _Kept) -> float:
        one, other = (each.sums[kept, :2].sum(axis=0) for each in (moving, fixed))  # (2, 2 + d)
        if not (one[0, 0] > 0 and other[0, 0] > 0 and _position_variance(one) > 0):
            return np.nan
        slope = _with_position(one) / _position_variance(one) / moving.unit  # (d,)
        return float(slope @ (fixed.origin + other[0, 2:] / other[0, 0]))

    return _jackknife(product, moving.kept | fixed.kept)


def _cross_fitted(sums: Array) -> float:
    """The correlation for groups with the sums `sums` (g, 2 + d, 2 + d), of which none is empty."""
    total = sums.sum(axis=0)  # (2 + d, 2 + d)
    others = total[:2] - sums[:, :2]  # (g, 2, 2 + d)
    mean = others[:, 0, 2:] / others[:, 0, :1]  # (g, d)
    axis = others[:, 1, 2:] - others[:, 0, 1:2] * mean  # (g, d) covariance with position
    length = np.linalg.norm(axis, axis=1, keepdims=True)  # (g, 1)
    axis /= np.where(length > 0, length, 1.0)
    score = np.zeros((len(sums), sums.shape[1]))  # (g, 2 + d): a row has the score y · score
    score[:, 0] = -np.einsum("gd,gd->g", axis, mean)
    score[:, 2:] = axis
    along = np.matmul(sums, score[:, :, None])[:, :, 0]  # (g, 2 + d)
    w, t = total[0, 0], total[0, 1]
    first, with_t = float(along[:, 0].sum()), float(along[:, 1].sum())
    variance = (float(np.einsum("gi,gi->", along, score)) - first**2 / w) / w
    spread = variance * _position_variance(total)
    return (with_t - first * t / w) / w / float(np.sqrt(spread)) if spread > 0 else np.nan


def _covariance(total: Array) -> Array:
    """(d, d) covariance of the vectors."""
    mean = total[0, 2:] / total[0, 0]  # (d,)
    found: Array = total[2:, 2:] / total[0, 0] - np.multiply.outer(mean, mean)
    return found


def _with_position(total: Array) -> Array:
    """(d,) covariance of vectors and scaled positions."""
    found: Array = (total[1, 2:] - total[0, 1] * total[0, 2:] / total[0, 0]) / total[0, 0]
    return found


def _position_variance(total: Array) -> float:
    """Variance of the scaled positions; 0 if it is a rounding error."""
    square = float(total[1, 1])
    centred = square - float(total[0, 1]) ** 2 / float(total[0, 0])
    return centred / float(total[0, 0]) if centred > 1e-13 * square else 0.0


def _jackknife(value: Callable[[_Kept], float], kept: _Kept) -> Estimate:
    """An estimate whose squared influences sum to the variance of the jackknife over groups."""
    groups = int(np.count_nonzero(kept))
    estimate = float(value(kept))
    unknown = np.full(GROUPS, np.nan)
    if groups < MIN_GROUPS or np.isnan(estimate):
        return Estimate(estimate, np.nan, unknown, groups)
    without = np.zeros(GROUPS)
    for group in np.flatnonzero(kept):
        without[group] = value(kept & (np.arange(GROUPS) != group))
    mean = without[kept].mean()
    influences = np.where(kept, np.sqrt((groups - 1.0) / groups) * (mean - without), 0.0)
    return Estimate(estimate, np.nan, influences, groups)
