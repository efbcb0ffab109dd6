"""Attention by distance from the table of attention: one row of masses per head.

The table has the mass of every distance bin per head and query bucket. A bin is named by its
smallest distance: 0, 1, 2, 4, 8 and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_plasticity.estimate.sizes import DISTANCES
from attention_plasticity.metrics import HEAD, MASS_COLUMNS
from attention_plasticity.tables.intervals import half_width
from qk_dump.positions import BucketGeometry
from qk_toolkit.arrays import Array

SINKS = 4
"""Number of first tokens of a text that are called sinks."""


@dataclass(frozen=True)
class HeadMasses:
    """The share of attention at every distance, per head."""

    heads: pd.DataFrame  # layer and query head
    values: Array  # (heads, bins)
    half: Array  # (heads, bins) half widths of the 95 % intervals; NaN if unknown


def mass_bins(table: pd.DataFrame) -> list[int]:
    """The smallest distance of every bin, up to the last bin that has attention; may be empty."""
    masses = table[list(MASS_COLUMNS)].to_numpy(np.float64)  # (rows, bins)
    reached = np.flatnonzero((masses > 0).any(axis=0))
    return list(DISTANCES[: reached[-1] + 1]) if len(reached) else []


def masses_without_sinks(
    table: pd.DataFrame, bins: list[int], geometry: BucketGeometry | None
) -> HeadMasses:
    """Means over the query buckets of each head: (heads, 1 + bins), the first four tokens first.

    The buckets of a head are weighted by their numbers of tokens, and they share their texts. The
    half width is the weighted mean of the half widths of the buckets. This is an upper bound: it is
    reached if the buckets vary together.
    """
    return _over_buckets(table, *row_masses_without_sinks(table, bins, geometry))


def row_masses_without_sinks(
    table: pd.DataFrame, bins: list[int], geometry: BucketGeometry | None
) -> tuple[Array, Array]:
    """(rows, 1 + bins) masses and half widths; the first four tokens are apart and come first.

    A query at position p has these tokens p tokens back or a little less. How much of a bin is
    theirs follows from the positions of a bucket, which are counted evenly; without the `geometry`
    of the buckets, from the mean position of its queries.
    """
    values, half = _row_masses(table, bins)  # (rows, bins)
    sinks = table["sink_mass"].to_numpy(np.float64)  # (rows,)
    groups = table["n_groups"].to_numpy(np.float64)
    sinks_half = half_width(table["sink_mass_se"].to_numpy(np.float64), groups)
    share = _places_of_sinks(table, bins, geometry)  # (rows, bins)
    theirs = np.minimum(sinks[:, None] * share, values)
    left = values - theirs
    total = left.sum(axis=1, keepdims=True)
    rest = (sinks - theirs.sum(axis=1))[:, None]  # where a bin has less than their even part
    left -= rest * np.divide(left, total, out=np.zeros_like(left), where=total > 0)
    widths = np.column_stack([sinks_half, half + share * sinks_half[:, None]])
    return np.column_stack([sinks, left]), widths


def _row_masses(table: pd.DataFrame, bins: list[int]) -> tuple[Array, Array]:
    """(rows, bins) masses and half widths of their 95 % intervals, NaN if unknown."""
    values = table[[f"mass_{first}" for first in bins]].to_numpy(np.float64)
    errors = table[[f"mass_{first}_se" for first in bins]].to_numpy(np.float64)
    return values, half_width(errors, table[["n_groups"]].to_numpy(np.float64))


def _places_of_sinks(
    table: pd.DataFrame, bins: list[int], geometry: BucketGeometry | None
) -> Array:
    """(rows, bins) shares of the distances from the queries of a bucket to the first tokens."""
    if geometry is None:
        first = last = table["q_position"].to_numpy(np.float64)
    else:
        buckets = table["q_bucket"].to_numpy(np.int64)
        first, last = geometry.starts(buckets), geometry.ends(buckets)
    lows = np.array(bins, np.float64)  # (bins,)
    highs = np.append(lows[1:], np.inf)
    found = np.zeros((len(table), len(bins)))
    for token in range(SINKS):
        near = np.maximum(np.asarray(first, np.float64) - token, 0.0)[:, None]
        far = np.maximum(np.asarray(last, np.float64) - token, 0.0)[:, None] + 1.0
        found += np.clip(np.minimum(far, highs) - np.maximum(near, lows), 0.0, None)
    total = found.sum(axis=1, keepdims=True)
    shares: Array = np.divide(found, total, out=np.zeros_like(found), where=total > 0)
    return shares


def _over_buckets(table: pd.DataFrame, values: Array, half: Array) -> HeadMasses:
    """Means of the rows of each head by their tokens."""
    size = table["n_tokens"].to_numpy(np.float64)
    counted = np.where(np.isnan(values[:, 0]), 0.0, size)
    head = table.groupby(HEAD, sort=True).ngroup().to_numpy()  # (rows,)
    heads = table[HEAD].drop_duplicates().sort_values(HEAD, ignore_index=True)
    totals = np.bincount(head, counted, len(heads))  # (heads,)
    share = np.divide(counted, totals[head], out=np.zeros(len(table)), where=totals[head] > 0)
    used = share > 0
    sums = np.zeros((2, len(heads), values.shape[1]))
    for total, rows in zip(sums, (values, half), strict=True):
        np.add.at(total, head[used], share[used, None] * rows[used])
    sums[:, totals == 0] = np.nan
    return HeadMasses(heads, *sums)
