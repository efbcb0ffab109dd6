"""Plasticity by counting: how often each of two keys wins, without a Gaussian.

Arrays in, arrays out; numpy and scipy only. For a part of the key pairs and queries, the queries
that prefer the first key are counted. Two queries are compared only if they are of different groups
of texts, so that similar queries of one text add no bias. The Gaussian of the same pairs and
queries is computed too; the difference of both shows the error of the Gaussian model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import get_blas_funcs

from attention_plasticity.numeric.errors.influences import CentredQueries, GroupedQueries
from attention_plasticity.numeric.errors.text_groups import jackknife_factor
from attention_plasticity.numeric.errors.uncertainty import (
    Estimate,
    ScoredPairs,
    bias_terms,
    pair_influences,
    variance_error,
    weighted_estimate,
)
from attention_plasticity.numeric.scores import score_margins
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

_COUNTED_SHARE = 0.25  # of the pairs
_GOLDEN_RATIO = (5**0.5 - 1) / 2
MOST_QUERIES = 512  # counted per query bucket
_ALL_QUERIES = 128  # up to this number, all queries of a bucket are counted
_MOST_SCORES = 1 << 18  # float32 values of w·q in memory at a time


@dataclass(frozen=True)
class CountedPlasticity:
    """Counted plasticity of a head, and its difference from the Gaussian plasticity."""

    cells: Array  # (query buckets, key buckets); NaN where no pair was counted
    counted: Estimate
    gap: Estimate | None  # Gaussian, after subtraction of its bias, minus counted; if wanted


def is_counted(rank: Ints) -> npt.NDArray[np.bool_]:
    """Whether a pair is counted, by its number among the pairs of its key bucket.

    A quarter of the numbers, spread evenly. A fixed step could always meet the same texts, because
    pairs can be in the order of their texts.
    """
    chosen: npt.NDArray[np.bool_] = rank * _GOLDEN_RATIO % 1.0 < _COUNTED_SHARE
    return chosen


def counted_queries(n: int) -> int:
    """Number of queries that are counted in a bucket of n: half of them, if there are many."""
    return min(n, MOST_QUERIES, max(_ALL_QUERIES, n // 2))


class GroupSums(NamedTuple):
    """Sums over the queries of every group, for some pairs; y is a query minus the mean."""

    preferred: Array  # (pairs, g) numbers of queries that prefer the first key; ties count ½
    squares: Array | None  # (pairs, g) sums of (w·y)², if wanted


class PairValues(NamedTuple):
    """Plasticity of some pairs, and the sum over pairs of the influences of the query groups."""

    value: Array  # (pairs,)
    influences: Array  # (g,)


class _GaussianTerms(NamedTuple):
    """Gaussian plasticity of some pairs minus its bias without κ_v, and the factor of κ_v."""

    value: Array  # (pairs,)
    variance_bias: Array  # (pairs,)


class _PairSums:
    """Sums over counted pairs, per query bucket and group of texts."""

    def __init__(self, query_buckets: int) -> None:
        self.counted, self.gaussian, self.variance_bias, self.pairs = np.zeros(
            (4, query_buckets, GROUPS)
        )

    def add(
        self,
        code: int,
        group: Ints,
        counted: Array,
        gaussian: _GaussianTerms | None,
        weight: Array | None,
    ) -> None:
        """Add counted plasticity of pairs (pairs,), and that of the Gaussian if it is wanted."""
        self.pairs[code] += np.bincount(group, weight, GROUPS)
        self.counted[code] += np.bincount(group, _times(counted, weight), GROUPS)
        if gaussian is not None:
            for sums, added in zip((self.gaussian, self.variance_bias), gaussian, strict=True):
                sums[code] += np.bincount(group, _times(added, weight), GROUPS)

    def gap(self, shared: Array) -> Array:
        """(query buckets, g) Gaussian minus counted, with κ_v `shared` (query buckets,)."""
        return self.gaussian - shared[:, None] * self.variance_bias - self.counted


class CountingSums:
    """Sums over the counted pairs, per query bucket, from which `CountedPlasticity` is computed."""

    def __init__(
        self,
        queries: GroupedQueries,
        alpha: float,
        query_buckets: int,
        key_buckets: int,
        cell_pairs: Ints | None = None,
        weights: Array | None = None,
        *,
        with_gap: bool = True,
    ) -> None:
        """`alpha` is the intercept of the first component in the regression on position.

        Without `with_gap`, the Gaussian of the counted queries is not computed. This is faster.
        With `cell_pairs` (query buckets, key buckets), the numbers of counted pairs, plasticity of
        a query bucket is the mean over its cells, else over its pairs. `weights` (query buckets, g)
        are the weights of the queries of every group; without them, every query counts once.
        """
        self._cell_pairs, self._weights, self._with_gap = cell_pairs, weights, with_gap
        self._queries = queries
        self._alpha = alpha
        cells = (query_buckets, key_buckets)
        self._counted_cells = np.zeros(cells)
        self._pairs = np.zeros(cells, np.int64)
        by_group = (query_buckets, GROUPS)
        self._of_keys = _PairSums(query_buckets)  # by the texts of the keys
        self._of_queries = _PairSums(query_buckets)  # by those of the queries drawn with the pairs
        self._kappa = np.zeros(query_buckets)
        self._counted_influences = np.zeros(by_group)
        self._gaussian_influences = np.zeros(by_group)
        self._groups = np.zeros(by_group, np.int64)

    def add(
        self,
        code: int,
        queries: CentredQueries,
        W: Vectors,
        owner: Ints,
        group: Ints,
        scored: ScoredPairs,
        seen_by: Ints | None = None,
    ) -> None:
        """Count pairs for query bucket `code` with the given queries.

        `W` (pairs, d) are key differences, each in any unit; `group` is the group of their text,
        and `seen_by` that of the query that was drawn with each of them; `scored` are the scores of
        the pairs under the Gaussian of all queries.
        """
        sample = queries.sample(counted_queries(len(queries.y)))
        self._groups[code] = sample.counts
        margin = W @ sample.mean  # (pairs,)
        sums = sum_by_group(sample, W, margin, with_squares=self._with_gap)
        weight = self._weight(code, owner)
        counted = between_groups(sums.preferred, sample.counts, weight)
        width = self._pairs.shape[1]
        self._counted_cells[code] += np.bincount(owner, counted.value, width)
        self._pairs[code] += np.bincount(owner, minlength=width)
        self._counted_influences[code] += counted.influences
        gaussian = None
        if sums.squares is not None:
            known = scored if sample is queries else None
            gaussian = self._add_gaussian(code, sample, W, margin, sums.squares, known, weight)
        self._of_keys.add(code, group, counted.value, gaussian, weight)
        if seen_by is not None:
            self._of_queries.add(code, seen_by, counted.value, gaussian, weight)

    def _add_gaussian(
        self,
        code: int,
        sample: CentredQueries,
        W: Vectors,
        margin: Array,
        squares: Array,
        scored: ScoredPairs | None,
        weight: Array | None,
    ) -> _GaussianTerms:
        """Add the Gaussian of the counted queries; `scored` are its scores if they are known."""
        if self._queries.model == "diagonal":
            own = W**2 @ (sample.membership @ sample.y**2).T  # (pairs, g)
            squares = own.astype(np.float64)
        if scored is None:
            scored = self._score(sample, W, margin, squares)
        bias, variance_bias = bias_terms(scored.scores, scored.kappa, len(sample.y))
        self._kappa[code] += _times(scored.kappa, weight).sum()
        self._gaussian_influences[code] += self._through_queries(sample, W, scored, squares, weight)
        return _GaussianTerms(scored.scores.value - bias, variance_bias)

    def _weight(self, code: int, owner: Ints) -> Array | None:
        """(pairs,) weights with which every cell has the same weight; None if pairs have it."""
        if self._cell_pairs is None:
            return None
        return np.asarray(1.0 / self._cell_pairs[code, owner])

    def _score(
        self, sample: CentredQueries, W: Vectors, margin: Array, squares: Array
    ) -> ScoredPairs:
        """Scores of the pairs under the Gaussian of a sample of the queries."""
        variance = squares.sum(axis=1) / (len(sample.y) - 1)
        shifts = W @ (sample.membership @ sample.y / sample.y.dtype.type(len(sample.y))).T
        if sample.first is not None:
            first, unit = self._queries.first, sample.unit
            assert first is not None
            w = W[:, 0].astype(np.float64)
            tau = float(first.position[sample.rows].mean())
            margin = margin + w * ((self._alpha + first.beta * tau) / unit - sample.mean[0])
            shifts += np.multiply.outer(w, first.on_mean(sample.rows) / unit)
            variance = variance + w**2 * (first.variance / unit**2)
        return ScoredPairs.of(score_margins(margin, np.sqrt(variance)), shifts, 1.0, sample.counts)

    def _through_queries(
        self,
        sample: CentredQueries,
        W: Vectors,
        scored: ScoredPairs,
        squares: Array,
        weight: Array | None,
    ) -> Array:
        """(g,) influences of the query groups on Gaussian plasticity, summed over pairs."""
        n = len(sample.y)
        slope = _times(scored.scores.width_slope * scored.precision**2, weight)  # (pairs,)
        first = _times(scored.scores.first, weight)
        influences = first @ scored.shifts + slope @ squares / (n - 1)
        influences -= float(slope @ squares.sum(axis=1)) / (n - 1) * sample.counts / n
        if sample.first is not None:
            assert self._queries.first is not None
            on_variance = self._queries.first.on_variance / sample.unit**2
            influences += float(slope @ W[:, 0].astype(np.float64) ** 2) * on_variance
        return influences

    def finish(self, counts: Ints) -> CountedPlasticity:
        """Counted plasticity of the head; `counts` (query buckets,) are the numbers of queries."""
        pairs = self._of_keys.pairs.sum(axis=1)  # (query buckets,)
        with np.errstate(invalid="ignore", divide="ignore"):
            cells = self._counted_cells / self._pairs
            counted = self._of_keys.counted.sum(axis=1) / pairs
            on_counted = self._factor * self._counted_influences / pairs[:, None]
            for sums in self._all_sums:
                on_counted += pair_influences(sums.counted, sums.pairs, counted)
        return CountedPlasticity(
            cells=cells,
            counted=self._estimate(counted, on_counted, counts),
            gap=self._gap(counts) if self._with_gap else None,
        )

    def _gap(self, counts: Ints) -> Estimate:
        """Gaussian minus counted plasticity of the head."""
        pairs = self._of_keys.pairs.sum(axis=1)  # (query buckets,)
        with np.errstate(invalid="ignore", divide="ignore"):
            shared = variance_error(self._kappa / pairs, self._groups)
            if self._queries.model == "diagonal":
                shared = np.zeros_like(shared)
            gap = self._of_keys.gap(shared).sum(axis=1) / pairs
            on_counted = self._factor * self._counted_influences / pairs[:, None]
            on_gap = self._factor * self._gaussian_influences / pairs[:, None] - on_counted
            for sums in self._all_sums:
                on_gap += pair_influences(sums.gap(shared), sums.pairs, gap)
        return self._estimate(gap, on_gap, counts)

    @property
    def _factor(self) -> Array:
        """(query buckets, 1) small-sample factors."""
        return jackknife_factor(self._groups)[:, None]

    @property
    def _all_sums(self) -> list[_PairSums]:
        """Sums by the texts of keys, and by those of queries if pairs are drawn with queries."""
        return [sums for sums in (self._of_keys, self._of_queries) if sums.pairs.any()]

    def _estimate(self, values: Array, influences: Array, counts: Ints) -> Estimate:
        """The mean over query buckets; `counts` (query buckets,) are the numbers of queries."""
        groups: npt.NDArray[Any] = self._groups
        totals: npt.NDArray[Any] = counts
        if self._weights is not None:
            groups, totals = self._weights, self._weights.sum(axis=1)
        none, everywhere = np.zeros(len(counts)), np.ones(len(counts), np.bool_)
        return weighted_estimate(values, none, influences, groups, totals, everywhere)


def _times(values: Array, weight: Array | None) -> Array:
    return values if weight is None else values * weight


def sum_by_group(
    sample: CentredQueries, W: Vectors, margin: Array, *, with_squares: bool = True
) -> GroupSums:
    """Sums over queries for the pairs `W` (pairs, d) with `margin` (pairs,), the means of w·q."""
    members = np.ascontiguousarray(sample.membership.T)  # (n, g)
    preferred = np.zeros((len(W), GROUPS))
    squares = np.zeros((len(W), GROUPS)) if with_squares else None
    step = max(1, _MOST_SCORES // len(sample.y))
    buffers = np.empty((2, min(step, len(W)), len(sample.y)), sample.y.dtype)
    threshold = -margin.astype(sample.y.dtype)[:, None]
    W = W.astype(sample.y.dtype, copy=False)
    (rank_one,) = get_blas_funcs(("ger",), (buffers,))
    for start in range(0, len(W), step):
        rows = slice(start, min(start + step, len(W)))
        scores, work = buffers[:, : rows.stop - start]  # (b, n)
        with np.errstate(invalid="ignore"):  # some BLAS libraries set this flag for finite values
            np.matmul(W[rows], sample.y.T, out=scores)
        if squares is not None:
            squares[rows] = np.multiply(scores, scores, out=work) @ members
        if sample.first is not None:  # scores += w₁y₁, in place
            rank_one(1.0, sample.first, W[rows, 0], a=scores.T, overwrite_a=True)
        work[...] = scores > threshold[rows]
        preferred[rows] = work @ members
        ties = scores == threshold[rows]
        if ties.any():
            preferred[rows] += 0.5 * (ties.astype(np.float32) @ members)
    return GroupSums(preferred, squares)


def between_groups(preferred: Array, counts: Ints, weight: Array | None = None) -> PairValues:
    """Plasticity from pairs of queries of different groups.

    `preferred` (pairs, g) are the queries of every group that prefer the first key; `counts` (g,)
    are all queries of the groups; `weight` (pairs,) multiplies the influences of a pair. NaN if all
    queries are of one group.
    """
    n = float(counts.sum())
    total = preferred.sum(axis=1)  # (pairs,)
    squares = np.einsum("pg,pg->p", preferred, preferred)
    within = preferred @ counts - squares  # (pairs,) Σ k_g (n_g − k_g)
    different = n**2 - float((counts.astype(np.float64) ** 2).sum())  # pairs of queries
    with np.errstate(invalid="ignore", divide="ignore"):
        value = 4.0 * (total * (n - total) - within) / different
        # derivatives with respect to the weight of a group, summed over pairs
        weighted = preferred if weight is None else preferred * weight[:, None]
        change = (n - 2.0 * counts) * weighted.sum(axis=0) - 2.0 * (total @ weighted)
        same = 2.0 * np.einsum("pg,pg->g", weighted, preferred)
        change += same + counts * _times(total, weight).sum()
        on_pairs = 2.0 * counts * (n - counts)
        influences = (4.0 * change - _times(value, weight).sum() * on_pairs) / different
    return PairValues(value, influences)
