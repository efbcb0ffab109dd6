"""Means over tokens of entropy, sink mass, largest logit and attention by distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.quantity import (
    leave_one_out,
    quantity,
    ratio_of_means,
    sums_by,
)
from attention_plasticity.estimate.sizes import DISTANCES, GROUPS, SINK_TOKENS
from attention_plasticity.measure.found import Found
from attention_plasticity.measure.result import Columns
from attention_plasticity.metrics import ATTENTION_MEANS, BUCKET_MEANS, MASS_COLUMNS
from attention_plasticity.read.layer import NO_COLUMNS
from attention_plasticity.read.rows import Queries
from qk_dump.columns import ATTENTION_COLUMNS, ENTROPY, LSE, MASSES, MAX_LOGIT, SINK_MASS
from qk_dump.rows import Rows
from qk_toolkit.arrays import Array, Ints, Vectors

INSIDE_LAST_BIN = "distant_from is inside the last bin of mass_by_distance"
NOTHING_DISTANT = "no captured query has keys distant_from tokens or more before it"


@dataclass(frozen=True)
class KnownAttention:
    """The queries of a head whose attention is known."""

    queries: Queries
    rows: Ints  # (n,) row numbers
    attention: Rows  # (n,) their attention columns
    position: Array  # (n,)
    weight: Array  # (n,) in units of the largest, exactly 1 if all are equal
    unit: float  # tokens that a weight of 1 stands for
    group: Ints | None  # (n,)

    @classmethod
    def of(cls, queries: Queries) -> KnownAttention | None:
        """None without such queries."""
        if LSE not in queries.rows:
            return None
        rows = np.flatnonzero(~np.isnan(queries.rows[LSE]))
        if not len(rows):
            return None
        own = {name: queries.rows[name][rows] for name in ATTENTION_COLUMNS if name in queries.rows}
        weight = queries.weight[rows]
        unit = float(weight.max())
        group = None if queries.group is None else queries.group[rows]
        position = queries.position[rows]
        return cls(queries, rows, Rows(own), position, weight / unit, unit, group)


def attention_columns(queries: Queries, known: KnownAttention | None, distant_from: int) -> Found:
    """Means over the tokens of a head, and per query bucket."""
    found = Found()
    if known is None:
        found.add_unknown(ATTENTION_MEANS, NO_COLUMNS)
        return found
    kept = known.attention
    entropy, sinks, largest = (
        kept[name].astype(np.float64) for name in (ENTROPY, SINK_MASS, MAX_LOGIT)
    )
    distant = distant_mass(kept[MASSES], distant_from)
    far = far_mass(distant, sinks, known.position, distant_from)
    why = INSIDE_LAST_BIN if np.isnan(distant).any() else NOTHING_DISTANT
    if known.position.max() < distant_from:
        distant = np.full(len(distant), np.nan)
    values = np.column_stack([entropy, sinks, distant, largest, far])  # as ATTENTION_MEANS
    means = ratio_of_means(values, known.weight, known.group)
    for place, name in enumerate(ATTENTION_MEANS):
        found.add_quantity(name, means.at(place), why, queries.no_errors)
    masses = common_bins(kept[MASSES])  # (n, 24)
    found.tables["attention"] = _bucket_columns(
        known, np.column_stack([entropy, sinks, largest, masses])
    )
    return found


def _bucket_columns(known: KnownAttention, values: Array) -> Columns:
    """Columns of the table of attention: means of `values` (n, m) per query bucket."""
    buckets, code = np.unique(known.queries.rows.bucket[known.rows], return_inverse=True)
    group = np.zeros(len(code), np.int64) if known.group is None else known.group
    ones = np.ones((len(code), 1))
    weighted = np.column_stack([values, ones]) * known.weight[:, None]  # (n, m + 1)
    flat = sums_by(weighted, code * GROUPS + group, len(buckets) * GROUPS)
    sums = flat.reshape(len(buckets), GROUPS, -1).swapaxes(0, 1)  # (g, buckets, m + 1)
    replicates = leave_one_out(sums)  # (1 + g, buckets, m + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = replicates[:, :, :-1] / replicates[:, :, -1:]
    present = sums[:, :, -1] > 0  # (g, buckets)
    found = quantity(means, present & (known.group is not None))
    counts, groups = np.bincount(code), present.sum(axis=0)
    columns: Columns = {
        "q_bucket": buckets.tolist(),
        "q_position": (np.bincount(code, known.position) / counts).tolist(),
        "n_queries": counts.tolist(),
        "n_groups": groups.tolist() if known.group is not None else [math.nan] * len(buckets),
    }
    error = found.standard_error
    for place, name in enumerate((*BUCKET_MEANS, *MASS_COLUMNS)):
        columns[name] = found.value[:, place].tolist()
        columns[f"{name}_se"] = error[:, place].tolist()
    columns["n_tokens"] = (replicates[0, :, -1] * known.unit).tolist()
    return columns


def common_bins(masses: Vectors) -> Array:
    """`masses` (n, bins) with the bins of the tables, (n, 24).

    Bins that are missing become zero; they are not known, and NaN, if the last bin of `masses` is
    not empty, because it also holds all larger distances. The last bin of the tables also gets the
    bins beyond it.
    """
    n, bins = masses.shape
    common = np.zeros((n, len(DISTANCES)))
    shared = min(bins, len(DISTANCES))
    common[:, :shared] = masses[:, :shared]
    if bins < len(DISTANCES) and masses[:, -1].any():
        common[:, bins - 1 :] = np.nan
    common[:, -1] += masses[:, shared:].sum(axis=1, dtype=np.float64)
    return common


def distant_mass(masses: Vectors, distant_from: int) -> Array:
    """(n,) attention at distances of `distant_from`, a power of two, or more.

    NaN if `distant_from` is inside the last bin of `masses` (n, bins), and this bin is not empty.
    """
    first = distant_from.bit_length()  # 1 is the second bin, 2 the third
    if first >= masses.shape[1] and masses[:, -1].any():
        return np.full(len(masses), np.nan)
    return np.asarray(masses[:, first:].sum(axis=1, dtype=np.float64))


def far_mass(distant: Array, sink_mass: Array, position: Array, distant_from: int) -> Array:
    """(n,) the attention of `distant_mass` without tokens 0 to 3.

    A query at `distant_from + 3` or later has all four tokens at these distances, so their mass is
    subtracted. An earlier query has no other tokens there, so its far mass is zero. NaN if all
    queries are so early that far mass cannot be measured.
    """
    if position.max(initial=0) < distant_from + SINK_TOKENS:
        return np.full(len(distant), np.nan)
    far = np.maximum(distant - sink_mass, 0.0)  # both are rounded
    far[(position < distant_from + SINK_TOKENS - 1) & ~np.isnan(distant)] = 0.0
    return far
