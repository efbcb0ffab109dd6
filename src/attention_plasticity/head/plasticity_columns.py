"""Plasticity of a head as table columns: means, standard errors, bias, counts, influences.

Plasticity of the cells of a head, and by distance, as table columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attention_plasticity.head.layer import NO_TEXTS
from attention_plasticity.head.result import Columns, MissingCells
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.values import NOT_FINITE, HeadValues
from attention_plasticity.metrics import (
    BUCKET_QUANTITY,
    GROUP_COLUMNS,
    MEAN_COLUMNS,
)
from attention_plasticity.metrics import FIFTHS as FIFTH_COLUMNS
from attention_plasticity.numeric.errors.text_groups import MIN_BUCKET_GROUPS
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.profile import AttentionPlasticity, fifth_of, means_by_fifth
from attention_plasticity.numeric.sizes import FIFTHS
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Ints

NO_QUERY_BUCKET = "no query bucket except bucket 0 has two queries"
NO_EARLIER_KEYS = "no query bucket sees keys of an earlier bucket"
NO_PAIRS = "no query bucket sees two keys that make a pair"
EMPTY_FIFTH = "no query bucket with key pairs is in this fifth of the context"
NO_COUNTS = "in every query bucket, all counted queries are of one group of texts"
COUNTING_OFF = "counting is off"
NO_CELL_PAIRS = "the cell has no key pair"
NO_CELL_COUNTS = "no pair of the cell was counted, or all queries are of one group of texts"
FEW_CELL_TEXTS = (
    f"the query bucket has texts of fewer than {MIN_BUCKET_GROUPS} groups, or the pairs are of one "
    "group"
)


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
    others: Sequence[tuple[str, float, Estimate]],
) -> Columns:
    """Columns of the table of influences: a row per mean and per query bucket, and other rows."""
    rows: list[tuple[str, float, Estimate]] = [
        (name, math.nan, estimate) for name, estimate in estimates.items()
    ]
    if plasticity.uncertainty is not None:
        profile = plasticity.uncertainty.profile(plasticity.profile)
        rows += [
            (BUCKET_QUANTITY, bucket, estimate)
            for bucket, estimate in zip(plasticity.query_buckets.tolist(), profile, strict=True)
        ]
    return influence_rows([*rows, *others])


def influence_rows(rows: Sequence[tuple[str, float, Estimate]]) -> Columns:
    """Columns of the table of influences from quantities, their buckets and their estimates."""
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


def bucket_columns(plasticity: AttentionPlasticity, keys: KeyHead, queries: HeadRows) -> Columns:
    """Columns of the table of cells."""
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
        "n_texts": text_counts(plasticity.q_bucket, queries.bucket, queries.example_id),
        **_cell_error_columns(plasticity),
    }


def distance_columns(plasticity: AttentionPlasticity) -> Columns:
    """Columns of the table of distances; empty if distances are not computed."""
    distances = plasticity.distances
    if distances is None:
        return {}
    return {
        "query_distance": distances.query_distance.tolist(),
        "key_distance": distances.key_distance.tolist(),
        "plasticity": distances.plasticity.tolist(),
        "n_pairs": distances.n_pairs.tolist(),
    }


def text_counts(
    buckets: Ints, of_queries: Ints, example_id: Ints | None
) -> list[int] | list[float]:
    """Number of texts per bucket of `buckets`, over its queries; NaN if it is not known."""
    if example_id is None:
        return [math.nan] * len(buckets)
    order = np.lexsort((example_id, of_queries))
    bucket, text = of_queries[order], example_id[order]
    first_of_text = np.r_[True, (np.diff(bucket) != 0) | (text[1:] != text[:-1])]  # (n,)
    values, counts = np.unique(bucket[first_of_text], return_counts=True)
    return counts[np.searchsorted(values, buckets)].tolist()  # type: ignore[no-any-return]


def _cell_error_columns(plasticity: AttentionPlasticity) -> Columns:
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


def missing_cells(
    plasticity: AttentionPlasticity, texts_known: bool, why_no_errors: str
) -> MissingCells:
    """Missing values of the table of cells: column → reason → number of cells."""
    return {
        **missing_texts(len(plasticity.n_pairs), texts_known),
        **missing_estimates("plasticity", plasticity, FEW_CELL_TEXTS, why_no_errors),
        **missing_counts(plasticity, why_no_errors),
    }


def missing_texts(cells: int, texts_known: bool) -> MissingCells:
    """Why the numbers of texts are missing."""
    return {} if texts_known else _not_empty({"n_texts": {NO_TEXTS: cells}})


def missing_estimates(
    name: str, plasticity: AttentionPlasticity, few_texts: str, why_no_errors: str
) -> MissingCells:
    """Why plasticity, errors and bias of cells are missing; `name` is the column of plasticity."""
    empty, uncertainty = _without_pairs(plasticity), plasticity.uncertainty
    error, bias = f"{name}_se", f"{name}_bias"
    found = {name: {NO_CELL_PAIRS: empty}}
    if uncertainty is None:
        cells = len(plasticity.n_pairs)
        return _not_empty(found | {column: {why_no_errors: cells} for column in (error, bias)})
    chosen = plasticity.q_code, plasticity.k_code
    no_error = int(np.isnan(uncertainty.cell_se[chosen]).sum()) - empty
    found[error] = {NO_CELL_PAIRS: empty, few_texts: no_error}
    no_bias = int(np.isnan(uncertainty.cell_bias[chosen]).sum()) - empty
    found[bias] = {NO_CELL_PAIRS: empty, NOT_FINITE: no_bias}
    return _not_empty(found)


def missing_counts(plasticity: AttentionPlasticity, why_no_errors: str) -> MissingCells:
    """Why counts of cells are missing."""
    cells, counted = len(plasticity.n_pairs), plasticity.counted
    if plasticity.uncertainty is None:
        reasons = {why_no_errors: cells}
    elif counted is None:
        reasons = {COUNTING_OFF: cells}
    else:
        empty = _without_pairs(plasticity)
        no_count = int(np.isnan(counted.cells[plasticity.q_code, plasticity.k_code]).sum()) - empty
        reasons = {NO_CELL_PAIRS: empty, NO_CELL_COUNTS: no_count}
    return _not_empty({"plasticity_counted": reasons})


def _without_pairs(plasticity: AttentionPlasticity) -> int:
    return int(np.count_nonzero(plasticity.n_pairs == 0))


def _not_empty(found: MissingCells) -> MissingCells:
    kept = {
        name: {why: number for why, number in reasons.items() if number}
        for name, reasons in found.items()
    }
    return {name: reasons for name, reasons in kept.items() if reasons}
