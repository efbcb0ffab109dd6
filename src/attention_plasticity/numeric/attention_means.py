"""Means over tokens of entropy, sink mass, largest logit and attention by distance.

Arrays in, arrays out; numpy only. A captured query has a weight: it stands for the tokens that were
not captured. Only ratios of weights matter. Standard errors come from the groups of texts, as for
plasticity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.numeric.errors.text_groups import (
    MIN_BUCKET_GROUPS,
    MIN_GROUPS,
    jackknife_factor,
    rows_per_group,
)
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.sizes import DISTANCES, GROUPS, SINK_TOKENS
from qk_toolkit.arrays import Array, Ints, Vectors


@dataclass(frozen=True)
class BucketMeans:
    """Means of several values over the queries of every query bucket."""

    bucket: Ints  # (buckets,)
    position: Array  # (buckets,) mean position
    count: Ints  # (buckets,) queries
    weight: Array  # (buckets,) sum of the weights of these queries
    groups: Array  # (buckets,) groups of texts; NaN if texts are not known
    mean: Array  # (buckets, values)
    error: Array  # (buckets, values) standard errors; NaN if they are not known


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


def far_mass(masses: Vectors, sink_mass: Vectors, position: Array, distant_from: int) -> Array:
    """(n,) attention at distances of `distant_from` or more, without tokens 0 to 3.

    `position` (n,) are the positions of the queries. A query at `distant_from + 3` or later has all
    four tokens at these distances, so their mass is subtracted. An earlier query has no other
    tokens there, so its far mass is zero. NaN as for `distant_mass`.
    """
    distant = distant_mass(masses, distant_from)
    far = np.maximum(distant - sink_mass, 0.0)  # both are rounded
    far[(position < distant_from + SINK_TOKENS - 1) & ~np.isnan(distant)] = 0.0
    return far


def bucket_means(
    values: Array, weight: Array, position: Array, bucket: Ints, group: Ints | None
) -> BucketMeans:
    """Means of `values` (n, m) per bucket. `group` (n,) are the groups of texts, if known.

    `weight` (n,) are the weights of the queries, `position` (n,) their positions.
    """
    buckets, code = np.unique(bucket, return_inverse=True)
    slot = code * GROUPS + (0 if group is None else group)
    shape = (len(buckets), GROUPS)
    queries = np.bincount(slot, minlength=len(buckets) * GROUPS).reshape(shape)
    counts = queries.sum(axis=1)
    sums = _sums(slot, weight[:, None] * values, shape)  # (buckets, g, m)
    weights = np.bincount(slot, weight, len(buckets) * GROUPS).reshape(shape)
    total = weights.sum(axis=1)
    mean = sums.sum(axis=1) / total[:, None]  # (buckets, m)
    error, groups = np.full(mean.shape, np.nan), np.full(len(buckets), np.nan)
    if group is not None:
        influences = (sums - weights[:, :, None] * mean[:, None]) / total[:, None, None]
        influences *= jackknife_factor(queries)[:, None, None]
        number = np.count_nonzero(queries, axis=1)
        error = np.sqrt((influences**2).sum(axis=1))
        error[number < MIN_BUCKET_GROUPS] = np.nan
        groups = number.astype(np.float64)
    positions = np.bincount(code, position) / counts
    return BucketMeans(buckets, positions, counts, total, groups, mean, error)


def head_mean(values: Array, weight: Array, group: Ints | None) -> Estimate:
    """Mean of `values` (n,) over all queries of a head, with the weights `weight` (n,).

    Its bias is not computed: it is far below the standard error.
    """
    total = weight.sum()
    mean = float((weight * values).sum() / total)
    if group is None:
        return Estimate(mean, 0.0, np.full(GROUPS, np.nan), 0)
    queries = rows_per_group(group)
    influences = np.bincount(group, weight * (values - mean), GROUPS) / total
    influences *= jackknife_factor(queries)
    number = int(np.count_nonzero(queries))
    if number < MIN_GROUPS:
        influences[:] = np.nan
    return Estimate(mean, 0.0, influences, number)


def _sums(slot: Ints, values: Array, shape: tuple[int, int]) -> Array:
    """(*shape, m) sums of the rows of `values` (n, m) with the same slot."""
    order = np.argsort(slot, kind="stable")
    starts = np.flatnonzero(np.diff(slot[order], prepend=-1))
    sums = np.zeros((shape[0] * shape[1], values.shape[1]))
    sums[slot[order[starts]]] = np.add.reduceat(values[order], starts, axis=0)
    return sums.reshape(*shape, -1)
