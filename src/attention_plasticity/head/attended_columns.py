"""Attended plasticity as table columns: means, errors, bias, counts, sizes."""

from __future__ import annotations

import math

from attention_plasticity.head.attended import AttendedPlasticity
from attention_plasticity.head.plasticity_columns import COUNTING_OFF, NO_COUNTS
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.values import HeadValues
from attention_plasticity.head.windows import FEW_VISIBLE
from attention_plasticity.metrics import (
    ATTENDED,
    ATTENDED_ALIGNED,
    ATTENDED_ALIGNED_COUNTED,
    ATTENDED_COUNTED,
)
from attention_plasticity.numeric.bins import BinWeights
from attention_plasticity.numeric.profile import AttentionPlasticity, weighted_mean

NO_ATTENDED_PAIRS = (
    "no bin of queries sees two earlier keys of one of its texts that receive attention"
)
WINDOWED = "in layers with a window or chunks, it is not computed"
FROM_CAPTURE = "the attention of the keys was recorded by the capture, in the column received"


def add_attended(
    values: HeadValues, found: AttendedPlasticity | Unknown, why_no_errors: str
) -> None:
    """Attended plasticity over a bin and at one position."""
    names = ((ATTENDED, ATTENDED_COUNTED), (ATTENDED_ALIGNED, ATTENDED_ALIGNED_COUNTED))
    if isinstance(found, Unknown):
        for name in (name for both in names for name in both):
            values.add_estimate(name, math.nan, None, found.reason, found.reason)
        values.add({f"{ATTENDED}_ess": math.nan, "n_later_queries": math.nan}, found.reason)
        return
    no_pairs = FEW_VISIBLE if found.windowed else NO_ATTENDED_PAIRS
    for both, plasticity in zip(names, (found.pooled, found.aligned), strict=True):
        _add(values, both, plasticity, found.weights, no_pairs, why_no_errors)
    why = WINDOWED if found.effective_pairs is None else no_pairs
    size = math.nan if found.effective_pairs is None else found.effective_pairs
    values.add({f"{ATTENDED}_ess": size}, why)
    why = FROM_CAPTURE if found.later_queries is None else no_pairs
    later = math.nan if found.later_queries is None else found.later_queries
    values.add({"n_later_queries": later}, WINDOWED if found.windowed else why)


def _add(
    values: HeadValues,
    names: tuple[str, str],
    plasticity: AttentionPlasticity | Unknown,
    weights: BinWeights,
    no_pairs: str,
    why_no_errors: str,
) -> None:
    """A mean over tokens and its count, with errors."""
    if isinstance(plasticity, Unknown):
        for name in names:
            values.add_estimate(name, math.nan, None, plasticity.reason, plasticity.reason)
        return
    profile, estimate, counted = plasticity.profile, None, None
    if plasticity.uncertainty is not None:
        estimate = plasticity.uncertainty.weighted(profile, weights.everywhere)
        counted = None if plasticity.counted is None else plasticity.counted.counted
    value = weighted_mean(profile, weights.everywhere.sum(axis=1))
    values.add_estimate(names[0], value, estimate, no_pairs, why_no_errors)
    why = why_no_errors
    if estimate is not None:
        why = COUNTING_OFF if counted is None else NO_COUNTS
    why = values.missing.get(names[0], why)
    value = math.nan if counted is None else counted.value
    values.add_estimate(names[1], value, counted, why, why)
