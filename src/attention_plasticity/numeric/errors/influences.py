"""Influence of groups of texts on the Gaussians of the query buckets.

Arrays in, arrays out; numpy only. The influence of a group on an estimate is the change of the
estimate, to first order, when the group is left out (with opposite sign). Influences are used for
standard errors only, so products of vectors are computed in float32 after scaling by powers of two,
unless the scales of dimensions differ too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from attention_plasticity.numeric.blocks import row_blocks
from attention_plasticity.numeric.errors.text_groups import rows_per_group
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

_LARGEST_SPAN = 2.0**60  # of variances; float32 has 24 bits and exponents from -126 to 127
_SYMMETRIC_ROWS = 256  # from this number of rows, a symmetric product is faster than a general one


class CentredQueries(NamedTuple):
    """Queries of one bucket minus their mean, sorted by group, in units of a power of two.

    In the model `positional` the first component of `y` is zero, and its values are in `first`.
    """

    rows: Ints  # (n,)
    counts: Ints  # (g,) queries of every group
    unit: float
    mean: Array  # (d,) in this unit
    y: Vectors  # (n, d)
    first: Vectors | None  # (n,)

    @property
    def membership(self) -> Vectors:
        """(g, n): one where the query is in the group."""
        return np.repeat(np.eye(GROUPS, dtype=np.float32), self.counts, axis=1)

    def sample(self, most: int) -> CentredQueries:
        """At most `most` queries, evenly spaced, minus their own mean."""
        n = len(self.y)
        if n <= most:
            return self
        chosen = np.arange(most) * n // most
        group = np.repeat(np.arange(GROUPS), self.counts)[chosen]
        y, first, mean = self.y[chosen], self.first, self.mean.copy()
        shift = y.mean(axis=0, dtype=np.float64)
        if first is not None:
            first = first[chosen]
            shift[0] = first.mean(dtype=np.float64)
            first -= first.dtype.type(shift[0])
            y[:, 1:] -= shift[1:].astype(y.dtype)
        else:
            y -= shift.astype(y.dtype)
        return CentredQueries(
            self.rows[chosen], rows_per_group(group), self.unit, mean + shift, y, first
        )


@dataclass(frozen=True)
class GaussianInfluences:
    """Sums per group from which the influences on one query bucket's Gaussian follow."""

    queries: CentredQueries
    mean: Vectors  # (g, d) influences on the mean, in the unit of the queries
    scatter: Vectors  # (g, d, d) sums of y yᵀ, or (g, d) their diagonals, in the squared unit


@dataclass(frozen=True)
class FirstComponent:
    """Influences on the regression of the first rotated component on position."""

    group: Ints  # (n,) group of every query
    position: Array  # (n,)
    beta: float
    residual: Array  # (n,) of the regression
    variance: float  # of the residuals
    center: float  # mean position
    on_level: Array  # (g,) on the value at the mean position
    on_slope: Array  # (g,)
    on_variance: Array  # (g,) on the residual variance

    @classmethod
    def of(
        cls, group: Ints, position: Array, residual: Array, beta: float, variance: float
    ) -> FirstComponent:
        """Influences from the residuals (n,) of the first component and their variance."""
        n, center = len(position), float(position.mean())
        t = position - center
        spread = float(t @ t)
        squares = residual**2

        def summed(values: Array) -> Array:
            return np.asarray(np.bincount(group, values, GROUPS), np.float64)

        return cls(
            group=group,
            position=position,
            beta=beta,
            residual=residual,
            variance=variance,
            center=center,
            on_level=summed(residual) / n,
            on_slope=summed(t * residual) / spread if spread > 0 else np.zeros(GROUPS),
            on_variance=summed(squares - squares.mean()) / n,
        )

    def on_mean(self, rows: Ints) -> Array:
        """(g,) influences on `α + βτ`, with τ the mean position of the given rows."""
        t = self.position[rows]
        tau = float(t.mean())
        on_tau = np.bincount(self.group[rows], t - tau, GROUPS) / len(t)
        influence: Array = self.on_level + (tau - self.center) * self.on_slope + self.beta * on_tau
        return influence


@dataclass(frozen=True)
class GroupedQueries:
    """Queries in the basis of the scores, sorted by bucket, with the groups of their texts."""

    model: Literal["positional", "full", "diagonal"]
    group: Ints  # (n,)
    vectors: Vectors  # (n, d)
    first: FirstComponent | None = None  # in the model `positional` only

    def centred(self, rows: slice, mean: Array, variances: Array) -> CentredQueries:
        """The queries of the bucket with the given rows, mean (d,) and variances (d,)."""
        group, unit = self.group[rows], unit_of(variances)
        order = rows.start + np.argsort(group, kind="stable")
        precision = np.float64 if is_float32_coarse(variances) else np.float32
        y = np.empty((len(order), len(mean)), precision)
        for block in row_blocks(*y.shape):
            dev = self.vectors[order[block]] - mean  # (b, d)
            dev *= 1.0 / unit
            y[block] = dev
        first = None
        if self.model == "positional":
            first = y[:, 0].copy()
            y[:, 0] = 0.0
        return CentredQueries(order, rows_per_group(group), unit, mean / unit, y, first)

    def influences(self, queries: CentredQueries) -> GaussianInfluences:
        """Influences on the Gaussian of a bucket with the given queries."""
        y, counts = queries.y, queries.counts
        n, d = y.shape
        membership = queries.membership
        on_mean = membership @ y / y.dtype.type(n)
        if queries.first is not None:
            assert self.first is not None
            on_mean[:, 0] = self.first.on_mean(queries.rows) / queries.unit
        if self.model == "diagonal":
            return GaussianInfluences(queries, on_mean, membership @ y**2)
        scatter = np.empty((GROUPS, d, d), y.dtype)
        for g, end in enumerate(np.cumsum(counts)):
            left = right = y[end - counts[g] : end]  # (rows, d)
            if len(left) < _SYMMETRIC_ROWS:
                right = left.copy()  # then numpy computes a general product
            np.matmul(left.T, right, out=scatter[g])
        return GaussianInfluences(queries, on_mean, scatter)


def is_float32_coarse(variances: Array) -> bool:
    """Whether the scales of dimensions with these variances (d,) differ too much for float32."""
    varying = variances[variances > 0]
    return bool(len(varying) and varying.max() > _LARGEST_SPAN * varying.min())


def unit_of(variances: Array) -> float:
    """The power of two nearest to the root of the mean variance; 1 if all are zero."""
    mean = float(variances.mean())
    return float(2.0 ** np.round(np.log2(mean) / 2)) if mean > 0 else 1.0
