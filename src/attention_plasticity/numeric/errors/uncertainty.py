"""Standard errors and bias of plasticity, from groups of texts.

Arrays in, arrays out; numpy and scipy only. The standard error of an estimate is the root of the
sum of its squared group influences (linearised delete-a-group jackknife). The bias is that of the
plug-in estimate, to second order in the error of a bucket's Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.errors.influences import FirstComponent, GaussianInfluences
from attention_plasticity.numeric.errors.text_groups import (
    MIN_BUCKET_GROUPS,
    MIN_GROUPS,
    jackknife_factor,
)
from attention_plasticity.numeric.scores import PairScores
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

_MOST_PRODUCTS = 1 << 22  # float32 values of products w·wᵀ in memory at a time
_LARGEST_FLOAT32 = 2.0**40  # of a scaled key difference; larger values are computed in float64


class Estimate(NamedTuple):
    """An estimate with its bias and its group influences."""

    value: float
    bias: float
    influences: Array  # (g,); NaN if there are too few groups
    groups: int  # with queries

    @property
    def standard_error(self) -> float:
        """Root of the sum of squared influences."""
        return float(np.sqrt(self.influences @ self.influences))

    def minus(self, other: Estimate) -> Estimate:
        """The difference of two estimates from the same texts."""
        return Estimate(
            self.value - other.value,
            self.bias - other.bias,
            self.influences - other.influences,
            min(self.groups, other.groups),
        )


@dataclass(frozen=True)
class Uncertainty:
    """Standard errors and bias of the cells and query buckets of a head."""

    cell_se: Array  # (query buckets, key buckets)
    cell_bias: Array  # (query buckets, key buckets)
    profile_bias: Array  # (query buckets,)
    profile_influences: Array  # (query buckets, g) with small-sample factors; not masked
    query_groups: Ints  # (query buckets, g) queries of every group

    def weighted(self, profile: Array, weights: Array) -> Estimate:
        """Mean of `profile` with `weights` (query buckets, g), the weights of every group."""
        totals = weights.sum(axis=1)
        return weighted_estimate(
            profile, self.profile_bias, self.profile_influences, weights, totals, totals > 0
        )

    def profile(self, profile: Array) -> list[Estimate]:
        """`AP_j` of every query bucket."""
        groups = np.count_nonzero(self.query_groups, axis=1)
        enough = groups >= MIN_BUCKET_GROUPS
        masked = np.where(enough[:, None], self.profile_influences, np.nan)
        rows = zip(
            profile.tolist(), self.profile_bias.tolist(), masked, groups.tolist(), strict=True
        )
        return [Estimate(*row) for row in rows]

    def mean(self, profile: Array, counts: Ints, chosen: npt.NDArray[np.bool_]) -> Estimate:
        """Mean of `profile` (query buckets,) over the chosen buckets, weighted by queries."""
        return weighted_estimate(
            profile, self.profile_bias, self.profile_influences, self.query_groups, counts, chosen
        )


def weighted_estimate(
    profile: Array,
    bias: Array,
    influences: Array,
    query_groups: npt.NDArray[Any],
    counts: npt.NDArray[Any],
    chosen: npt.NDArray[np.bool_],
) -> Estimate:
    """Mean over the chosen query buckets, weighted by `counts`; NaN if none has a value.

    `counts` (query buckets,) are numbers of queries or sums of their weights, and `query_groups`
    (query buckets, g) the same for every group. They are sums over queries, so groups influence
    them too. Influences are NaN if too few
    groups have queries in the chosen buckets.
    """
    used = np.flatnonzero(chosen & ~np.isnan(profile))
    if len(used) == 0:
        return Estimate(np.nan, np.nan, np.full(GROUPS, np.nan), 0)
    groups = query_groups[used]  # (used, g)
    number = int(np.count_nonzero(groups.sum(axis=0)))
    total = float(counts[used].sum())
    weights = counts[used] / total
    value = float(weights @ profile[used])
    composition = (profile[used] - value) @ groups / total * jackknife_factor(groups.sum(axis=0))
    summed = weights @ influences[used] + composition
    influence = summed if number >= MIN_GROUPS else np.full(GROUPS, np.nan)
    return Estimate(value, float(weights @ bias[used]), influence, number)


class ScoredPairs(NamedTuple):
    """Scores of pairs, and the influences of the groups on the mean of `w·q`."""

    scores: PairScores
    precision: Array  # (pairs,) 1/√v in the units of key differences and queries; 0 if v is zero
    shifts: Vectors  # (pairs, g) w·d/√v
    kappa: Array  # (pairs,)

    @classmethod
    def of(
        cls, scores: PairScores, shifts: Vectors, unit: Array | float, counts: Ints
    ) -> ScoredPairs:
        """From `shifts` w·d (pairs, g) in the given units, which are overwritten."""
        deviation = scores.deviation / unit
        with np.errstate(divide="ignore"):
            precision = np.where(deviation > 0, 1.0 / deviation, 0.0)
        shifts *= precision.astype(shifts.dtype)[:, None]
        return cls(scores, precision, shifts, mean_error(shifts, counts))

    def part(self, rows: slice | Ints) -> ScoredPairs:
        """Some of the pairs."""
        scores = PairScores(*(values[rows] for values in self.scores))
        return ScoredPairs(scores, self.precision[rows], self.shifts[rows], self.kappa[rows])


class UncertaintySums:
    """Sums over pairs, per (query bucket, key bucket), from which `Uncertainty` is computed."""

    def __init__(self, query_buckets: int, key_buckets: int, first: FirstComponent | None) -> None:
        """`first` are the influences on the regression, in the model `positional`."""
        self._first = first
        cells = (query_buckets, key_buckets)
        self._queries = np.zeros((*cells, GROUPS))  # influences through the Gaussian
        self._pair_values = np.zeros((*cells, GROUPS))
        self._pair_counts = np.zeros((*cells, GROUPS), np.int64)
        self._seen_values = np.zeros((*cells, GROUPS))  # by the queries drawn with the pairs
        self._seen_counts = np.zeros((*cells, GROUPS), np.int64)
        self._bias = np.zeros(cells)
        self._variance_bias = np.zeros(cells)
        self._kappa = np.zeros(query_buckets)
        self._groups = np.zeros((query_buckets, GROUPS), np.int64)

    def add(
        self,
        code: int,
        W: Vectors,
        owner: Ints,
        group: Ints,
        unit: Array,
        scores: PairScores,
        influences: GaussianInfluences,
        shifts: Vectors | None = None,
        seen_by: Ints | None = None,
    ) -> ScoredPairs:
        """Add pairs, sorted by `owner`, that were scored under the Gaussian of query bucket `code`.

        `W` (pairs, d) are key differences divided by `unit` (pairs,); `group` is the group of their
        text, and `seen_by` that of the query that was drawn with each of them; `shifts` (pairs, g)
        are their products with the influences on the mean, if known.
        """
        queries = influences.queries
        self._groups[code] = queries.counts
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        cells = owner[starts]
        shifts = W @ influences.mean.T if shifts is None else shifts  # (pairs, g)
        scored = ScoredPairs.of(scores, shifts, unit * queries.unit, queries.counts)
        self._kappa[code] += scored.kappa.sum()
        on_mean, on_variance = bias_terms(scores, scored.kappa, len(queries.y))
        on_query = scores.first[:, None] * scored.shifts  # (pairs, g)
        self._queries[code, cells] += np.add.reduceat(on_query, starts, axis=0)
        self._queries[code, cells] += self._through_covariance(
            W, scores.width_slope, scored.precision, starts, influences
        )
        self._bias[code, cells] += np.add.reduceat(on_mean, starts)
        self._variance_bias[code, cells] += np.add.reduceat(on_variance, starts)
        self._add_values(code, owner, group, scores.value, self._pair_values, self._pair_counts)
        if seen_by is not None:
            sums = self._seen_values, self._seen_counts
            self._add_values(code, owner, seen_by, scores.value, *sums)
        return scored

    def _add_values(
        self, code: int, owner: Ints, group: Ints, value: Array, values: Array, counts: Ints
    ) -> None:
        """Add plasticity of pairs, and their numbers, to the sums of their cells and groups."""
        slot = owner * GROUPS + group
        size = self._bias.shape[1] * GROUPS
        values[code] += np.bincount(slot, value, size).reshape(-1, GROUPS)
        counts[code] += np.bincount(slot, minlength=size).reshape(-1, GROUPS)

    def _through_covariance(
        self,
        W: Vectors,
        slope: Array,
        precision: Array,
        starts: Ints,
        influences: GaussianInfluences,
    ) -> Array:
        """(cells, g): sums over pairs of `slope · wᵀD_g w / v`, with D_g on the covariance."""
        queries = influences.queries
        n = len(queries.y)
        from_scatter = scatter_products(W, np.sqrt(slope) * precision, starts, influences.scatter)
        result = from_scatter / (n - 1)
        inside = slope
        first = self._first
        if first is not None:
            along = (W[:, 0] * precision) ** 2 / queries.unit**2  # (pairs,) w₁²/v
            inside = slope * (1.0 - along * first.variance)
            on_first = np.add.reduceat(slope * along, starts)
            result += np.multiply.outer(on_first, first.on_variance)
        result -= np.multiply.outer(np.add.reduceat(inside, starts), queries.counts / n)
        return result

    def finish(
        self, cells: Array, profile: Array, *, diagonal: bool, of_cells: bool = False
    ) -> Uncertainty:
        """Standard errors and bias of `cells` (query buckets, key buckets) and `profile`.

        The profile is a mean over pairs, or with `of_cells` over cells.
        """
        pairs = self._pair_counts.sum(axis=2)  # (query buckets, key buckets)
        totals = pairs.sum(axis=1)
        factors = jackknife_factor(self._groups)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            kappa = self._kappa / totals
            shared = 0.0 if diagonal else variance_error(kappa, self._groups)  # (query buckets,)
            bias = self._bias + np.reshape(shared, (-1, 1)) * self._variance_bias
            of_pairs = self._of_pairs(cells, np.asarray)
            influences = factors[:, :, None] * self._queries / pairs[:, :, None] + of_pairs
            cell_se = np.sqrt((influences**2).sum(axis=2))
            cell_bias = bias / pairs
            if of_cells:
                profile_influences = self._influences_on_means_of_cells(cells)
                profile_bias = mean_of_cells(cell_bias)
            else:
                profile_influences = factors * self._queries.sum(axis=1) / totals[:, None]
                profile_influences += self._of_pairs(profile, lambda sums: sums.sum(axis=1))
                profile_bias = bias.sum(axis=1) / totals
        few_texts = np.count_nonzero(self._groups, axis=1) < MIN_BUCKET_GROUPS
        few_pair_texts = np.count_nonzero(self._pair_counts, axis=2) < 2
        cell_se[few_texts[:, None] | few_pair_texts] = np.nan
        return Uncertainty(cell_se, cell_bias, profile_bias, profile_influences, self._groups)

    def _of_pairs(
        self, means: Array, summed: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    ) -> Array:
        """(…, g) influences through the pairs, and through the queries drawn with them."""
        of_pairs = pair_influences(summed(self._pair_values), summed(self._pair_counts), means)
        if not self._seen_counts.any():
            return of_pairs
        seen = pair_influences(summed(self._seen_values), summed(self._seen_counts), means)
        return np.asarray(of_pairs + seen)

    def _influences_on_means_of_cells(self, cells: Array) -> Array:
        """(query buckets, g) influences on the mean over the cells of each query bucket."""
        counts = self._pair_counts
        pairs = counts.sum(axis=2, keepdims=True)  # (query buckets, key buckets, 1)
        through_queries = mean_of_cells(self._queries / pairs)
        through_pairs = mean_of_cells((self._pair_values - counts * cells[:, :, None]) / pairs)
        queries = jackknife_factor(self._groups)[:, None] * through_queries
        return np.asarray(queries + jackknife_factor(counts.sum(axis=1))[:, None] * through_pairs)


def mean_of_cells(values: Array) -> Array:
    """(query buckets, …) means over the cells with pairs, the second axis; the others are NaN."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means: Array = np.where(known, values, 0.0).sum(axis=1) / np.count_nonzero(known, axis=1)
    return means


