"""Plasticity of one query head: query model, key pairs, scores, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import FIRST_PAIRS, MOST_PAIRS_PER_BUCKET, RunnerConfig
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.numeric.attended_pairs import (
    AttendedDraw,
    AttendedKeys,
    KeyAttention,
    text_weights,
)
from attention_plasticity.numeric.eligibility import earlier_cells, windowed_cells
from attention_plasticity.numeric.errors.bucket_influences import BucketInfluences
from attention_plasticity.numeric.errors.counting import CountingSums
from attention_plasticity.numeric.errors.influences import FirstComponent, GroupedQueries
from attention_plasticity.numeric.errors.variance_parts import VarianceParts, VarianceSums
from attention_plasticity.numeric.key_pairs import KeyPairs
from attention_plasticity.numeric.pair_samples import KeyVectors, PairDraw, PairSample, chosen_pairs
from attention_plasticity.numeric.profile import AttentionPlasticity
from attention_plasticity.numeric.query_model import (
    BucketMoments,
    QueryModel,
    bucket_gaussians,
    bucket_moments,
)
from attention_plasticity.numeric.scoring import (
    TextSample,
    score_pairs,
)
from qk_toolkit.arrays import Bools, Ints

_UNLIMITED = 1 << 40


class HeadPlasticity(NamedTuple):
    """Plasticity of the pairs of the settings."""

    plasticity: AttentionPlasticity
    num_pairs: int  # per key bucket


def head_plasticity(
    queries: RotatedQueries,
    keys: KeyHead,
    window: int | None,
    config: RunnerConfig,
    seed: int,
    attended: KeyAttention | None = None,
    at_one_position: VarianceParts | None = None,
) -> HeadPlasticity:
    """Plasticity of a head. `seed` is that of its key pairs.

    If the settings demand attended pairs, `attended` is the attention of the keys. With `auto`, the
    number of pairs follows from the parts of the error of plasticity at one position. Where these
    are not known, it follows from those of plasticity over a bucket.
    """
    head = _Head.of(queries, keys, window, config, seed)
    pairs = config.num_pairs_per_bucket
    if pairs == "auto":
        pairs = enough_pairs(at_one_position or head.parts(FIRST_PAIRS))
    return head.plasticity(pairs, attended)


def variance_parts(
    queries: RotatedQueries, keys: KeyHead, window: int | None, config: RunnerConfig, seed: int
) -> VarianceParts | None:
    """Parts of the squared standard error of a head; None if the error is not known."""
    return parts_of_pairs(_Head.of(queries, keys, window, config, seed).parts, config)


def parts_of_pairs(
    parts: Callable[[int], VarianceParts | None], config: RunnerConfig
) -> VarianceParts | None:
    """`parts` for the number of pairs per bucket of the settings, or for that of `auto`."""
    if config.num_pairs_per_bucket != "auto":
        return parts(config.num_pairs_per_bucket)
    first = parts(FIRST_PAIRS)
    pairs = enough_pairs(first)
    return first if pairs == FIRST_PAIRS else parts(pairs)


def enough_pairs(parts: VarianceParts | None) -> int:
    """Pairs per bucket with which pairs are less than a tenth of the squared standard error.

    A power of two times 256, at most 4,096; 256 if the parts are not known.
    """
    pairs = FIRST_PAIRS
    if parts is None:
        return pairs
    others = max(parts.texts, 0.0) + parts.queries + max(parts.keys, 0.0)
    available = np.array(parts.available)
    drawn = np.minimum(available, parts.pairs_per_bucket).sum()
    while pairs < MOST_PAIRS_PER_BUCKET and pairs < available.max(initial=0):
        part = parts.pairs * drawn / max(1, np.minimum(available, pairs).sum())
        if part <= 0.1 * (others + part):
            break
        pairs *= 2
    return pairs


@dataclass(frozen=True)
class _Head:
    """All that is needed to score key pairs of a head."""

    queries: RotatedQueries
    keys: KeyHead
    config: RunnerConfig
    seed: int  # of the key pairs
    model: QueryModel
    eligible: Bools  # (query buckets, key buckets)

    @classmethod
    def of(
        cls,
        queries: RotatedQueries,
        keys: KeyHead,
        window: int | None,
        config: RunnerConfig,
        seed: int,
    ) -> _Head:
        moments = bucket_moments(queries.position, queries.bucket, queries.vectors)
        gaussians = bucket_gaussians(
            config.query_model, moments, queries.alpha, queries.beta, queries.resid_var
        )
        eligible = _eligible(queries, keys, window, moments)
        return cls(queries, keys, config, seed, QueryModel(moments, gaussians), eligible)

    def plasticity(self, num_pairs: int, attended: KeyAttention | None) -> HeadPlasticity:
        """Plasticity with errors and counts, as the settings demand."""
        grouped = self._grouped_queries() if self.config.error_bars else None
        texts = None if grouped is None else self._texts(grouped)
        pairs = self._pairs(num_pairs) if attended is None else self._draw(num_pairs, attended)
        return HeadPlasticity(self._score(pairs, texts), num_pairs)

    def _draw(self, num_pairs: int, attention: KeyAttention) -> AttendedDraw:
        """Attended pairs: texts in proportion to the queries of a query bucket."""
        queries, keys, used = self.queries, self.keys, self.model.moments.bucket
        assert queries.example_id is not None
        assert keys.rows.example_id is not None
        code = np.where(np.isin(queries.bucket, used), np.searchsorted(used, queries.bucket), -1)
        weight = text_weights(
            code, len(used), queries.example_id, np.ones(len(code)), keys.rows.example_id
        )
        own = AttendedKeys(keys.index, attention)
        return AttendedDraw(own, weight, num_pairs, True, np.random.default_rng(self.seed))

    def _counting(self, grouped: GroupedQueries, key_buckets: int) -> CountingSums | None:
        if not self.config.counting:
            return None
        alpha = float(self.queries.alpha[0])
        return CountingSums(grouped, alpha, len(self.eligible), key_buckets)

    def parts(self, num_pairs_per_bucket: int) -> VarianceParts | None:
        """Parts of the squared standard error; None if the error is not known."""
        grouped, texts = self._grouped_queries(), self.queries.example_id
        key_texts = self.keys.rows.example_id
        if grouped is None or texts is None or key_texts is None:
            return None
        sums = VarianceSums(grouped, texts, len(self.eligible))
        text_sample = replace(self._texts(grouped), counting=None, variance=sums)
        found = self._score(self._pairs(num_pairs_per_bucket), text_sample)
        assert found.uncertainty is not None
        counts, everywhere = found.query_counts, np.ones(len(found.profile), np.bool_)
        overall = found.uncertainty.mean(found.profile, counts, everywhere)
        if math.isnan(overall.standard_error):
            return None
        return sums.finish(
            found.profile,
            counts,
            overall.value,
            key_texts,
            text_sample.key_group,
            self.available,
            num_pairs_per_bucket,
        )

    def _pairs(self, num_pairs: int) -> KeyPairs | PairDraw:
        """The key pairs of the settings."""
        config, rng = self.config, np.random.default_rng(self.seed)
        assert config.pair_sampling != "attended"
        return chosen_pairs(
            self.keys.index, config.pair_sampling, num_pairs, config.max_rel_dist, rng
        )

    def _score(self, pairs: KeyPairs | PairDraw, texts: TextSample | None) -> AttentionPlasticity:
        keys = KeyVectors(self.keys.rows.vectors, self.queries.basis)
        sample = PairSample(keys, pairs, self.keys.index.buckets, self.eligible)
        return score_pairs(self.model, sample, texts)

    def _grouped_queries(self) -> GroupedQueries | None:
        """The queries with the groups of their texts; None if the texts are not known."""
        queries = self.queries
        if queries.example_id is None or self.config.single_example:
            return None
        group = self.keys.groups.of(queries.example_id)
        first = FirstComponent.of(
            group,
            queries.position,
            queries.residuals[0],
            float(queries.beta[0]),
            float(queries.resid_var[0]),
        )
        return GroupedQueries(self.config.query_model, group, queries.vectors, first)

    def _texts(self, grouped: GroupedQueries) -> TextSample:
        assert self.keys.rows.example_id is not None
        moments = self.model.moments
        starts, sizes = np.searchsorted(self.queries.bucket, moments.bucket), moments.count
        rows = [slice(int(i), int(i + n)) for i, n in zip(starts, sizes, strict=True)]
        key_group = self.keys.groups.of(self.keys.rows.example_id)
        influences = BucketInfluences(grouped, rows, moments)
        counting = self._counting(grouped, self.eligible.shape[1])
        return TextSample(grouped, influences, key_group, counting)

    @property
    def available(self) -> Ints:
        """Possible pairs per key bucket, or for context pairs per query bucket and key bucket."""
        index, sampling = self.keys.index, self.config.pair_sampling
        if sampling == "bucket":
            return index.available
        if sampling == "local":  # drawn with replacement
            return np.full(len(index.buckets), _UNLIMITED)
        return index.available_per_bucket(self.eligible)


def _eligible(
    queries: RotatedQueries, keys: KeyHead, window: int | None, moments: BucketMoments
) -> npt.NDArray[np.bool_]:
    if window is None:
        return earlier_cells(moments.bucket, keys.index.buckets)
    return windowed_cells(
        moments.bucket,
        keys.index.buckets,
        window,
        queries.position,
        queries.bucket,
        keys.rows.position,
        keys.rows.bucket,
    )
