"""The seeds' columns: regression on position, rotation, residuals, plasticity over buckets.

They are computed plainly, as the seeds say: no weights, no errors, no bias, no counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.found import Found
from attention_plasticity.measure.result import Columns
from attention_plasticity.measure.seed_pairs import KeyIndex, seen_cells
from attention_plasticity.measure.seed_scores import (
    AttentionPlasticity,
    BucketMoments,
    BucketSums,
    FirstAxis,
    PairChoice,
    bucket_gaussians,
    score_buckets,
)
from attention_plasticity.read.rows import Keys, Queries
from attention_plasticity.statistics import (
    Regression,
    compute_first_component_residual_stats,
    compute_noise_normality_stats,
    orientation_from_keys,
    predictability_from_scores,
    reflection_vector,
    residual_variance,
    rotate,
)
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array, Ints

ONE_POSITION = "all queries are at one position"
FEW_QUERIES = "fewer than 4 queries"
NO_RESIDUALS = "the residuals of the regression do not vary"
ONE_DIMENSION = "vectors have one dimension"
NOT_TESTED = "the residuals of the tested dimensions do not vary"
NO_QUERY_BUCKET = "no query bucket except bucket 0 has two queries"
NO_EARLIER_KEYS = "no query bucket sees keys of an earlier bucket"
NO_PAIRS = "no query bucket sees two keys that make a pair"


@dataclass(frozen=True)
class SeedKeys:
    """The keys of a head, indexed once for all query heads of its group."""

    signs: Array  # (d,)
    index: KeyIndex
    position: Array  # (buckets,) mean position of the keys of every bucket

    @classmethod
    def of(cls, keys: HeadRows) -> SeedKeys:
        """Signs of dimensions, and the order of the keys."""
        assert keys.example_id is not None
        index = KeyIndex(keys.position, keys.bucket, keys.example_id)
        position = np.bincount(index.codes, keys.position) / np.bincount(index.codes)
        return cls(orientation_from_keys(keys.bucket, keys.vectors), index, position)


@dataclass(frozen=True)
class _Rotated:
    """Queries in the positional basis."""

    fit: Regression
    axis: FirstAxis
    moments: BucketMoments  # as captured
    position: Array  # (n,)
    vectors: Array  # (n, d) minus the intercept; all but the first component are residuals
    first: Array  # (n,) residuals of the first component
    resid_var: Array  # (d,)

    @classmethod
    def of(cls, queries: HeadRows, signs: Array) -> _Rotated:
        """Regress on position, rotate, and take the residuals."""
        position = queries.position
        sums = BucketSums.of(position, queries.bucket, queries.vectors)
        fit = sums.fit
        u = reflection_vector(fit.beta * signs)
        alpha, beta = rotate(np.stack([fit.alpha, fit.beta]), 0.0, signs, u)[:, 0].tolist()
        vectors = rotate(queries.vectors, fit.alpha, signs, u)  # (n, d)
        first = vectors[:, 0] - beta * position  # (n,)
        parts = (first[None], vectors.T[1:])  # (1, n), (d - 1, n)
        resid_var = np.concatenate([residual_variance(one, fit.mean_square) for one in parts])
        axis = FirstAxis(signs * u, signs[0] * alpha, signs[0] * beta, float(resid_var[0]))
        return cls(fit, axis, sums.moments(), position, vectors, first, resid_var)


def seed_columns(
    queries: Queries, keys: Keys, own: SeedKeys, config: RunnerConfig, seed: int
) -> Found:
    """All columns that the seeds define. `seed` is that of the key pairs."""
    found = Found()
    rotated = _Rotated.of(queries.rows, own.signs)
    _add_position(found, rotated, queries.exponent)
    _add_normality(found, rotated, config)
    found.tables["component_weights"] = _component_columns(rotated.fit)
    plasticity = _plasticity(rotated, queries, keys, own, config, seed)
    found.add({"ap_overall": plasticity.overall}, _why_no_pairs(plasticity))
    found.tables["bucket_plasticity"] = _bucket_columns(plasticity, own, queries)
    return found


def _add_position(found: Found, queries: _Rotated, exponent: int) -> None:
    """Share of position in the queries, which were divided by two to the power `exponent`."""
    fit = queries.fit
    found.add(
        {
            "q_R2_pos": float(fit.r2.mean()),
            "q_beta_norm": float(np.ldexp(np.linalg.norm(fit.beta), exponent)),
            "q_R2_total": fit.r2_total,
        }
    )
    # the first rotated component is the projection on β
    scores = queries.vectors[:, 0] if fit.beta.any() else np.zeros(len(queries.position))
    r2, baseline, error = predictability_from_scores(queries.position, scores)
    ratio = error / baseline if baseline > 0 else math.nan
    found.add({"q_R2_scalar": r2, "q_mae_baseline": baseline, "q_mae_proj": error})
    found.add({"q_mae_ratio": ratio}, ONE_POSITION)


def _add_normality(found: Found, queries: _Rotated, config: RunnerConfig) -> None:
    """Shape of the residuals along the drift, and over the other dimensions."""
    first, resid_var = queries.first, queries.resid_var
    few = len(first) < 4
    skew, kurt, ks_p = compute_first_component_residual_stats(first[:, None], resid_var)
    why = NO_RESIDUALS if resid_var[0] == 0 or not few else FEW_QUERIES
    found.add({"q_resid0_skew": skew, "q_resid0_kurt": kurt, "q_resid0_ks_p": ks_p}, why)
    skew, kurt, ks_p, share = compute_noise_normality_stats(
        queries.vectors, resid_var, config.normality_max_dims, config.p_alpha, config.seed
    )
    if not resid_var[1:].any():
        why = ONE_DIMENSION if len(resid_var) == 1 else NO_RESIDUALS
    else:
        why = FEW_QUERIES if few else NO_RESIDUALS
    found.add({"q_noise_med_abs_skew": skew, "q_noise_med_abs_kurt": kurt}, why)
    tests = {"q_noise_med_ks_p": ks_p, "q_noise_frac_ks_p_lt_alpha": share}
    found.add(tests, NOT_TESTED if resid_var[1:].any() else why)


def _component_columns(fit: Regression) -> Columns:
    """Columns of the table of components: the share of positional information per dimension."""
    r2 = np.maximum(fit.r2, 0.0)  # (d,)
    total = r2.sum()
    weight = r2 / total if total > 0 else np.full(len(r2), 1.0 / len(r2))
    return {"component": list(range(len(r2))), "weight": weight.tolist(), "r2": fit.r2.tolist()}


def _plasticity(
    rotated: _Rotated, queries: Queries, keys: Keys, own: SeedKeys, config: RunnerConfig, seed: int
) -> AttentionPlasticity:
    position, bucket, moments = queries.position, queries.rows.bucket, rotated.moments
    gaussians = bucket_gaussians(config.query_model, moments, rotated.axis)
    # chunks of unknown size: every earlier bucket is eligible
    visible = queries.visible if isinstance(queries.visible, Visible) else Visible()
    eligible = seen_cells(
        moments.bucket,
        own.index.buckets,
        visible,
        position,
        bucket,
        keys.position,
        keys.rows.bucket,
    )
    number, near = config.num_pairs_per_bucket, config.max_rel_dist
    choice = PairChoice(config.pair_sampling, number, near, np.random.default_rng(seed))
    return score_buckets(moments, gaussians, own.index, keys.rows.vectors, eligible, choice)


def _why_no_pairs(plasticity: AttentionPlasticity) -> str:
    """Why no query bucket has a key pair, if none has."""
    if len(plasticity.query_buckets) == 0:
        return NO_QUERY_BUCKET
    return NO_EARLIER_KEYS if len(plasticity.q_code) == 0 else NO_PAIRS


def _bucket_columns(plasticity: AttentionPlasticity, own: SeedKeys, queries: Queries) -> Columns:
    """Columns of the table of cells."""
    q_code = plasticity.q_code
    return {
        "q_bucket": plasticity.q_bucket.tolist(),
        "k_bucket": plasticity.k_bucket.tolist(),
        "plasticity": plasticity.plasticity.tolist(),
        "n_pairs": plasticity.n_pairs.tolist(),
        "q_position": plasticity.query_positions[q_code].tolist(),
        "k_position": own.position[plasticity.k_code].tolist(),
        "n_queries": plasticity.query_counts[q_code].tolist(),
        "n_texts": text_counts(plasticity.q_bucket, queries.rows.bucket, queries.rows.example_id),
    }


def text_counts(
    buckets: Ints, of_queries: Ints, example_id: Ints | None
) -> list[int] | list[float]:
    """Number of texts per bucket of `buckets`, over its queries; NaN if it is not known."""
    if example_id is None:
        return [math.nan] * len(buckets)
    text = np.unique(example_id, return_inverse=True)[1]  # (n,)
    both = np.unique(of_queries * (int(text.max()) + 1) + text) // (int(text.max()) + 1)
    values, counts = np.unique(both, return_counts=True)
    found: list[int] = counts[np.searchsorted(values, buckets)].tolist()
    return found