def mean_error(shifts: Vectors, counts: Ints) -> Array:
    """κ (pairs,): squared error of the mean of `w·q`, relative to its variance.

    It comes from the influences `shifts` (pairs, g) of the groups on the mean, in units of √v. It
    is 1/n if all queries are of one group.
    """
    if np.count_nonzero(counts) < 2:
        return np.full(len(shifts), 1.0 / counts.sum())
    return np.asarray(jackknife_factor(counts) ** 2 * np.einsum("pg,pg->p", shifts, shifts))


def variance_error(kappa: Array, groups: Ints) -> Array:
    """κ_v per query bucket, from its mean κ and its numbers of queries per group."""
    n = groups.sum(axis=1).astype(np.float64)
    effective = n**2 / (groups.astype(np.float64) ** 2).sum(axis=1)  # number of equal groups
    span = 1.0 / effective - 1.0 / n
    similarity = np.clip((kappa - 1.0 / n) / np.where(span > 0, span, np.inf), 0.0, 1.0)
    result: Array = similarity**2 / effective + (1.0 - similarity**2) / n
    return result


def bias_terms(scores: PairScores, kappa: Array, n: int) -> tuple[Array, Array]:
    """(pairs,) bias without κ_v, and the factor of κ_v."""
    slope = scores.first * scores.z
    without = 0.5 * scores.second * kappa + 0.5 * slope * (kappa - 1.0 / n)
    return without, (scores.second * scores.z**2 + 3.0 * slope) / 4.0


