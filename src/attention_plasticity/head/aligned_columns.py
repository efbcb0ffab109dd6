"""Plasticity at one position as table columns: means, errors, bias, counts, cells of bins."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from attention_plasticity.head.aligned import AlignedPlasticity
from attention_plasticity.head.plasticity_columns import (
    COUNTING_OFF,
    NO_COUNTS,
    missing_counts,
    missing_estimates,
    missing_texts,
    text_counts,
    why_no_drop,
)
from attention_plasticity.head.result import Columns, MissingCells
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.values import HeadValues
from attention_plasticity.head.windows import FEW_VISIBLE
from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_COUNTED,
    ALIGNED_DROP,
    ALIGNED_FIFTHS,
    BIN_QUANTITY,
    PHASE,
    POOLED,
    POOLED_BIN_QUANTITY,
)
from attention_plasticity.numeric.errors.text_groups import MIN_BUCKET_GROUPS
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.profile import AttentionPlasticity, weighted_mean
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array

NO_QUERY_BIN = "no bin except the first has two queries"
NO_EARLIER_KEYS = "no bin of queries sees keys of an earlier bin"
NO_PAIRS = "no bin of queries sees two keys that make a pair"
EMPTY_FIFTH = "no bin with key pairs has queries in this fifth of the context"
FEW_BIN_TEXTS = (
    f"the bin of queries has texts of fewer than {MIN_BUCKET_GROUPS} groups, or the pairs are of "
    "one group"
)


def add_aligned(values: HeadValues, found: AlignedPlasticity | Unknown, why_no_errors: str) -> None:
    """Plasticity at one position, in fifths of the context, and by counting; the rotary phase."""
    if isinstance(found, Unknown):
        for name in (ALIGNED, *ALIGNED_FIFTHS, ALIGNED_DROP, ALIGNED_COUNTED, POOLED, PHASE):
            values.add_estimate(name, math.nan, None, found.reason, found.reason)
        return
    numbers, estimates = _numbers(found), _estimates(found)
    no_value = _why_no_pairs(found) if math.isnan(numbers[ALIGNED]) else EMPTY_FIFTH
    for name, value in numbers.items():
        why = no_value
        if name == ALIGNED_DROP and not math.isnan(numbers[ALIGNED]):
            why = why_no_drop(numbers[ALIGNED_FIFTHS[0]], numbers[ALIGNED_FIFTHS[-1]])
        values.add_estimate(name, value, estimates.get(name), why, why_no_errors)
    counted = estimates.get(ALIGNED_COUNTED)
    why = why_no_errors
    if estimates:
        why = COUNTING_OFF if counted is None else NO_COUNTS
    why = values.missing.get(ALIGNED, why)
    value = math.nan if counted is None else counted.value
    values.add_estimate(ALIGNED_COUNTED, value, counted, why, why)


def _numbers(found: AlignedPlasticity) -> dict[str, float]:
    """The means over tokens, without their errors."""
    totals = [part.sum(axis=1) for part in found.weights.parts]  # (query bins,) each
    names = (ALIGNED, *ALIGNED_FIFTHS)
    numbers = {
        name: weighted_mean(found.aligned.profile, total)
        for name, total in zip(names, totals, strict=True)
    }
    numbers[ALIGNED_DROP] = numbers[ALIGNED_FIFTHS[0]] - numbers[ALIGNED_FIFTHS[-1]]
    numbers[POOLED] = weighted_mean(found.pooled.profile, totals[0])
    numbers[PHASE] = numbers[POOLED] - numbers[ALIGNED]
    return numbers


def _estimates(found: AlignedPlasticity) -> dict[str, Estimate]:
    """The means over tokens with bias and influences; empty if texts are not known."""
    aligned, pooled = found.aligned, found.pooled
    if aligned.uncertainty is None or pooled.uncertainty is None:
        return {}
    parts = found.weights.parts  # (query bins, g) each
    estimates = {
        name: aligned.uncertainty.weighted(aligned.profile, part)
        for name, part in zip((ALIGNED, *ALIGNED_FIFTHS), parts, strict=True)
    }
    first, last = estimates[ALIGNED_FIFTHS[0]], estimates[ALIGNED_FIFTHS[-1]]
    estimates[ALIGNED_DROP] = first.minus(last)
    estimates[POOLED] = pooled.uncertainty.weighted(pooled.profile, parts[0])
    estimates[PHASE] = estimates[POOLED].minus(estimates[ALIGNED])
    if aligned.counted is not None:
        estimates[ALIGNED_COUNTED] = aligned.counted.counted
    return estimates


def _why_no_pairs(found: AlignedPlasticity) -> str:
    """Why no bin of queries has a key pair."""
    plasticity = found.aligned
    if found.windowed:
        return FEW_VISIBLE
    if len(plasticity.query_buckets) == 0:
        return NO_QUERY_BIN
    return NO_EARLIER_KEYS if len(plasticity.q_code) == 0 else NO_PAIRS


def bin_influences(found: AlignedPlasticity | Unknown) -> list[tuple[str, float, Estimate]]:
    """Rows of the table of influences: quantity, bin, and plasticity of the bin of queries."""
    if isinstance(found, Unknown):
        return []
    rows: list[tuple[str, float, Estimate]] = []
    kinds = ((BIN_QUANTITY, found.aligned), (POOLED_BIN_QUANTITY, found.pooled))
    for name, plasticity in kinds:
        if plasticity.uncertainty is not None:
            profile = plasticity.uncertainty.profile(plasticity.profile)
            bins = plasticity.query_buckets.tolist()
            rows += [(name, number, one) for number, one in zip(bins, profile, strict=True)]
    return rows


def bin_columns(found: AlignedPlasticity | Unknown, keys: KeyHead, queries: HeadRows) -> Columns:
    """Columns of the table of bins; empty if plasticity at one position is not known."""
    if isinstance(found, Unknown):
        return {}
    aligned, pooled, bins = found.aligned, found.pooled, found.bins
    index = keys.bin_index
    key_positions = np.bincount(index.codes, keys.rows.position) / np.bincount(index.codes)
    weight = found.weights.everywhere.sum(axis=1)  # (query bins,)
    q_bin, k_bin, q_code = aligned.q_bucket, aligned.k_bucket, aligned.q_code
    counted = np.full(len(q_bin), np.nan)
    if aligned.counted is not None:
        counted = aligned.counted.cells[q_code, aligned.k_code]
    columns: dict[str, npt.NDArray[np.generic]] = {
        "q_bin": q_bin,
        "k_bin": k_bin,
        "plasticity": aligned.plasticity,
        "n_pairs": aligned.n_pairs,
        "q_position": aligned.query_positions[q_code],
        "k_position": key_positions[aligned.k_code],
        "n_queries": aligned.query_counts[q_code],
        **_cell_errors("plasticity", aligned),
        "plasticity_counted": counted,
        "pooled": pooled.plasticity,
        **_cell_errors("pooled", pooled),
        "q_start": bins.starts(q_bin),
        "q_end": bins.ends(q_bin),
        "k_start": bins.starts(k_bin),
        "k_end": bins.ends(k_bin),
        "q_weight": weight[q_code],
    }
    texts = text_counts(q_bin, bins.of(queries.position), queries.example_id)
    return {name: column.tolist() for name, column in columns.items()} | {"n_texts": texts}


def missing_bins(
    found: AlignedPlasticity | Unknown, texts_known: bool, why_no_errors: str
) -> MissingCells:
    """Missing values of the table of bins: column → reason → number of cells."""
    if isinstance(found, Unknown):
        return {}
    aligned, pooled = found.aligned, found.pooled
    return {
        **missing_texts(len(aligned.n_pairs), texts_known),
        **missing_estimates("plasticity", aligned, FEW_BIN_TEXTS, why_no_errors),
        **missing_counts(aligned, why_no_errors),
        **missing_estimates("pooled", pooled, FEW_BIN_TEXTS, why_no_errors),
    }


def _cell_errors(name: str, plasticity: AttentionPlasticity) -> dict[str, Array]:
    """Standard errors and bias of the cells; NaN if they are not known."""
    if plasticity.uncertainty is None:
        unknown = np.full(len(plasticity.q_code), np.nan)
        return {f"{name}_se": unknown, f"{name}_bias": unknown}
    cells = plasticity.q_code, plasticity.k_code
    uncertainty = plasticity.uncertainty
    return {f"{name}_se": uncertainty.cell_se[cells], f"{name}_bias": uncertainty.cell_bias[cells]}
