"""Plasticity at one position: queries of a bin are turned to one position before they are compared.

With RoPE, the same question at two positions is two vectors. The covariance of the queries of a
bucket takes this rotation for content. Here every query of a bin is turned to the mean position of
the bin, and keys stay as they are. The same pairs are also scored with the queries as captured; the
difference is the rotary phase.

In layers with a window or chunks, pairs are drawn for each bin of queries, by tokens, and their
keys are turned to the position of a query that sees both (`head/windows.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.binned_queries import BinnedQueries
from attention_plasticity.head.key_pool import AttendedHead
from attention_plasticity.head.layout import MOST_BUCKETS, MOST_COVARIANCES, MOST_PAIRS
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.windows import (
    AttendedWeights,
    QueryRows,
    TurnToBin,
    WindowPairs,
    window_of,
    window_pairs,
)
from attention_plasticity.numeric.attended_pairs import AttendedDraw, AttendedKeys, text_weights
from attention_plasticity.numeric.bins import Bins, BinWeights
from attention_plasticity.numeric.eligibility import earlier_cells
from attention_plasticity.numeric.errors.bucket_influences import moments_with_influences
from attention_plasticity.numeric.errors.counting import CountingSums
from attention_plasticity.numeric.errors.influences import GroupedQueries
from attention_plasticity.numeric.errors.variance_parts import VarianceParts, VarianceSums
from attention_plasticity.numeric.key_pairs import KeyPairs
from attention_plasticity.numeric.pair_pool import WeightedKeys
from attention_plasticity.numeric.pair_samples import (
    KeyVectors,
    PairDraw,
    PairSample,
    chosen_pairs,
    thinning,
    weighted_pairs,
)
from attention_plasticity.numeric.profile import AttentionPlasticity
from attention_plasticity.numeric.query_model import (
    BucketMoments,
    QueryModel,
    bucket_gaussians,
    bucket_moments,
)
from attention_plasticity.numeric.scoring import (
    QuerySample,
    TextSample,
    counted_pairs,
    score_models,
)
from attention_plasticity.numeric.windows import Window
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array, Ints, Vectors

NO_BINS = "the bins of the run are not known"

_ALIGNED_SEED = 2  # beside the seed of the pairs, so that other pairs do not change
_NONE = np.empty(0)
_UNLIMITED = 1 << 40  # pairs that are drawn with replacement


@dataclass(frozen=True)
class AlignedPlasticity:
    """Plasticity of the bins of a head, of turned queries and of queries as captured."""

    bins: Bins
    aligned: AttentionPlasticity
    pooled: AttentionPlasticity
    weights: BinWeights  # of the queries of the bins with a value or without
    windowed: bool = False  # pairs were drawn by tokens, as queries see them


def binned_head(
    rows: HeadRows,
    weights: TokenWeights,
    keys: KeyHead,
    window: int | None,
    config: RunnerConfig,
    attended: AttendedHead | None = None,
) -> BinnedHead | Unknown:
    """The queries `rows` in bins, or the reason why bins cannot be used.

    With `attended`, the pairs are those of the settings if these demand attended pairs.
    """
    bins, rotation = keys.all_texts.bins, keys.rotation
    visible = window_of(keys, window)
    if bins is None:
        return Unknown(NO_BINS)
    if isinstance(visible, Unknown):
        return Unknown(rotation.problem or visible.reason)
    if rotation.pre_rope and rotation.problem is not None:
        return Unknown(rotation.problem)
    number = max(len(np.unique(bins.of(rows.position))), len(keys.bin_index.buckets))
    if number > MOST_BUCKETS or number * rows.width**2 > MOST_COVARIANCES:
        return Unknown(
            f"bins of {bins.size:,} tokens are too many: {number:,}; set a larger bin_size"
        )
    queries = BinnedQueries.of(rows, weights, bins, keys)
    return BinnedHead(queries, keys, bins, config, visible, attended)


def aligned_plasticity(
    head: BinnedHead | Unknown, seed: int, num_pairs: int
) -> AlignedPlasticity | Unknown:
    """Plasticity at one position of a head in bins, or the reason why it is not known.

    `seed` is that of the key pairs of the head, `num_pairs` their number per key bin.
    """
    if isinstance(head, Unknown):
        return head
    if head.keys.rotation.problem is not None:
        return Unknown(head.keys.rotation.problem)
    index = head.keys.bin_index
    if index.count(head.config.pair_sampling, num_pairs) > MOST_PAIRS:
        return Unknown(
            f"{num_pairs:,} pairs in each of {len(index.buckets):,} bins are too many; lower "
            "num_pairs_per_bucket"
        )
    return head.plasticity(num_pairs, seed)


def aligned_parts(head: BinnedHead | Unknown, seed: int, num_pairs: int) -> VarianceParts | None:
    """Parts of the squared standard error of `ap_aligned`; None if the error is not known."""
    if isinstance(head, Unknown) or head.keys.rotation.problem is not None:
        return None
    return head.parts(num_pairs, seed)


@dataclass(frozen=True)
class BinnedHead:
    """All that is needed to score key pairs of a head in bins."""

    queries: BinnedQueries
    keys: KeyHead
    bins: Bins
    config: RunnerConfig
    window: Window | None = None
    attended: AttendedHead | None = None  # of settings with attended pairs

    def plasticity(self, num_pairs: int, seed: int) -> AlignedPlasticity:
        """Plasticity of turned and of captured queries for the same pairs."""
        models = list(self.models)
        model, texts = models[0].queries, models[0].texts
        rng = np.random.default_rng([seed, _ALIGNED_SEED])
        sample = self._sample(model.moments.bucket, num_pairs, rng)
        if texts is not None and self.config.counting:
            texts = replace(texts, counting=self._counting(texts.queries, sample, self.weights))
        models[0] = models[0]._replace(texts=texts)
        found = score_models(models, sample, of_cells=self._of_cells)
        pooled = replace(found[-1], counted=None)
        return AlignedPlasticity(self.bins, found[0], pooled, self.weights, self.window is not None)

    def parts(self, num_pairs: int, seed: int) -> VarianceParts | None:
        """Parts of the squared error of plasticity of turned queries; None if it is not known."""
        (model, texts, turn), key_text = self.models[0], self.keys.rows.example_id
        if texts is None or self.queries.example_id is None or key_text is None:
            return None
        used = model.moments.bucket
        sample = self._sample(used, num_pairs, np.random.default_rng([seed, _ALIGNED_SEED]))
        sums = VarianceSums(texts.queries, self.queries.example_id, len(used))
        texts = replace(texts, variance=sums)
        of_cells = self._of_cells
        (found,) = score_models([QuerySample(model, texts, turn)], sample, of_cells=of_cells)
        assert found.uncertainty is not None
        weights = self.weights.everywhere  # (query bins, g)
        overall = found.uncertainty.weighted(found.profile, weights)
        if math.isnan(overall.standard_error):
            return None
        available = self._available(sample)
        parts = sums.finish(
            found.profile,
            weights.sum(axis=1),
            overall.value,
            key_text,
            texts.key_group,
            available,
            num_pairs,
        )
        return replace(parts, queries_per_bucket=tuple(model.moments.count.tolist()))

    def _available(self, sample: PairSample) -> Ints:
        """Possible pairs per key bin, or for context pairs per bin of queries and key bin."""
        index, sampling = self.keys.bin_index, self.config.pair_sampling
        if self.window is not None or sampling == "local":
            return np.full(len(index.buckets), _UNLIMITED)
        if sampling == "bucket":
            return index.available
        return index.available_per_bucket(sample.eligible)

    @cached_property
    def models(self) -> tuple[QuerySample, ...]:
        """The models of the turned queries and, if these differ, of the captured ones."""
        queries = self.queries
        found = [self._model(queries.turned)._replace(turn=self._turn)]
        if queries.turned is not queries.vectors:
            found.append(self._model(queries.vectors))
        return tuple(found)

    def _model(self, vectors: Vectors) -> QuerySample:
        """Gaussians of the bins. Queries of the first bin see no earlier bin, only their own."""
        queries, groups, with_first = self.queries, self._groups, self.window is not None
        number, position = queries.bin, queries.position
        if groups is None:
            moments = bucket_moments(position, number, vectors, with_first=with_first)
            return QuerySample(_query_model(moments), None)
        assert self.keys.rows.example_id is not None
        grouped = GroupedQueries("full", groups, vectors)
        moments, influences = moments_with_influences(
            grouped, position, number, with_first=with_first
        )
        key_group = self.keys.groups.of(self.keys.rows.example_id)
        return QuerySample(_query_model(moments), TextSample(grouped, influences, key_group))

    @property
    def _of_cells(self) -> bool:
        """Whether plasticity of a bin of queries is the mean over its cells, or over its pairs."""
        return self.config.pair_sampling in ("bucket", "local") and self.window is None

    def _sample(self, used: Ints, num_pairs: int, rng: np.random.Generator) -> PairSample:
        """The pairs of the bins of queries that are used."""
        keys = self.keys
        vectors, buckets = KeyVectors(keys.vectors_after_rope), keys.bin_index.buckets
        if self.window is None:
            pairs, eligible = self._pairs(num_pairs, rng), earlier_cells(used, buckets)
            steps = None
            if isinstance(pairs, KeyPairs):
                steps = thinning(pairs, eligible, self._most_pairs(used, num_pairs))
            return PairSample(vectors, pairs, buckets, eligible, steps)
        seen = self.window_pairs(keys, num_pairs, rng, self.attended)
        return PairSample(vectors, seen.draw, buckets, seen.eligible)

    def _most_pairs(self, used: Ints, num_pairs: int) -> Ints:
        """(query bins,) pairs of a bin, from all its cells together.

        More pairs of the same keys and texts make errors hardly smaller. The first fifth of the
        context has few bins with few cells, so its bins use more.
        """
        is_first = 5 * self.bins.starts(used) < self.bins.context
        return num_pairs * np.where(is_first, 2, 1)

    def window_pairs(
        self,
        keys: KeyHead,
        num_pairs: int,
        rng: np.random.Generator,
        attended: AttendedHead | None,
    ) -> WindowPairs:
        """Pairs that the queries of the bins see through the window, or attended pairs of these."""
        assert self.window is not None
        queries, used = self.queries, self.models[0].queries.moments.bucket
        rows = QueryRows(queries.bin, queries.position, queries.example_id, queries.weight)
        weights = None
        if attended is not None:
            weights = AttendedWeights(attended.attention, self.text_weights(keys))
        return window_pairs(rows, used, keys, self.window, self.config, num_pairs, rng, weights)

    @property
    def _turn(self) -> TurnToBin | None:
        """Through a window, keys are turned from the query that sees them; None: they stay."""
        record, queries = self.keys.rotation.record, self.queries
        if self.window is None or record is None:
            return None
        return TurnToBin(record, queries.target - queries.position)

    def _pairs(self, num_pairs: int, rng: np.random.Generator) -> KeyPairs | PairDraw:
        """Key pairs in proportion to the numbers of tokens that their keys stand for."""
        config, keys, sampling = self.config, self.keys, self.config.pair_sampling
        if sampling == "attended":
            assert self.attended is not None
            own = AttendedKeys(keys.bin_index, self.attended.attention)
            return AttendedDraw(own, self.text_weights(keys), num_pairs, True, rng)
        if keys.weights.is_constant:
            return chosen_pairs(keys.bin_index, sampling, num_pairs, config.max_rel_dist, rng)
        weighted = WeightedKeys(keys.bin_index, keys.weights.weight)
        return weighted_pairs(weighted, sampling, num_pairs, config.max_rel_dist, rng)

    @property
    def _groups(self) -> Ints | None:
        """(n,) groups of the texts of the queries; None if there are no errors."""
        examples, config = self.queries.example_id, self.config
        if examples is None or config.single_example or not config.error_bars:
            return None
        return self.keys.groups.of(examples)

    @cached_property
    def _codes(self) -> Ints:
        """(n,) the number of the bin of each query among those that are used; −1 for others."""
        used = self.models[0].queries.moments.bucket
        place = np.searchsorted(used, self.queries.bin)
        inside = place < len(used)
        inside[inside] = used[place[inside]] == self.queries.bin[inside]
        return np.where(inside, place, -1)

    @cached_property
    def weights(self) -> BinWeights:
        """Sums of the weights of the queries of the bins that are used."""
        queries, groups, code = self.queries, self._groups, self._codes
        group = np.zeros(len(code), np.int64) if groups is None else groups
        fifth = self.bins.fifths(queries.position)
        used = self.models[0].queries.moments.bucket
        return BinWeights.of(used, code, fifth, group, queries.weight)

    def text_weights(self, keys: KeyHead) -> Array:
        """(query bins, texts of the keys) sums of the weights of the queries."""
        assert self.queries.example_id is not None
        assert keys.rows.example_id is not None
        used = len(self.models[0].queries.moments.bucket)
        text, weight = self.queries.example_id, self.queries.weight
        return text_weights(self._codes, used, text, weight, keys.rows.example_id)

    def _counting(
        self, grouped: GroupedQueries, sample: PairSample, weights: BinWeights
    ) -> CountingSums:
        cells = counted_pairs(sample) if self._of_cells else None
        query_bins, key_bins = sample.eligible.shape
        return CountingSums(
            grouped, 0.0, query_bins, key_bins, cells, weights.everywhere, with_gap=False
        )


def _query_model(moments: BucketMoments) -> QueryModel:
    return QueryModel(moments, bucket_gaussians("full", moments, _NONE, _NONE, _NONE))
