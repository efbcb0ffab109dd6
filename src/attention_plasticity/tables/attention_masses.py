"""Attention by distance from the table of attention: one row of masses per head.

The table has the mass of every distance bin per head and query bucket. A bin is named by its
smallest distance: 0, 1, 2, 4, 8 and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_plasticity.estimate.sizes import DISTANCES
from attention_plasticity.metrics import MASS_COLUMNS
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.arrays import Array


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


def row_masses(table: pd.DataFrame, bins: list[int]) -> tuple[Array, Array]:
    """(rows, bins) masses and half widths of their 95 % intervals, NaN if unknown."""
    values = table[[f"mass_{first}" for first in bins]].to_numpy(np.float64)
    errors = table[[f"mass_{first}_se" for first in bins]].to_numpy(np.float64)
    return values, half_width(errors, table[["n_groups"]].to_numpy(np.float64))


def head_masses(table: pd.DataFrame, bins: list[int]) -> HeadMasses:
    """Mean over the query buckets of each head, weighted by their numbers of tokens.

    The buckets of a head share their texts. The half width is the weighted mean of the half widths
    of the buckets. This is an upper bound: it is reached if the buckets vary together.
    """
    values, half = row_masses(table, bins)
    size = table["n_tokens"].to_numpy(np.float64)
    counted = np.where(np.isnan(values[:, 0]), 0.0, size)
    head = table.groupby(HEAD, sort=True).ngroup().to_numpy()  # (rows,)
    heads = table[HEAD].drop_duplicates().sort_values(HEAD, ignore_index=True)
    totals = np.bincount(head, counted, len(heads))  # (heads,)
    share = np.divide(counted, totals[head], out=np.zeros(len(table)), where=totals[head] > 0)
    used = share > 0
    sums = np.zeros((2, len(heads), len(bins)))
    for total, rows in zip(sums, (values, half), strict=True):
        np.add.at(total, head[used], share[used, None] * rows[used])
    sums[:, totals == 0] = np.nan
    return HeadMasses(heads, *sums)
