"""Scoring of key pairs under the Gaussians of the query buckets.

Arrays in, arrays out; numpy and scipy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.blocks import row_blocks
from attention_plasticity.numeric.errors.bucket_influences import BucketInfluences
from attention_plasticity.numeric.errors.counting import CountedPlasticity, CountingSums, is_counted
from attention_plasticity.numeric.errors.influences import GroupedQueries
from attention_plasticity.numeric.errors.uncertainty import (
    Uncertainty,
    UncertaintySums,
    mean_of_cells,
)
from attention_plasticity.numeric.errors.variance_parts import VarianceSums
from attention_plasticity.numeric.key_pairs import PAIR_BLOCK, KeyPairs
from attention_plasticity.numeric.pair_samples import PairSample
from attention_plasticity.numeric.profile import AttentionPlasticity, DistanceSums
from attention_plasticity.numeric.query_model import QueryModel
from attention_plasticity.numeric.scaling import row_maxima
from attention_plasticity.numeric.scores import (
    PairScores,
    margin_and_deviation,
    plasticity_from_margin,
    score_margins,
    standardised,
)
from attention_plasticity.numeric.visible_pairs import SeenPairs
from qk_toolkit.arrays import Array, Ints, Vectors

Rows = slice | npt.NDArray[np.intp]


@dataclass(frozen=True)
class TextSample:
    """What is needed for standard errors: the groups of the texts of queries and keys."""

    queries: GroupedQueries
    buckets: BucketInfluences
    key_group: Ints  # (keys,)
    counting: CountingSums | None = None  # None: no pairs are counted
    variance: VarianceSums | None = None  # None: the parts of the error are not computed


def score_pairs(
    queries: QueryModel, sample: PairSample, texts: TextSample | None = None
) -> AttentionPlasticity:
    """Plasticity of the pairs of `sample`.

    With `texts`, standard errors and bias are computed too. Plasticity by distance is computed if
    the pairs are drawn for each query bucket.
    """
    distances = (
        None
        if isinstance(sample.pairs, KeyPairs)
        else DistanceSums(queries.moments.bucket, sample.key_buckets)
    )
    scoring = _Scoring(queries, sample, texts, distances)
    for part, block in _blocks(scoring, sample, len(queries.gaussians)):
        for code in part:
            scoring.add(code, block)
    return scoring.finish(sample.key_buckets)


class Turn(Protocol):
    """Turns the key differences of pairs, each by an angle of its own."""

    def __call__(self, W: Array, pairs: KeyPairs) -> Array:
        """The key differences `W` (pairs, d), turned."""


class QuerySample(NamedTuple):
    """A model of the queries, and what is needed for its standard errors."""

    queries: QueryModel
    texts: TextSample | None
    turn: Turn | None = None  # of the key differences; None: they stay


def score_models(
    models: Sequence[QuerySample], sample: PairSample, *, of_cells: bool
) -> list[AttentionPlasticity]:
    """Plasticity of the pairs of `sample` under several models of the same query buckets.

    With `of_cells`, the profile is the mean over the cells of a query bucket, else over its pairs.
    Pairs are drawn once, for all models. A draw per query bucket (`PairDraw`) is the place for
    pairs that are seen through a window, and for pairs in proportion to attention.
    """
    scorings = [
        _Scoring(queries, sample, texts, None, of_cells, of_bins=True)
        for queries, texts, _ in models
    ]
    for part, block in _blocks(scorings[0], sample, len(models[0].queries.gaussians)):
        for scoring, model in zip(scorings, models, strict=True):
            own = block if model.turn is None else scoring.turned(block, model.turn)
            for code in part:
                scoring.add(code, own)
    return [scoring.finish(sample.key_buckets) for scoring in scorings]


def counted_pairs(sample: PairSample) -> Ints:
    """(query buckets, key buckets) numbers of counted pairs, for pairs that are drawn once."""
    pairs = sample.pairs
    assert isinstance(pairs, KeyPairs)
    query_buckets, key_buckets = sample.eligible.shape
    counted = is_counted(pairs.rank)
    counts = [
        np.bincount(pairs.owner[used[counted[used]]], minlength=key_buckets)
        for used in (sample.used(code, pairs) for code in range(query_buckets))
    ]
    return np.array(counts, np.int64).reshape(query_buckets, key_buckets)


def _blocks(
    scoring: _Scoring, sample: PairSample, query_buckets: int
) -> Iterator[tuple[Sequence[int], _Block]]:
    """Blocks of pairs, each with its query buckets."""
    codes, pairs = range(query_buckets), sample.pairs
    for part in (
        [codes] if isinstance(pairs, KeyPairs) else [range(code, code + 1) for code in codes]
    ):
        drawn = pairs if isinstance(pairs, KeyPairs) else pairs.draw(sample.eligible[part[0]])
        for rows in scoring.blocks(drawn):
            yield part, scoring.block(drawn.part(rows))


class _PairRows(NamedTuple):
    """Key differences in float32, with the owner and the group of texts of each pair.

    `seen_by` is the group of the text of the query that was drawn with a pair; None if pairs are
    drawn without a query.
    """

    W: Vectors  # (pairs, d)
    owner: Ints  # (pairs,)
    group: Ints  # (pairs,)
    seen_by: Ints | None  # (pairs,)

    def part(self, rows: Rows) -> _PairRows:
        """Some of the pairs."""
        seen_by = None if self.seen_by is None else self.seen_by[rows]
        return _PairRows(self.W[rows], self.owner[rows], self.group[rows], seen_by)


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
        seen_by = texts.queries.group[pairs.query] if isinstance(pairs, SeenPairs) else None
        rows = _PairRows(scaled, pairs.owner, texts.key_group[pairs.first], seen_by)
        chosen = np.flatnonzero(is_counted(pairs.rank))
        return cls(unit, rows, chosen, rows.part(chosen))

    def counted_part(self, rows: Rows) -> tuple[_PairRows, Ints]:
        """The counted pairs among some of the pairs, and their places among them."""
        if isinstance(rows, slice):
            begin, end = np.searchsorted(self.chosen, [rows.start, rows.stop])
            return self.counted.part(slice(begin, end)), self.chosen[begin:end] - rows.start
        common = np.isin(self.chosen, rows)
        return self.counted.part(np.flatnonzero(common)), np.searchsorted(rows, self.chosen[common])


class _Block(NamedTuple):
    """Some pairs with their key differences `W`; `grouped` is needed for errors."""

    W: Array  # (pairs, d)
    pairs: KeyPairs
    grouped: _GroupedPairs | None


class _Scoring:
    """Sums of scores per cell, over blocks of pairs."""

    def __init__(
        self,
        queries: QueryModel,
        sample: PairSample,
        texts: TextSample | None,
        distances: DistanceSums | None,
        of_cells: bool = False,
        of_bins: bool = False,
    ) -> None:
        self._of_cells, self._of_bins = of_cells, of_bins
        self._moments, self._gaussians = queries.moments, queries.gaussians
        self._sample, self._distances = sample, distances
        eligible = sample.eligible
        self._texts = texts
        self._uncertainty = None
        if texts is not None:
            positional = texts.queries.model == "positional"
            first = texts.queries.first if positional else None
            query_buckets, key_buckets = eligible.shape
            self._uncertainty = UncertaintySums(query_buckets, key_buckets, first)
        self._sums, self._counts = np.zeros(eligible.shape), np.zeros(eligible.shape, np.int64)

    def blocks(self, pairs: KeyPairs) -> list[slice]:
        """Parts of the pairs that are scored at a time."""
        width = self._moments.mean.shape[1]
        return list(row_blocks(len(pairs), width, PAIR_BLOCK))

    def block(self, pairs: KeyPairs) -> _Block:
        """Pairs with their key differences."""
        return self._block(self._sample.keys.differences(pairs), pairs)

    def turned(self, block: _Block, turn: Turn) -> _Block:
        """The same pairs with turned key differences."""
        return self._block(turn(block.W, block.pairs), block.pairs)

    def _block(self, W: Array, pairs: KeyPairs) -> _Block:
        grouped = None if self._texts is None else _GroupedPairs.of(W, pairs, self._texts)
        return _Block(W, pairs, grouped)

    def add(self, code: int, block: _Block) -> None:
        """Score a block of pairs for one query bucket."""
        W, pairs, grouped = block
        width = self._sample.eligible.shape[1]
        rows = self._used(code, pairs)
        owner = pairs.owner[rows]
        if len(owner) == 0:
            return
        self._counts[code] += np.bincount(owner, minlength=width)
        single = None if grouped is None else self._in_single_precision(code, grouped, rows)
        shifts = None
        if single is None:
            margin, deviation = margin_and_deviation(W[rows], self._gaussians[code])
        else:
            margin, deviation, shifts = single
        if grouped is None:
            values = plasticity_from_margin(standardised(margin, deviation))
        else:
            scores = score_margins(margin, deviation)
            values = scores.value
            self._add_errors(code, scores, grouped, pairs, rows, shifts)
        self._sums[code] += np.bincount(owner, values, minlength=width)
        if self._distances is not None:
            self._distances.add(code, owner, pairs.other[rows], values)

    def _in_single_precision(
        self, code: int, block: _GroupedPairs, rows: Rows
    ) -> tuple[Array, Array, Vectors] | None:
        """Mean and deviation of `w·q`, and shifts, from one float32 product for all of them.

        None if this is not wanted, or if float32 is too coarse for the queries of the bucket.
        """
        texts, gaussian = self._texts, self._gaussians[code]
        if not self._of_bins or texts is None:
            return None
        influences = texts.buckets.of(code)
        if influences.mean.dtype != np.float32:
            return None
        unit, d = influences.queries.unit, len(gaussian.mean)
        right = np.empty((d, d + 1 + len(influences.mean)), np.float32)
        right[:, :d], right[:, d] = gaussian.factor / unit, gaussian.mean / unit
        right[:, d + 1 :] = influences.mean.T
        found = block.pairs.W[rows] @ right  # (pairs, d + 1 + g)
        units = block.unit[rows] * unit
        variance = np.einsum("pd,pd->p", found[:, :d], found[:, :d])
        deviation = np.sqrt(variance.astype(np.float64)) * units
        return found[:, d] * units, deviation, found[:, d + 1 :]

    def _used(self, code: int, pairs: KeyPairs) -> Rows:
        """Pairs with both keys in eligible buckets, as a slice if they are contiguous."""
        used = self._sample.used(code, pairs)
        if len(used) and used[-1] + 1 - used[0] == len(used):
            return slice(int(used[0]), int(used[-1]) + 1)
        return used

    def _add_errors(
        self,
        code: int,
        scores: PairScores,
        block: _GroupedPairs,
        pairs: KeyPairs,
        rows: Rows,
        shifts: Vectors | None,
    ) -> None:
        texts = self._texts
        assert texts is not None
        assert self._uncertainty is not None
        influences = texts.buckets.of(code)
        queries = influences.queries
        part = block.pairs.part(rows)
        scored = self._uncertainty.add(
            code,
            part.W,
            part.owner,
            part.group,
            block.unit[rows],
            scores,
            influences,
            shifts,
            part.seen_by,
        )
        if texts.variance is not None:
            first, second = pairs.first[rows], pairs.second[rows]
            texts.variance.add(code, queries, part.W, scored, first, second)
        if texts.counting is not None:
            counted, among = block.counted_part(rows)
            texts.counting.add(
                code,
                queries,
                counted.W,
                counted.owner,
                counted.group,
                scored.part(among),
                counted.seen_by,
            )

    def finish(self, key_buckets: Ints) -> AttentionPlasticity:
        """Plasticity, after all pairs were added."""
        moments, eligible = self._moments, self._sample.eligible
        q_code, k_code = np.nonzero(eligible)
        with np.errstate(invalid="ignore"):
            cells = self._sums / self._counts
            profile = self._sums.sum(axis=1) / self._counts.sum(axis=1)
        if self._of_cells:
            profile = mean_of_cells(cells)
        return AttentionPlasticity(
            q_code=q_code,
            k_code=k_code,
            plasticity=cells[q_code, k_code],
            n_pairs=self._counts[q_code, k_code],
            query_buckets=moments.bucket,
            query_positions=moments.position,
            query_counts=moments.count,
            key_buckets=key_buckets,
            profile=profile,
            uncertainty=self._errors(cells, profile),
            counted=self._counted(moments.count),
            distances=None if self._distances is None else self._distances.finish(),
        )

    def _errors(self, cells: Array, profile: Array) -> Uncertainty | None:
        if self._uncertainty is None or self._texts is None:
            return None
        diagonal = self._texts.queries.model == "diagonal"
        return self._uncertainty.finish(cells, profile, diagonal=diagonal, of_cells=self._of_cells)

    def _counted(self, counts: Ints) -> CountedPlasticity | None:
        if self._texts is None or self._texts.counting is None:
            return None
        return self._texts.counting.finish(counts)


def _powers_of_two(W: Array) -> Array:
    """(pairs,) powers of two above the absolute values of every row of `W`; 1 for zeros."""
    return np.ldexp(1.0, np.frexp(row_maxima(W))[1])
