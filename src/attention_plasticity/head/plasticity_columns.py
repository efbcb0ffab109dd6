"""Plasticity of a head as table columns: means, standard errors, bias, counts, influences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from attention_plasticity.head.result import Columns
from attention_plasticity.head.values import HeadValues
from attention_plasticity.metrics import (
    BUCKET_QUANTITY,
    GROUP_COLUMNS,
    MEAN_COLUMNS,
)
from attention_plasticity.metrics import FIFTHS as FIFTH_COLUMNS
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.profile import AttentionPlasticity, fifth_of, means_by_fifth
from attention_plasticity.numeric.sizes import FIFTHS

Ints = npt.NDArray[np.int64]

NO_QUERY_BUCKET = "no query bucket except bucket 0 has two queries"
NO_EARLIER_KEYS = "no query bucket sees keys of an earlier bucket"
NO_PAIRS = "no query bucket sees two keys that make a pair"
EMPTY_FIFTH = "no query bucket with key pairs is in this fifth of the context"
NO_COUNTS = "in every query bucket, all counted queries are of one group of texts"
COUNTING_OFF = "counting is off"


def _estimates(plasticity: AttentionPlasticity, context: float) -> dict[str, Estimate]:
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
    counted = plasticity.counted
    if counted is not None:
        assert counted.gap is not None
        estimates |= {"ap_counted": counted.counted, "ap_gaussian_gap": counted.gap}
    return estimates


def add_plasticity(
    values: HeadValues, plasticity: AttentionPlasticity, context: float, why_no_errors: str
) -> None:
    """Plasticity of the head, in fifths of the context, and by counting; with errors and bias.

    `why_no_errors` is the reason if there are no errors; counts are then not known either.
    """
    overall, estimates = plasticity.overall, _estimates(plasticity, context)
    counts, positions = plasticity.query_counts, plasticity.query_positions
    fifths = means_by_fifth(plasticity.profile, positions, counts, context).tolist()
    found = {"ap_overall": overall, **dict(zip(FIFTH_COLUMNS, fifths, strict=True))}
    found["ap_drop"] = found["ap_first20"] - found["ap_last20"]
    no_value = _why_no_pairs(plasticity) if math.isnan(overall) else EMPTY_FIFTH
    for name, value in found.items():
        why = no_value
        if name == "ap_drop" and not math.isnan(overall):
            why = why_no_drop(found["ap_first20"], found["ap_last20"])
        values.add_estimate(name, value, estimates.get(name), why, why_no_errors)
    why = why_no_errors
    if estimates:
        why = COUNTING_OFF if plasticity.counted is None else NO_COUNTS
    why = values.missing.get("ap_overall", why)
    for name in ("ap_counted", "ap_gaussian_gap"):
        estimate = estimates.get(name)
        value = math.nan if estimate is None else estimate.value
        values.add_estimate(name, value, estimate, why, why)
    values.add({"n_text_groups": _text_groups(plasticity)}, why_no_errors)


def _why_no_pairs(plasticity: AttentionPlasticity) -> str:
    """Why no query bucket has a key pair."""
    if len(plasticity.query_buckets) == 0:
        return NO_QUERY_BUCKET
    return NO_EARLIER_KEYS if len(plasticity.q_code) == 0 else NO_PAIRS


def why_no_drop(first: float, last: float) -> str:
    """Why there is no drop, from plasticity in the first fifth and in the last one."""
    fifths = {"first": first, "last": last}
    parts = [name for name, value in fifths.items() if math.isnan(value)]
    return f"there is no plasticity in the {' and the '.join(parts)} fifth of the context"


def _text_groups(plasticity: AttentionPlasticity) -> float:
    """Number of groups of texts with queries; NaN if texts are not known."""
    if plasticity.uncertainty is None:
        return math.nan
    return int(np.count_nonzero(plasticity.uncertainty.query_groups.sum(axis=0)))


def influence_columns(
    plasticity: AttentionPlasticity,
    estimates: dict[str, Estimate],
    of_bins: Sequence[tuple[str, float, Estimate]],
) -> Columns:
    """Columns of the table of influences: a row per mean, per query bucket and per query bin."""
    rows: list[tuple[str, float, Estimate]] = [
        (name, math.nan, estimate) for name, estimate in estimates.items()
    ]
    if plasticity.uncertainty is not None:
        profile = plasticity.uncertainty.profile(plasticity.profile)
        rows += [
            (BUCKET_QUANTITY, bucket, estimate)
            for bucket, estimate in zip(plasticity.query_buckets.tolist(), profile, strict=True)
        ]
    rows += of_bins
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
