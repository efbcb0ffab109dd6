"""Analysis of one key head and its query heads: rows of the tables.

Steps: read, orientation (signs), regression on position, rotation, residuals and their normality,
query model per bucket, key pairs, plasticity.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.attended_keys import attended_keys
from attention_plasticity.head.attention_columns import HeadAttention
from attention_plasticity.head.layout import head_layout
from attention_plasticity.head.plasticity import head_plasticity, variance_parts
from attention_plasticity.head.plasticity_columns import (
    attended_columns,
    attended_estimates,
    attention_columns,
    cell_error_columns,
    error_columns,
    head_estimates,
    influence_columns,
)
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.head.result import Columns, Failure, HeadResult
from attention_plasticity.head.rows import KeyHead, common_window, read_queries
from attention_plasticity.head.texts import DumpTexts
from attention_plasticity.metrics import FULL_ATTENTION, SLIDING_ATTENTION
from attention_plasticity.numeric.attended_pairs import AttendedKeys
from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from attention_plasticity.numeric.normality import (
    compute_first_component_residual_stats,
    compute_noise_normality_stats,
)
from attention_plasticity.numeric.position import Regression, predictability_from_scores
from attention_plasticity.numeric.profile import AttentionPlasticity, means_by_fifth
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError, DumpError, HeadError, ToolkitError
from qk_toolkit.formatting import index_ranges

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def analyze_head(
    layer: int,
    q_head: int,
    k_head: int | None = None,
    dump: Dump | str | os.PathLike[str] | None = None,
    config: RunnerConfig | None = None,
) -> HeadResult:
    """Analyse one query head with its key head. Raises a `ToolkitError` for bad input.

    Without `k_head`, the key head is the one that the query head uses in the model.
    """
    if dump is None:
        raise ConfigError("dump: is missing; give a dump, or the path of its folder")
    config = config or RunnerConfig()
    dump = dump if isinstance(dump, Dump) else open_dump(dump)
    if (layer, q_head) not in dump.query_heads:
        heads = [head for other, head in dump.query_heads if other == layer]
        has = f"query heads {index_ranges(heads)}" if heads else "no query heads"
        raise DumpError(
            f"{dump.path}: query head {q_head} of layer {layer} is not in the dump; the layer has "
            f"{has}"
        )
    if k_head is None:
        k_head = head_layout(dump, config).key_head_of(q_head)
    keys = KeyHead.read(dump, layer, k_head, config)
    return _analyze_query_head(dump, layer, q_head, k_head, keys, config)


def analyze_group(
    dump: Dump,
    layer: int,
    k_head: int,
    q_heads: Sequence[int],
    config: RunnerConfig,
    texts: DumpTexts | None = None,
) -> Iterator[HeadResult | Failure]:
    """Analyse the query heads of one key head. A head that fails does not stop the others.

    `texts` are the texts of the whole run; without them, they are read from the dump.
    """
    try:
        keys = KeyHead.read(dump, layer, k_head, config, texts)
    except ToolkitError as error:
        yield from (Failure(layer, q_head, k_head, str(error)) for q_head in q_heads)
        return
    for q_head in q_heads:
        try:
            yield _analyze_query_head(dump, layer, q_head, k_head, keys, config)
        except ToolkitError as error:
            yield Failure(layer, q_head, k_head, str(error))


def _analyze_query_head(
    dump: Dump, layer: int, q_head: int, k_head: int, keys: KeyHead, config: RunnerConfig
) -> HeadResult:
    head = HeadId(layer, q_head, "q")
    rows, exponent = read_queries(dump, head, keys, config)
    window = common_window(rows, keys.rows, head.folder)
    return analyze_rows(layer, q_head, k_head, rows, keys, config, window, exponent)


def pair_seed(config: RunnerConfig, layer: int, q_head: int) -> int:
    """Seed of the key pairs of a query head."""
    return config.seed + 10007 * layer + 379 * q_head


def analyze_rows(
    layer: int,
    q_head: int,
    k_head: int,
    rows: HeadRows,
    keys: KeyHead,
    config: RunnerConfig,
    window: int | None = None,
    exponent: int = 0,
) -> HeadResult:
    """Analyse the queries `rows`, which were divided by two to the power `exponent`."""
    queries = RotatedQueries.of(rows, keys.signs)
    pool, problem = _attended(layer, q_head, rows, keys, config, window, exponent)
    seed = pair_seed(config, layer, q_head)
    plasticity, attended = head_plasticity(queries, keys, window, config, seed, pool)
    estimates = head_estimates(plasticity, rows.position_max)
    attention = HeadAttention.of(rows, _groups(rows, keys, config), config.distant_from)
    if estimates:
        estimates |= attention.means | attended_estimates(attended)
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
        **error_columns(plasticity, estimates),
        **attention_columns(attention.means),
        **attended_columns(attended),
        "layer_type": keys.layer_type or (FULL_ATTENTION if window is None else SLIDING_ATTENTION),
    }
    return HeadResult(
        layer,
        q_head,
        k_head,
        metrics,
        _bucket_columns(plasticity, keys, rows),
        _component_columns(fit),
        influence_columns(plasticity, estimates),
        _distance_columns(plasticity),
        attention.buckets,
        problem,
    )


def _attended(
    layer: int,
    q_head: int,
    rows: HeadRows,
    keys: KeyHead,
    config: RunnerConfig,
    window: int | None,
    exponent: int,
) -> tuple[AttendedKeys | None, str | None]:
    """The keys with their attention; else the reason why it is not known, if there are columns.

    Raises a `HeadError` if the settings demand attended pairs and attention is not known.
    """
    found = attended_keys(rows, keys, window, exponent, single_example=config.single_example)
    if isinstance(found, AttendedKeys):
        return found, None
    if config.pair_sampling == "attended":
        raise HeadError(
            f"{HeadId(layer, q_head, 'q').folder}: attended pairs cannot be drawn: {found}. "
            "Use another pair_sampling, or capture the dump again."
        )
    return None, None if rows.attention is None else found


def _groups(rows: HeadRows, keys: KeyHead, config: RunnerConfig) -> Ints | None:
    """Groups of the texts of the queries, for errors; None if there are no errors."""
    if rows.example_id is None or config.single_example or not config.error_bars:
        return None
    return keys.groups.of(rows.example_id)


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
        **cell_error_columns(plasticity),
    }


def _distance_columns(plasticity: AttentionPlasticity) -> Columns:
    distances = plasticity.distances
    if distances is None:
        return {}
    return {
        "query_distance": distances.query_distance.tolist(),
        "key_distance": distances.key_distance.tolist(),
        "plasticity": distances.plasticity.tolist(),
        "n_pairs": distances.n_pairs.tolist(),
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


def head_variance_parts(
    dump: Dump,
    layer: int,
    q_head: int,
    k_head: int,
    config: RunnerConfig,
    texts: DumpTexts | None = None,
) -> VarianceParts | None:
    """Parts of the squared standard error of `ap_overall`; None if the error is not known."""
    keys = KeyHead.read(dump, layer, k_head, config, texts)
    head = HeadId(layer, q_head, "q")
    rows, _ = read_queries(dump, head, keys, config)
    window = common_window(rows, keys.rows, head.folder)
    queries = RotatedQueries.of(rows, keys.signs)
    return variance_parts(queries, keys, window, config, pair_seed(config, layer, q_head))
