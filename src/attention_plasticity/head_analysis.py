"""Analysis of one key head and its query heads: rows of the three tables.

Steps: read, orientation (signs), regression on position, rotation, residuals and their normality,
query model per bucket, key pairs, plasticity.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import RunnerConfig
from attention_plasticity.key_pairs import KeyIndex, KeyPairs
from attention_plasticity.limits import (
    require_buckets,
    require_covariances,
    require_pairs,
)
from attention_plasticity.plasticity import (
    AttentionPlasticity,
    earlier_cells,
    key_differences,
    means_by_fifth,
    score_pairs,
    windowed_cells,
)
from attention_plasticity.query_model import bucket_gaussians, bucket_moments
from attention_plasticity.results import Columns, Failure, HeadResult
from attention_plasticity.scaling import (
    bucket_maxima,
    column_maxima,
    rescaled,
    row_maxima,
    scale_exponent,
    wider_than_float32,
)
from attention_plasticity.statistics import (
    Regression,
    compute_first_component_residual_stats,
    compute_noise_normality_stats,
    orientation_from_keys,
    positional_residuals,
    predictability_from_scores,
    reflection_vector,
    regress,
    residual_variance,
    rotate,
    rotate_vector,
)
from qk_dump.column_rules import rules_of
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows, read_head
from qk_dump.source import open_dump
from qk_toolkit.errors import DumpError, HeadError, ToolkitError

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_QUERIES = 3


@dataclass(frozen=True)
class KeyHead:
    """A key head, read and indexed once for all query heads of its group."""

    rows: HeadRows
    signs: Array  # (d,)
    index: KeyIndex

    @classmethod
    def read(cls, dump: Dump, layer: int, k_head: int, config: RunnerConfig) -> KeyHead:
        """Read and index the keys of one head."""
        head = HeadId(layer, k_head, "k")
        rows, _ = _in_range(_read(dump, head, config), dump.folders[head])
        assert rows.example_id is not None
        index = KeyIndex(rows.position, rows.bucket, rows.example_id)
        per_bucket = config.num_pairs_per_bucket
        pairs = index.count(config.pair_sampling, per_bucket)
        require_pairs(pairs, per_bucket, len(index.buckets), dump.folders[head])
        return cls(rows, orientation_from_keys(rows.bucket, rows.vectors), index)


def analyze_head(
    layer: int,
    q_head: int,
    k_head: int,
    dump: Dump | str | os.PathLike[str],
    config: RunnerConfig | None = None,
) -> HeadResult:
    """Analyse one query head with its key head. Raises a `ToolkitError` for bad input."""
    config = config or RunnerConfig()
    dump = dump if isinstance(dump, Dump) else open_dump(dump)
    keys = KeyHead.read(dump, layer, k_head, config)
    return _analyze_query_head(dump, layer, q_head, k_head, keys, config)


def analyze_group(
    dump: Dump, layer: int, k_head: int, q_heads: Sequence[int], config: RunnerConfig
) -> Iterator[HeadResult | Failure]:
    """Analyse the query heads of one key head. A head that fails does not stop the others."""
    try:
        keys = KeyHead.read(dump, layer, k_head, config)
    except ToolkitError as error:
        yield from (Failure(layer, q_head, k_head, str(error)) for q_head in q_heads)
        return
    for q_head in q_heads:
        try:
            yield _analyze_query_head(dump, layer, q_head, k_head, keys, config)
        except ToolkitError as error:
            yield Failure(layer, q_head, k_head, str(error))


def _read(dump: Dump, head: HeadId, config: RunnerConfig) -> HeadRows:
    files = dump.require_files(head)
    rows = read_head(
        files,
        max_rows=config.max_tokens_per_head,
        seed=config.seed,
        with_examples=head.kind == "k" or (False if config.single_example else "if present"),
        single_example=config.single_example,
        rules=rules_of(dump, head.layer),
    )
    buckets = len(np.unique(rows.bucket))
    require_buckets(buckets, dump.folders[head])
    if head.kind == "q":
        require_covariances(buckets, rows.width, dump.folders[head])
    return rows


@dataclass(frozen=True)
class RotatedQueries:
    """Queries of a head in the positional basis, sorted by bucket."""

    fit: Regression
    signs: Array  # (d,)
    u: Array  # (d,) reflection vector
    position: Array  # (n,)
    bucket: Ints  # (n,)
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
        vectors = rotate(queries.vectors, signs, u, order)  # (n, d)
        residuals = positional_residuals(position, vectors, alpha, beta)  # (d, n)
        resid_var = residual_variance(residuals, fit.mean_square)
        return cls(fit, signs, u, position, bucket, vectors, alpha, beta, residuals, resid_var)


def _analyze_query_head(
    dump: Dump, layer: int, q_head: int, k_head: int, keys: KeyHead, config: RunnerConfig
) -> HeadResult:
    rows, exponent = _read_queries(dump, HeadId(layer, q_head, "q"), keys, config)
    window = _common_window(rows, keys.rows, HeadId(layer, q_head, "q").folder)
    queries = RotatedQueries.of(rows, keys.signs)
    rng = np.random.default_rng(config.seed + 10007 * layer + 379 * q_head)
    plasticity = _plasticity(queries, keys, window, config, rng)
    fit = queries.fit
    metrics: dict[str, Any] = {
        "layer": layer,
        "q_head": q_head,
        "k_head": k_head,
        "n_q_tokens": len(rows),
        "n_k_tokens": len(keys.rows),
        "d_model": rows.width,
        "q_R2_pos": float(fit.r2.mean()),
        **_predictability(queries),
        **_normality(queries, config),
        "ap_overall": plasticity.overall,
        "q_beta_norm": float(np.ldexp(np.linalg.norm(fit.beta), exponent)),
        "q_R2_total": fit.r2_total,
        **_profile(plasticity, rows.position_max),
        "q_position_max": rows.position_max,
        "sliding_window": math.nan if window is None else window,
    }
    buckets = _bucket_columns(plasticity, keys, rows)
    return HeadResult(layer, q_head, k_head, metrics, buckets, _component_columns(fit))


def _in_range(rows: HeadRows, folder: Path, *, queries: bool = False) -> tuple[HeadRows, int]:
    """The rows with vectors scaled by a power of two if needed, and its exponent.

    After scaling, the squares of every query dimension, query bucket and key fit into float64.
    """
    X = rows.vectors
    if not wider_than_float32(X):
        return rows, 0
    maxima = np.r_[column_maxima(X), bucket_maxima(X, rows.bucket)] if queries else row_maxima(X)
    try:
        exponent = scale_exponent(maxima)
    except ValueError as error:
        raise HeadError(f"{folder}: {error}. Capture the head again.") from error
    return replace(rows, vectors=rescaled(X, exponent)), exponent


def _read_queries(
    dump: Dump, head: HeadId, keys: KeyHead, config: RunnerConfig
) -> tuple[HeadRows, int]:
    """The queries, and the exponent of the power of two by which they were divided."""
    queries = _read(dump, head, config)
    if len(queries) < MIN_QUERIES:
        raise HeadError(
            f"{dump.folders[head]}: has {len(queries)} queries; a regression on position needs "
            f"{MIN_QUERIES} or more. Capture more tokens."
        )
    if queries.width != keys.rows.width:
        raise DumpError(
            f"{dump.folders[head]}: queries have {queries.width} dimensions, "
            f"their keys have {keys.rows.width}. Use files of one model."
        )
    return _in_range(queries, dump.folders[head], queries=True)


def _plasticity(
    queries: RotatedQueries,
    keys: KeyHead,
    window: int | None,
    config: RunnerConfig,
    rng: np.random.Generator,
) -> AttentionPlasticity:
    moments = bucket_moments(queries.position, queries.bucket, queries.vectors)
    gaussians = bucket_gaussians(
        config.query_model, moments, queries.alpha, queries.beta, queries.resid_var
    )
    pairs = keys.index.draw(
        config.pair_sampling, config.num_pairs_per_bucket, config.max_rel_dist, rng
    )

    def differences(block: KeyPairs) -> Array:  # (pairs, d)
        return rotate(key_differences(keys.rows.vectors, block), queries.signs, queries.u)

    if window is None:
        eligible = earlier_cells(moments.bucket, keys.index.buckets)
    else:
        eligible = windowed_cells(
            moments.bucket,
            keys.index.buckets,
            window,
            queries.position,
            queries.bucket,
            keys.rows.position,
            keys.rows.bucket,
        )
    return score_pairs(differences, pairs, keys.index.buckets, moments, gaussians, eligible)


def _common_window(queries: HeadRows, keys: HeadRows, name: str) -> int | None:
    if not (queries.window_recorded and keys.window_recorded):
        return queries.sliding_window if queries.window_recorded else keys.sliding_window
    if queries.sliding_window != keys.sliding_window:
        raise DumpError(
            f"{name}: mixes sliding_window values: queries have "
            f"{queries.sliding_window or 'null'}, keys have {keys.sliding_window or 'null'}"
        )
    return queries.sliding_window


def _predictability(queries: RotatedQueries) -> dict[str, float]:
    """Predict position from the first rotated component, the projection on β."""
    scores = queries.vectors[:, 0] if queries.fit.beta.any() else np.zeros(len(queries.position))
    r2, baseline, error = predictability_from_scores(queries.position, scores)
    return {
        "q_R2_scalar": r2,
        "q_mae_baseline": baseline,
        "q_mae_proj": error,
        "q_mae_ratio": error / baseline if baseline > 0 else math.nan,
    }


def _normality(queries: RotatedQueries, config: RunnerConfig) -> dict[str, float]:
    residuals, resid_var = queries.residuals, queries.resid_var
    skew, kurt, ks_p = compute_first_component_residual_stats(residuals.T, resid_var)
    noise = compute_noise_normality_stats(
        residuals.T, resid_var, config.normality_max_dims, config.p_alpha, config.seed
    )
    return {
        "q_resid0_skew": skew,
        "q_resid0_kurt": kurt,
        "q_resid0_ks_p": ks_p,
        "q_noise_med_abs_skew": noise[0],
        "q_noise_med_abs_kurt": noise[1],
        "q_noise_med_ks_p": noise[2],
        "q_noise_frac_ks_p_lt_alpha": noise[3],
    }


def _profile(plasticity: AttentionPlasticity, context: float) -> dict[str, float]:
    fifths = means_by_fifth(
        plasticity.profile, plasticity.query_positions, plasticity.query_counts, context
    )
    first, second, third, fourth, last = (float(value) for value in fifths)
    return {
        "ap_first20": first,
        "ap_last20": last,
        "ap_drop": first - last,
        "ap_20to40": second,
        "ap_40to60": third,
        "ap_60to80": fourth,
    }


def _bucket_columns(plasticity: AttentionPlasticity, keys: KeyHead, queries: HeadRows) -> Columns:
    codes = np.searchsorted(keys.index.buckets, keys.rows.bucket)
    key_positions = np.bincount(codes, keys.rows.position) / np.bincount(codes)
    return {
        "q_bucket": plasticity.q_bucket.tolist(),
        "k_bucket": plasticity.k_bucket.tolist(),
        "plasticity": plasticity.plasticity.tolist(),
        "n_pairs": plasticity.n_pairs.tolist(),
        "q_position": plasticity.query_positions[plasticity.q_code].tolist(),
        "k_position": key_positions[plasticity.k_code].tolist(),
        "n_queries": plasticity.query_counts[plasticity.q_code].tolist(),
        "n_texts": _text_counts(plasticity.q_bucket, queries),
    }


def _text_counts(buckets: Ints, queries: HeadRows) -> list[int] | list[float]:
    """Number of texts per bucket of `buckets`, over its queries; NaN if it is not known."""
    if queries.example_id is None:
        return [math.nan] * len(buckets)
    order = np.lexsort((queries.example_id, queries.bucket))
    bucket, text = queries.bucket[order], queries.example_id[order]
    first_of_text = np.r_[True, (np.diff(bucket) != 0) | (text[1:] != text[:-1])]  # (n,)
    values, counts = np.unique(bucket[first_of_text], return_counts=True)
    return counts[np.searchsorted(values, buckets)].tolist()  # type: ignore[no-any-return]


def _component_columns(fit: Regression) -> Columns:
    r2 = np.maximum(fit.r2, 0.0)  # (d,)
    total = r2.sum()
    weight = r2 / total if total > 0 else np.full(len(r2), 1.0 / len(r2))
    return {
        "component": list(range(len(r2))),
        "weight": weight.tolist(),
        "r2": fit.r2.tolist(),
    }
