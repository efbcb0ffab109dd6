"""Plasticity of a head as table columns: means, standard errors, bias, counts, influences."""

from __future__ import annotations

import math

import numpy as np

from attention_plasticity.head.plasticity import AttendedPlasticity
from attention_plasticity.head.result import Columns
from attention_plasticity.metrics import (
    ATTENDED,
    ATTENDED_COUNTED,
    ATTENTION_MEANS,
    BUCKET_QUANTITY,
    GROUP_COLUMNS,
    MEAN_COLUMNS,
)
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.profile import AttentionPlasticity, fifth_of
from attention_plasticity.numeric.sizes import FIFTHS, GROUPS

NOT_KNOWN = Estimate(math.nan, math.nan, np.full(GROUPS, np.nan), 0)


def head_estimates(plasticity: AttentionPlasticity, context: float) -> dict[str, Estimate]:
    """The means of a head with bias and influences; empty if texts are not known."""
    uncertainty = plasticity.uncertainty
    if uncertainty is None:
        return {}
    profile, counts = plasticity.profile, plasticity.query_counts
    fifth = fifth_of(plasticity.query_positions, context)
    chosen = [np.ones(len(counts), np.bool_), *(fifth == number for number in range(FIFTHS))]
    estimates = {
        name: uncertainty.mean(profile, counts, buckets)
        for name, buckets in zip(MEAN_COLUMNS, chosen, strict=False)
    }
    estimates["ap_drop"] = estimates["ap_first20"].minus(estimates["ap_last20"])
    if plasticity.counted is not None:
        estimates["ap_counted"] = plasticity.counted.counted
        estimates["ap_gaussian_gap"] = plasticity.counted.gap
    return estimates


def error_columns(
    plasticity: AttentionPlasticity, estimates: dict[str, Estimate]
) -> dict[str, float]:
    """Columns of the table of heads: standard errors, bias, counts; NaN where not known."""
    known = {
        name: estimates.get(name, NOT_KNOWN)
        for name in (*MEAN_COLUMNS, "ap_counted", "ap_gaussian_gap")
    }
    columns = {f"{name}_se": known[name].standard_error for name in MEAN_COLUMNS}
    columns |= {f"{name}_bias": known[name].bias for name in MEAN_COLUMNS}
    for name in ("ap_counted", "ap_gaussian_gap"):
        columns |= {name: known[name].value, f"{name}_se": known[name].standard_error}
    return columns | {"n_text_groups": _text_groups(plasticity)}


def attention_columns(means: dict[str, Estimate]) -> dict[str, float]:
    """Columns of the table of heads: means of attention with errors; NaN where not known."""
    columns: dict[str, float] = {}
    for name in ATTENTION_MEANS:
        mean = means.get(name, NOT_KNOWN)
        columns |= {name: mean.value, f"{name}_se": mean.standard_error}
    return columns


def attended_estimates(attended: AttendedPlasticity | None) -> dict[str, Estimate]:
    """Attended plasticity with bias and influences; empty if it or its texts are not known."""
    if attended is None or attended.plasticity.uncertainty is None:
        return {}
    found = attended.plasticity
    everywhere = np.ones(len(found.query_counts), np.bool_)
    overall = attended.plasticity.uncertainty.mean(found.profile, found.query_counts, everywhere)
    counted = {} if found.counted is None else {ATTENDED_COUNTED: found.counted.counted}
    return {ATTENDED: overall, **counted}


def attended_columns(attended: AttendedPlasticity | None) -> dict[str, float]:
    """Columns of the table of heads: attended plasticity; NaN where it is not known."""
    estimates = attended_estimates(attended)
    overall = estimates.get(ATTENDED, NOT_KNOWN)
    counted = estimates.get(ATTENDED_COUNTED, NOT_KNOWN)
    return {
        ATTENDED: math.nan if attended is None else attended.plasticity.overall,
        f"{ATTENDED}_se": overall.standard_error,
        f"{ATTENDED}_bias": overall.bias,
        ATTENDED_COUNTED: counted.value,
        f"{ATTENDED_COUNTED}_se": counted.standard_error,
        f"{ATTENDED}_ess": math.nan if attended is None else attended.effective_pairs,
        "n_later_queries": math.nan if attended is None else attended.later_queries,
    }


def _text_groups(plasticity: AttentionPlasticity) -> float:
    """Number of groups of texts with queries; NaN if texts are not known."""
    if plasticity.uncertainty is None:
        return math.nan
    return int(np.count_nonzero(plasticity.uncertainty.query_groups.sum(axis=0)))


def cell_error_columns(plasticity: AttentionPlasticity) -> Columns:
    """Columns of the table of cells: standard errors, bias, counts; NaN where not known."""
    cells = plasticity.q_code, plasticity.k_code
    unknown = np.full(len(plasticity.q_code), np.nan)
    uncertainty, counted = plasticity.uncertainty, plasticity.counted
    return {
        "plasticity_se": (unknown if uncertainty is None else uncertainty.cell_se[cells]).tolist(),
        "plasticity_bias": (
            unknown if uncertainty is None else uncertainty.cell_bias[cells]
        ).tolist(),
        "plasticity_counted": (unknown if counted is None else counted.cells[cells]).tolist(),
    }


def influence_columns(plasticity: AttentionPlasticity, estimates: dict[str, Estimate]) -> Columns:
    """Columns of the table of influences: a row per mean, then a row per query bucket."""
    rows: list[tuple[str, float, Estimate]] = [
        (name, math.nan, estimate) for name, estimate in estimates.items()
    ]
    if plasticity.uncertainty is not None:
        profile = plasticity.uncertainty.profile(plasticity.profile)
        rows += [
            (BUCKET_QUANTITY, bucket, estimate)
            for bucket, estimate in zip(plasticity.query_buckets.tolist(), profile, strict=True)
        ]
    columns: Columns = {
        "quantity": [name for name, _, _ in rows],
        "q_bucket": [bucket for _, bucket, _ in rows],
        "value": [estimate.value for _, _, estimate in rows],
        "bias": [estimate.bias for _, _, estimate in rows],
        "n_groups": [estimate.groups for _, _, estimate in rows],
    }
    for group, name in enumerate(GROUP_COLUMNS):
        columns[name] = [float(estimate.influences[group]) for _, _, estimate in rows]
    return columns