def pair_influences(sums: Array, counts: npt.NDArray[Any], means: Array) -> Array:
    """(…, g) influences of the groups through their pairs, with the small-sample factor."""
    total = counts.sum(axis=-1, keepdims=True)
    influences: Array = (sums - counts * np.nan_to_num(means)[..., None]) / total
    return np.asarray(influences * jackknife_factor(counts)[..., None])


def scatter_products(W: Vectors, weights: Array, starts: Ints, scatter: Vectors) -> Array:
    """(cells, g): for every cell `⟨Σ weight² w wᵀ, scatter_g⟩`.

    `starts` are the first rows of the cells in `W` (pairs, d); `scatter` is (g, d, d) or (g, d).
    """
    if weights.max(initial=0.0) > _LARGEST_FLOAT32 or scatter.dtype == np.float64:
        W, scatter = W.astype(np.float64), scatter.astype(np.float64)
    scale = weights.astype(W.dtype)[:, None]
    if scatter.ndim == 2:
        squares = (W * scale) ** 2  # (pairs, d)
        return np.asarray(np.add.reduceat(squares, starts, axis=0) @ scatter.T, np.float64)
    d = W.shape[1]
    X = W * scale  # (pairs, d)
    right = X.copy()  # with a copy, numpy computes a general product; it is faster for few pairs
    sums = np.empty((len(starts), GROUPS))
    by_row = scatter.transpose(1, 2, 0)  # (d, d, g)
    step = max(1, _MOST_PRODUCTS // d**2)
    ends = np.append(starts[1:], len(W))
    for begin in range(0, len(starts), step):
        end = min(begin + step, len(starts))
        products = np.empty((end - begin, d, d), W.dtype)
        for cell in range(begin, end):
            pairs = slice(starts[cell], ends[cell])
            np.matmul(X[pairs].T, right[pairs], out=products[cell - begin])
        sums[begin:end] = np.matmul(products.transpose(1, 0, 2), by_row).sum(axis=0)
    return sums
