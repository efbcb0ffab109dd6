"""One key head and the query heads that read it → rows of the three tables.

The path of a vector: read, orientation (signs), regression on position, rotation, residuals and
their normality, query model per bucket, key pairs, plasticity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import RunnerConfig
from attention_plasticity.key_pairs import KeyIndex
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
from qk_dump.errors import DumpError, HeadError, ToolkitError
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows, read_head

Array = npt.NDArray[np.float64]

MIN_QUERIES = 3


@dataclass(frozen=True)
class KeyHead:
    """What every query head of a group needs of its key head, prepared once."""

    rows: HeadRows
    signs: Array  # (d,)
    index: KeyIndex

    @classmethod
    def read(cls, dump: Dump, layer: int, k_head: int, config: RunnerConfig) -> KeyHead:
        """Read and index the keys of one head."""
        rows = _read(dump, HeadId(layer, k_head, "k"), config)
        assert rows.example_id is not None
        return cls(
            rows=rows,
            signs=orientation_from_keys(rows.bucket, rows.vectors),
            index=KeyIndex(rows.position, rows.bucket, rows.example_id),
        )


def analyze_head(
    layer: int, q_head: int, k_head: int, dump: Dump, config: RunnerConfig | None = None
) -> HeadResult:
    """Analyse one query head against its key head. Raises a `ToolkitError` saying what is wrong."""
    config = config or RunnerConfig()
    keys = KeyHead.read(dump, layer, k_head, config)
    return _analyze_query_head(dump, layer, q_head, k_head, keys, config)


def analyze_group(
    dump: Dump, layer: int, k_head: int, q_heads: Sequence[int], config: RunnerConfig
) -> Iterator[HeadResult | Failure]:
    """Analyse the query heads of one key head, reading the keys once; a bad head stops no other."""
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
    if head not in dump.folders:
        kind = "key" if head.kind == "k" else "query"
        raise DumpError(f"{dump.path / head.folder}: the {kind} head is not in the dump")
    files = dump.files(head)
    if not files:
        raise DumpError(f"{dump.folders[head]}: holds no Parquet file")
    return read_head(
        files,
        max_rows=config.max_tokens_per_head,
        seed=config.seed,
        with_examples=head.kind == "k",
        single_example=config.single_example,
    )


def _analyze_query_head(
    dump: Dump, layer: int, q_head: int, k_head: int, keys: KeyHead, config: RunnerConfig
) -> HeadResult:
    queries = _read(dump, HeadId(layer, q_head, "q"), config)
    folder = dump.folders[HeadId(layer, q_head, "q")]
    if len(queries) < MIN_QUERIES:
        raise HeadError(
            f"{folder}: has {len(queries)} queries; a regression on position needs "
            f"{MIN_QUERIES} or more. Capture more tokens."
        )
    if queries.width != keys.rows.width:
        raise DumpError(
            f"{folder}: queries have {queries.width} dimensions, "
            f"keys of head {k_head} have {keys.rows.width}"
        )
    window = _common_window(queries, keys.rows, folder.name)
    rng = np.random.default_rng(config.seed + 10007 * layer + 379 * q_head)

    fit = regress(queries.position, queries.vectors)
    u = reflection_vector(fit.beta * keys.signs)  # (d,)
    alpha_rot = rotate_vector(fit.alpha, keys.signs, u)
    beta_rot = rotate_vector(fit.beta, keys.signs, u)
    order = np.argsort(queries.bucket, kind="stable")
    p_q, b_q = queries.position[order], queries.bucket[order]
    X_q_rot = rotate(queries.vectors, keys.signs, u, order)  # (n, d)
    residuals = positional_residuals(p_q, X_q_rot, alpha_rot, beta_rot)  # (d, n)
    resid_var = residual_variance(residuals, fit.mean_square)

    moments = bucket_moments(p_q, b_q, X_q_rot)
    gaussians = bucket_gaussians(config.query_model, moments, alpha_rot, beta_rot, resid_var)
    pairs = keys.index.draw(
        config.pair_sampling, config.num_pairs_per_bucket, config.max_rel_dist, rng
    )
    W = rotate(key_differences(keys.rows.vectors, pairs), keys.signs, u)  # (pairs, d)
    if window is None:
        eligible = earlier_cells(moments.bucket, keys.index.buckets)
    else:
        eligible = windowed_cells(
            moments.bucket,
            keys.index.buckets,
            window,
            p_q,
            b_q,
            keys.rows.position,
            keys.rows.bucket,
        )
    plasticity = score_pairs(W, pairs, keys.index.buckets, moments, gaussians, eligible)

    ids = {"layer": layer, "q_head": q_head, "k_head": k_head}
    context = float(p_q.max())
    metrics: dict[str, Any] = {
        **ids,
        "n_q_tokens": len(queries),
        "n_k_tokens": len(keys.rows),
        "d_model": queries.width,
        "q_R2_pos": float(fit.r2.mean()),
        **_predictability(p_q, X_q_rot[:, 0], fit),
        **_normality(residuals, resid_var, config),
        "ap_overall": plasticity.overall,
        "q_beta_norm": float(np.linalg.norm(fit.beta)),
        "q_R2_total": fit.r2_total,
        **_profile(plasticity, context),
        "q_position_max": context,
        "sliding_window": math.nan if window is None else window,
    }
    return HeadResult(
        layer, q_head, k_head, metrics, _bucket_columns(plasticity, keys), _component_columns(fit)
    )


def _common_window(queries: HeadRows, keys: HeadRows, name: str) -> int | None:
    if not (queries.window_recorded and keys.window_recorded):
        return queries.sliding_window if queries.window_recorded else keys.sliding_window
    if queries.sliding_window != keys.sliding_window:
        raise DumpError(
            f"{name}: mixes sliding_window values: queries have "
            f"{queries.sliding_window or 'null'}, keys {keys.sliding_window or 'null'}"
        )
    return queries.sliding_window


def _predictability(p: Array, scores: Array, fit: Regression) -> dict[str, float]:
    """The rotated first component is the projection on β; without a β there is none."""
    r2, baseline, error = predictability_from_scores(p, scores if fit.beta.any() else 0.0 * scores)
    return {
        "q_R2_scalar": r2,
        "q_mae_baseline": baseline,
        "q_mae_proj": error,
        "q_mae_ratio": error / baseline if baseline > 0 else math.nan,
    }


def _normality(residuals: Array, resid_var: Array, config: RunnerConfig) -> dict[str, float]:
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


def _bucket_columns(plasticity: AttentionPlasticity, keys: KeyHead) -> Columns:
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
    }


def _component_columns(fit: Regression) -> Columns:
    r2 = np.maximum(fit.r2, 0.0)  # (d,)
    total = r2.sum()
    weight = r2 / total if total > 0 else np.full(len(r2), 1.0 / len(r2))
    return {
        "component": list(range(len(r2))),
        "weight": weight.tolist(),
        "r2": fit.r2.tolist(),
    }
