"""Plasticity of one query head: rotation, query model, key pairs, scores, errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import FIRST_PAIRS, MOST_PAIRS_PER_BUCKET, RunnerConfig
from attention_plasticity.counting import CountingSums
from attention_plasticity.eligibility import earlier_cells, windowed_cells
from attention_plasticity.head_rows import KeyHead
from attention_plasticity.influences import FirstComponent, GroupedQueries
from attention_plasticity.key_pairs import KeyPairs
from attention_plasticity.profile import AttentionPlasticity
from attention_plasticity.query_model import (
    BucketMoments,
    Gaussian,
    bucket_gaussians,
    bucket_moments,
)
from attention_plasticity.scoring import TextSample, key_differences, key_pairs, score_pairs
from attention_plasticity.statistics import (
    Regression,
    reflection_vector,
    regress,
    residual_variance,
    rotate,
    rotate_vector,
    rotate_with_residuals,
)
from attention_plasticity.variance_parts import VarianceParts, VarianceSums
from qk_dump.reader import HeadRows

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_UNLIMITED = 1 << 40


@dataclass(frozen=True)
class RotatedQueries:
    """Queries of a head in the positional basis, sorted by bucket."""

    fit: Regression
    signs: Array  # (d,)
    u: Array  # (d,) reflection vector
    position: Array  # (n,)
    bucket: Ints  # (n,)
    example_id: Ints | None  # (n,)
    vectors: Array  # (n, d)
    alpha: Array  # (d,)
    beta: Array  # (d,) only the first entry is not zero
    residuals: Array  # (d, n)
    resid_var: Array  # (d,)

    @classmethod
    def of(cls, queries: HeadRows, signs: Array) -> RotatedQueries:
        """Regress on position, rotate, and take the residuals."""
        fit = regress(queries.position, queries.vectors)
        u = reflection_vector(fit.beta * signs)
        alpha = rotate_vector(fit.alpha, signs, u)
        beta = rotate_vector(fit.beta, signs, u)
        order = np.argsort(queries.bucket, kind="stable")
        position, bucket = queries.position[order], queries.bucket[order]
        examples = None if queries.example_id is None else queries.example_id[order]
        vectors, residuals = rotate_with_residuals(  # (n, d), (d, n)
            queries.vectors, signs, u, order, position, alpha, beta
        )
        resid_var = residual_variance(residuals, fit.mean_square)
        return cls(
            fit, signs, u, position, bucket, examples, vectors, alpha, beta, residuals, resid_var
        )


def head_plasticity(
    queries: RotatedQueries, keys: KeyHead, window: int | None, config: RunnerConfig, seed: int
) -> AttentionPlasticity:
    """Plasticity of a head. `seed` is that of its key pairs."""
    pairs = config.num_pairs_per_bucket
    if pairs == "auto":
        pairs = enough_pairs(_parts(queries, keys, window, config, seed, FIRST_PAIRS))
    return _Head.of(queries, keys, window, config).score(pairs, seed)


def variance_parts(
    queries: RotatedQueries, keys: KeyHead, window: int | None, config: RunnerConfig, seed: int
) -> VarianceParts | None:
    """Parts of the squared standard error of a head; None if the error is not known."""
    per_bucket = config.num_pairs_per_bucket
    if per_bucket != "auto":
        return _parts(queries, keys, window, config, seed, per_bucket)
    first = _parts(queries, keys, window, config, seed, FIRST_PAIRS)
    pairs = enough_pairs(first)
    return first if pairs == FIRST_PAIRS else _parts(queries, keys, window, config, seed, pairs)


def _parts(
    queries: RotatedQueries,
    keys: KeyHead,
    window: int | None,
    config: RunnerConfig,
    seed: int,
    pairs: int,
) -> VarianceParts | None:
    head = _Head.of(queries, keys, window, config, with_parts=True)
    plasticity = head.score(pairs, seed)
    if head.texts is None or head.texts.variance is None or plasticity.uncertainty is None:
        return None
    counts, everywhere = plasticity.query_counts, np.ones(len(plasticity.profile), np.bool_)
    overall = plasticity.uncertainty.mean(plasticity.profile, counts, everywhere)
    if math.isnan(overall.standard_error) or keys.rows.example_id is None:
        return None
    return head.texts.variance.finish(
        plasticity.profile,
        counts,
        overall.value,
        overall.standard_error,
        keys.rows.example_id,
        head.available,
        pairs,
    )


def enough_pairs(parts: VarianceParts | None) -> int:
    """Pairs per bucket with which pairs are less than a tenth of the squared standard error.

    A power of two times 256, at most 4,096; 256 if the parts are not known.
    """
    pairs = FIRST_PAIRS
    if parts is None:
        return pairs
    others = max(parts.texts, 0.0) + parts.queries + parts.keys
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
    moments: BucketMoments
    gaussians: list[Gaussian]
    eligible: npt.NDArray[np.bool_]
    texts: TextSample | None

    @classmethod
    def of(
        cls,
        queries: RotatedQueries,
        keys: KeyHead,
        window: int | None,
        config: RunnerConfig,
        *,
        with_parts: bool = False,
    ) -> _Head:
        moments = bucket_moments(queries.position, queries.bucket, queries.vectors)
        gaussians = bucket_gaussians(
            config.query_model, moments, queries.alpha, queries.beta, queries.resid_var
        )
        eligible = _eligible(queries, keys, window, moments)
        texts = None
        if config.error_bars:
            texts = _text_sample(queries, keys, moments, eligible, config, with_parts)
        return cls(queries, keys, config, moments, gaussians, eligible, texts)

    def score(self, num_pairs_per_bucket: int, seed: int) -> AttentionPlasticity:
        """Draw and score the key pairs."""
        config, index = self.config, self.keys.index
        rng = np.random.default_rng(seed)
        pairs = key_pairs(
            index, config.pair_sampling, num_pairs_per_bucket, config.max_rel_dist, rng
        )
        return score_pairs(
            self._differences,
            pairs,
            index.buckets,
            self.moments,
            self.gaussians,
            self.eligible,
            self.texts,
        )

    @property
    def available(self) -> Ints:
        """Possible pairs per key bucket, or for context pairs per query bucket and key bucket."""
        index, sampling = self.keys.index, self.config.pair_sampling
        if sampling == "bucket":
            return index.available
        if sampling == "local":  # drawn with replacement
            return np.full(len(index.buckets), _UNLIMITED)
        reach = self.eligible.sum(axis=1)  # (query buckets,)
        pools = np.array([index.context_available(row) for row in self.eligible], np.int64)
        return np.asarray(pools[reach > 0] // reach[reach > 0])

    def _differences(self, block: KeyPairs) -> Array:  # (pairs, d)
        vectors = key_differences(self.keys.rows.vectors, block)
        return rotate(vectors, self.queries.signs, self.queries.u)


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


def _text_sample(
    queries: RotatedQueries,
    keys: KeyHead,
    moments: BucketMoments,
    eligible: npt.NDArray[np.bool_],
    config: RunnerConfig,
    with_parts: bool,
) -> TextSample | None:
    """Groups of texts for standard errors; None if the texts are not known."""
    if queries.example_id is None or keys.rows.example_id is None or config.single_example:
        return None
    group = keys.groups.of(queries.example_id)
    first = FirstComponent.of(
        group,
        queries.position,
        queries.residuals[0],
        float(queries.beta[0]),
        float(queries.resid_var[0]),
    )
    grouped = GroupedQueries(config.query_model, group, queries.vectors, first)
    starts = np.searchsorted(queries.bucket, moments.bucket)
    rows = [slice(int(i), int(i + n)) for i, n in zip(starts, moments.count, strict=True)]
    counting = variance = None
    if with_parts:
        variance = VarianceSums(grouped, queries.example_id, len(eligible))
    elif config.counting:
        counting = CountingSums(grouped, float(queries.alpha[0]), *eligible.shape)
    key_group = keys.groups.of(keys.rows.example_id)
    return TextSample(grouped, rows, key_group, counting, variance)
