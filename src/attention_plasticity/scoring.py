"""Scoring of key pairs under the Gaussians of the query buckets.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.counting import CountedPlasticity, CountingSums, is_counted
from attention_plasticity.distances import DistanceSums
from attention_plasticity.influences import GroupedQueries
from attention_plasticity.key_pairs import PAIR_BLOCK, KeyIndex, KeyPairs, PairSampling
from attention_plasticity.profile import AttentionPlasticity
from attention_plasticity.query_model import BucketMoments, Gaussian
from attention_plasticity.scaling import row_maxima
from attention_plasticity.scores import (
    PairScores,
    margin_and_deviation,
    plasticity_from_margin,
    score_margins,
    standardised,
)
from attention_plasticity.statistics import row_blocks
from attention_plasticity.uncertainty import Uncertainty, UncertaintySums
from attention_plasticity.variance_parts import VarianceSums

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Vectors = npt.NDArray[np.floating[Any]]
Rows = slice | npt.NDArray[np.intp]


def key_differences(X_k: Vectors, pairs: KeyPairs) -> Array:
    """`W` (pairs, d): first key minus second key."""
    W: Array = np.subtract(X_k[pairs.first], X_k[pairs.second], dtype=np.float64)
    return W


def key_pairs(
    keys: KeyIndex,
    pair_sampling: PairSampling,
    num_pairs_per_bucket: int,
    max_rel_dist: float,
    rng: np.random.Generator,
) -> KeyPairs | Callable[[Bools], KeyPairs]:
    """Pairs for all query buckets, or a function that draws the pairs of one query bucket."""
    if pair_sampling == "context":
        return partial(keys.context_pairs, num_pairs_per_bucket=num_pairs_per_bucket, rng=rng)
    return keys.draw(pair_sampling, num_pairs_per_bucket, max_rel_dist, rng)


@dataclass(frozen=True)
class TextSample:
    """What is needed for standard errors: the groups of the texts of queries and keys."""

    queries: GroupedQueries
    bucket_rows: list[slice]  # rows of every query bucket in `queries`
    key_group: Ints  # (keys,)
    counting: CountingSums | None = None  # None: no pairs are counted
    variance: VarianceSums | None = None  # None: the parts of the error are not computed


def score_pairs(
    differences: Callable[[KeyPairs], Array],
    pairs: KeyPairs | Callable[[Bools], KeyPairs],
    key_buckets: Ints,
    moments: BucketMoments,
    gaussians: list[Gaussian],
    eligible: Bools,
    texts: TextSample | None = None,
) -> AttentionPlasticity:
    """Score the pairs under each query bucket's Gaussian.

    `differences` returns the rotated key differences W (pairs, d) of a block of pairs. A pair is
    used for a query bucket if the buckets of both keys are eligible. It is counted in the cell of
    its owner. `pairs` may be a function that draws the pairs of one query bucket from its eligible
    key buckets; plasticity by distance is computed then. With `texts`, standard errors and bias are
    computed too.
    """
    shared = isinstance(pairs, KeyPairs)
    distances = None if shared else DistanceSums(moments.bucket, key_buckets)
    scoring = _Scoring(moments, gaussians, eligible, texts, distances)
    codes = range(len(gaussians))
    for part in [codes] if shared else [[code] for code in codes]:
        drawn = pairs if isinstance(pairs, KeyPairs) else pairs(eligible[part[0]])
        for rows in row_blocks(len(drawn), moments.mean.shape[1], PAIR_BLOCK):
            block = drawn.part(rows)
            scoring.add(differences(block), block, part)
    q_code, k_code = np.nonzero(eligible)
    with np.errstate(invalid="ignore"):
        cells = scoring.sums / scoring.counts
        profile = scoring.sums.sum(axis=1) / scoring.counts.sum(axis=1)
    return AttentionPlasticity(
        q_code=q_code,
        k_code=k_code,
        plasticity=cells[q_code, k_code],
        n_pairs=scoring.counts[q_code, k_code],
        query_buckets=moments.bucket,
        query_positions=moments.position,
        query_counts=moments.count,
        key_buckets=key_buckets,
        profile=profile,
        uncertainty=scoring.uncertainty(cells, profile),
        counted=scoring.counted(moments.count),
        distances=None if distances is None else distances.finish(),
    )


class _PairRows(NamedTuple):
    """Key differences in float32, with the owner and the group of texts of each pair."""

    W: Vectors  # (pairs, d)
    owner: Ints  # (pairs,)
    group: Ints  # (pairs,)

    def part(self, rows: Rows) -> _PairRows:
        """Some of the pairs."""
        return _PairRows(self.W[rows], self.owner[rows], self.group[rows])


class _GroupedPairs(NamedTuple):
    """A block of pairs, and the part of it that is counted. `W` is divided by `unit`."""

    unit: Array  # (pairs,)
    pairs: _PairRows
    chosen: Ints  # numbers of the counted pairs
    counted: _PairRows

    @classmethod
    def of(cls, W: Array, pairs: KeyPairs, texts: TextSample) -> _GroupedPairs:
        """The pairs with differences `W` (pairs, d)."""
        unit = _powers_of_two(W)
        scaled = np.empty(W.shape, np.float32)
        np.divide(W, unit[:, None], out=scaled, casting="same_kind")
        rows = _PairRows(scaled, pairs.owner, texts.key_group[pairs.first])
        chosen = np.flatnonzero(is_counted(pairs.rank))
        return cls(unit, rows, chosen, rows.part(chosen))

    def counted_part(self, rows: Rows) -> tuple[_PairRows, Ints]:
        """The counted pairs among some of the pairs, and their places among them."""
        if isinstance(rows, slice):
            begin, end = np.searchsorted(self.chosen, [rows.start, rows.stop])
            return self.counted.part(slice(begin, end)), self.chosen[begin:end] - rows.start
        common = np.isin(self.chosen, rows)
        return self.counted.part(np.flatnonzero(common)), np.searchsorted(rows, self.chosen[common])


class _Scoring:
    """Sums of scores per cell, over blocks of pairs."""

    def __init__(
        self,
        moments: BucketMoments,
        gaussians: list[Gaussian],
        eligible: Bools,
        texts: TextSample | None,
        distances: DistanceSums | None,
    ) -> None:
        self._distances = distances
        self._moments, self._gaussians, self._eligible = moments, gaussians, eligible
        self._texts = texts
        self._uncertainty = None
        if texts is not None:
            positional = texts.queries.model == "positional"
            first = texts.queries.first if positional else None
            query_buckets, key_buckets = eligible.shape
            self._uncertainty = UncertaintySums(query_buckets, key_buckets, first)
        self.sums, self.counts = np.zeros(eligible.shape), np.zeros(eligible.shape, np.int64)

    def add(self, W: Array, pairs: KeyPairs, codes: Iterable[int]) -> None:
        """Score the pairs with differences `W` (pairs, d) for some query buckets."""
        block = None if self._texts is None else _GroupedPairs.of(W, pairs, self._texts)
        width = self._eligible.shape[1]
        for code in codes:
            gaussian = self._gaussians[code]
            rows = self._used(code, pairs)
            owner = pairs.owner[rows]
            if len(owner) == 0:
                continue
            margin, deviation = margin_and_deviation(W[rows], gaussian)
            self.counts[code] += np.bincount(owner, minlength=width)
            if block is None:
                values = plasticity_from_margin(standardised(margin, deviation))
            else:
                scores = score_margins(margin, deviation)
                values = scores.value
                self._add_errors(code, scores, block, pairs, rows)
            self.sums[code] += np.bincount(owner, values, minlength=width)
            if self._distances is not None:
                self._distances.add(code, owner, pairs.other[rows], values)

    def _used(self, code: int, pairs: KeyPairs) -> Rows:
        """Pairs with both keys in eligible buckets, as a slice if they are contiguous."""
        eligible = self._eligible[code]
        used = np.flatnonzero(eligible[pairs.owner] & eligible[pairs.other])
        if len(used) and used[-1] + 1 - used[0] == len(used):
            return slice(int(used[0]), int(used[-1]) + 1)
        return used

    def _add_errors(
        self, code: int, scores: PairScores, block: _GroupedPairs, pairs: KeyPairs, rows: Rows
    ) -> None:
        texts = self._texts
        assert texts is not None
        assert self._uncertainty is not None
        moments = self._moments
        queries = texts.queries.centred(
            texts.bucket_rows[code], moments.mean[code], np.diagonal(moments.covariance[code])
        )
        influences = texts.queries.influences(queries)
        part = block.pairs.part(rows)
        scored = self._uncertainty.add(code, *part, block.unit[rows], scores, influences)
        if texts.variance is not None:
            first, second = pairs.first[rows], pairs.second[rows]
            texts.variance.add(code, queries, part.W, scored, first, second)
        if texts.counting is not None:
            counted, among = block.counted_part(rows)
            texts.counting.add(code, queries, *counted, scored.part(among))

    def uncertainty(self, cells: Array, profile: Array) -> Uncertainty | None:
        """Standard errors and bias, after all pairs were added."""
        if self._uncertainty is None or self._texts is None:
            return None
        diagonal = self._texts.queries.model == "diagonal"
        return self._uncertainty.finish(cells, profile, diagonal=diagonal)

    def counted(self, counts: Ints) -> CountedPlasticity | None:
        """Counted plasticity, after all pairs were added."""
        if self._texts is None or self._texts.counting is None:
            return None
        return self._texts.counting.finish(counts)


def _powers_of_two(W: Array) -> Array:
    """(pairs,) powers of two above the absolute values of every row of `W`; 1 for zeros."""
    return np.ldexp(1.0, np.frexp(row_maxima(W))[1])
