"""Position in the queries and keys of a head, and normality of the rest, as table columns.

The attention of the queries of a head as table columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.layer import NO_COLUMNS
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.head.result import Columns
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.head.values import HeadValues
from attention_plasticity.metrics import ATTENTION_MEANS, BUCKET_MEANS, DRIFT_COLUMNS, MASS_COLUMNS
from attention_plasticity.numeric.attention_means import (
    BucketMeans,
    bucket_means,
    common_bins,
    distant_mass,
    far_mass,
    head_mean,
)
from attention_plasticity.numeric.drift import Drift
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.normality import (
    compute_first_component_residual_stats,
    compute_noise_normality_stats,
)
from attention_plasticity.numeric.position import Regression, predictability_from_scores
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Ints
from qk_toolkit.errors import HeadError

ALL_ZERO = "all queries are zero"
ONE_POSITION = "all queries are at one position"
FEW_QUERIES = "fewer than 4 queries"
NO_RESIDUALS = "the residuals of the regression do not vary"
ONE_DIMENSION = "vectors have one dimension"
NOT_TESTED = "the residuals of the tested dimensions do not vary"
INSIDE_LAST_BIN = "distant_from is inside the last bin of mass_by_distance"


def add_position(values: HeadValues, queries: RotatedQueries, exponent: int) -> None:
    """Share of position in the queries, which were divided by two to the power `exponent`."""
    fit = queries.fit
    values.add(
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
    values.add({"q_R2_scalar": r2, "q_mae_baseline": baseline, "q_mae_proj": error})
    values.add({"q_mae_ratio": ratio}, ONE_POSITION)


def add_normality(values: HeadValues, queries: RotatedQueries, config: RunnerConfig) -> None:
    """Shape of the residuals along the drift, and over the other dimensions."""
    residuals, resid_var = queries.residuals, queries.resid_var
    few = residuals.shape[1] < 4
    try:
        first = compute_first_component_residual_stats(residuals.T, resid_var)
        others = compute_noise_normality_stats(
            residuals.T, resid_var, config.normality_max_dims, config.p_alpha, config.seed
        )
    except ValueError as error:
        raise HeadError(f"{error}. The queries are too large or too small.") from error
    skew, kurt, ks_p = first
    why = NO_RESIDUALS if resid_var[0] == 0 or not few else FEW_QUERIES
    values.add({"q_resid0_skew": skew, "q_resid0_kurt": kurt, "q_resid0_ks_p": ks_p}, why)
    skew, kurt, ks_p, share = others
    if not resid_var[1:].any():
        why = ONE_DIMENSION if len(resid_var) == 1 else NO_RESIDUALS
    else:
        why = FEW_QUERIES if few else NO_RESIDUALS
    values.add({"q_noise_med_abs_skew": skew, "q_noise_med_abs_kurt": kurt}, why)
    tests = {"q_noise_med_ks_p": ks_p, "q_noise_frac_ks_p_lt_alpha": share}
    values.add(tests, NOT_TESTED if resid_var[1:].any() else why)


def add_drift(
    values: HeadValues,
    of_queries: Drift | None,
    keys: KeyHead,
    *,
    with_errors: bool,
    why_no_errors: str,
) -> None:
    """Share of position in queries and keys before RoPE, and share of the mean query.

    `of_queries` is None if RoPE cannot be undone.
    """
    of_keys = keys.drift
    if of_queries is None or of_keys is None:
        why, unknown = keys.rotation.problem or "", None
        for name in DRIFT_COLUMNS:
            values.add_estimate(name, math.nan, unknown, why, why)
        return
    found = (of_queries.r2, of_keys.r2, of_queries.mean_share)
    for name, estimate in zip(DRIFT_COLUMNS, found, strict=True):
        known = None if not with_errors or math.isnan(estimate.value) else estimate
        values.add_estimate(name, estimate.value, known, ALL_ZERO, why_no_errors)


def component_columns(fit: Regression) -> Columns:
    """Columns of the table of components: the share of positional information per dimension."""
    r2 = np.maximum(fit.r2, 0.0)  # (d,)
    total = r2.sum()
    weight = r2 / total if total > 0 else np.full(len(r2), 1.0 / len(r2))
    return {
        "component": list(range(len(r2))),
        "weight": weight.tolist(),
        "r2": fit.r2.tolist(),
    }


@dataclass(frozen=True)
class HeadAttention:
    """Means over the tokens of a head; empty if the dump has no attention columns."""

    means: dict[str, Estimate] = field(default_factory=dict)  # columns of the table of heads
    buckets: Columns = field(default_factory=dict)  # rows of the table of attention

    @classmethod
    def of(
        cls, rows: HeadRows, weights: TokenWeights, group: Ints | None, distant_from: int
    ) -> HeadAttention:
        """Means over the queries with known attention; `group` (n,) is that of their texts."""
        attention = rows.attention
        if attention is None:
            return cls()
        known = np.flatnonzero(~np.isnan(attention.lse))
        if len(known) == 0:  # the texts with known attention are left out
            return cls()
        kept = attention[known]
        group = None if group is None else group[known]
        position, weight = rows.position[known], weights.of(known).weight
        largest_weight = float(weight.max())
        weight = weight / largest_weight  # exactly 1 if all are equal
        single = (kept.entropy, kept.sink_mass, kept.max_logit)
        entropy, sinks, largest = (values.astype(np.float64) for values in single)
        columns = {
            "attn_entropy": entropy,
            "attn_sink_mass": sinks,
            "attn_distant_mass": distant_mass(kept.mass_by_distance, distant_from),
            "attn_max_logit": largest,
            "attn_far_mass": far_mass(kept.mass_by_distance, sinks, position, distant_from),
        }
        means = {name: head_mean(values, weight, group) for name, values in columns.items()}
        masses = common_bins(kept.mass_by_distance)  # (n, 24)
        values = np.column_stack([entropy, sinks, largest, masses])
        found = bucket_means(values, weight, position, rows.bucket[known], group)
        return cls(means, _bucket_columns(found, largest_weight, group is not None))


def add_attention(values: HeadValues, means: dict[str, Estimate], why_no_errors: str) -> None:
    """Means of attention of the head, with errors."""
    why = INSIDE_LAST_BIN if means else NO_COLUMNS
    for name in ATTENTION_MEANS:
        mean = means.get(name)
        value = math.nan if mean is None else mean.value
        has_errors = mean is not None and mean.groups > 0
        values.add_estimate(name, value, mean if has_errors else None, why, why_no_errors)


def _bucket_columns(found: BucketMeans, unit: float, with_groups: bool) -> Columns:
    """Columns of the table of attention; a weight of 1 stands for `unit` tokens."""
    columns: Columns = {
        "q_bucket": found.bucket.tolist(),
        "q_position": found.position.tolist(),
        "n_queries": found.count.tolist(),
        "n_groups": (found.groups.astype(int) if with_groups else found.groups).tolist(),
    }
    single = len(BUCKET_MEANS)
    for place, name in enumerate(BUCKET_MEANS):
        columns[name] = found.mean[:, place].tolist()
        columns[f"{name}_se"] = found.error[:, place].tolist()
    for kind, table in (("", found.mean), ("_se", found.error)):
        for name, column in zip(MASS_COLUMNS, table[:, single:].T, strict=True):
            columns[f"{name}{kind}"] = column.tolist()
    columns["n_tokens"] = (found.weight * unit).tolist()
    return columns
