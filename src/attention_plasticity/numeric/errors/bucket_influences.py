"""Influences on the Gaussians of all query buckets, kept for further pairs.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

import numpy as np

from attention_plasticity.numeric.blocks import near_mean, row_blocks
from attention_plasticity.numeric.errors.influences import (
    CentredQueries,
    GaussianInfluences,
    GroupedQueries,
    is_float32_coarse,
    unit_of,
)
from attention_plasticity.numeric.errors.text_groups import rows_per_group
from attention_plasticity.numeric.query_model import BucketMoments, bucket_rows, mean_position
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

_KEPT_INFLUENCES = 1 << 24  # float32 values of the influences on covariances
_SMALLEST_UNIT = 2.0**-40  # squares of much smaller values are zero in float32


class BucketInfluences:
    """Influences on the Gaussians of the query buckets.

    They are kept for further pairs, or only those of the last bucket if they are large.
    """

    def __init__(
        self,
        queries: GroupedQueries,
        bucket_rows: list[slice],
        moments: BucketMoments,
        known: dict[int, GaussianInfluences] | None = None,
    ) -> None:
        """`bucket_rows` are the rows of every query bucket in `queries`; `known` are influences."""
        self._queries, self._rows, self._moments = queries, bucket_rows, moments
        self._kept = known or {}
        self._most = _most_kept(moments.mean.shape[1])

    def of(self, code: int) -> GaussianInfluences:
        """Influences on the Gaussian of query bucket `code`."""
        if code not in self._kept:
            if len(self._kept) >= self._most:
                self._kept.clear()
            moments = self._moments
            queries = self._queries.centred(
                self._rows[code], moments.mean[code], np.diagonal(moments.covariance[code])
            )
            self._kept[code] = self._queries.influences(queries)
        return self._kept[code]


def moments_with_influences(
    queries: GroupedQueries, position: Array, bucket: Ints, *, with_first: bool
) -> tuple[BucketMoments, BucketInfluences]:
    """Moments of the query buckets, and influences on them, in one pass over the queries.

    `queries` of the model `full` are sorted by `bucket` (n,), and are faster if they are sorted by
    group in each bucket. Covariances are sums of the groups'
    own sums, so they have the precision of the influences.
    """
    buckets, rows = bucket_rows(bucket, with_first=with_first)
    d = queries.vectors.shape[1]
    mean, covariance = np.empty((len(rows), d)), np.empty((len(rows), d, d))
    known: dict[int, GaussianInfluences] = {}
    for code, members in enumerate(rows):
        mean[code], centred = _centred(queries, members)
        found = queries.influences(centred)
        scatter = found.scatter.sum(axis=0, dtype=np.float64)  # (d, d)
        covariance[code] = scatter * (centred.unit**2 / (len(centred.y) - 1))
        if len(known) < _most_kept(d):
            known[code] = found
    count = np.array([members.stop - members.start for members in rows], np.int64)
    at = np.array([mean_position(position[members]) for members in rows])
    moments = BucketMoments(buckets, count, at, mean, covariance)
    return moments, BucketInfluences(queries, rows, moments, known)


def _most_kept(d: int) -> int:
    """Number of buckets whose influences are kept."""
    return max(1, _KEPT_INFLUENCES // (GROUPS * d**2))


def _centred(queries: GroupedQueries, members: slice) -> tuple[Array, CentredQueries]:
    """The mean (d,) of the queries with the given rows, and these queries minus their mean."""
    group = queries.group[members]
    if queries.vectors.dtype == np.float32 and (group[1:] >= group[:-1]).all():
        found = _centred_in_float32(queries.vectors[members])
        if found is not None:
            mean, unit, y = found
            rows = np.arange(members.start, members.stop)
            return mean, CentredQueries(rows, rows_per_group(group), unit, mean / unit, y, None)
    mean, variances = _mean_and_variances(queries.vectors[members])
    return mean, queries.centred(members, mean, variances)


def _centred_in_float32(X: Vectors) -> tuple[Array, float, Vectors] | None:
    """The mean (d,) of the rows of `X`, a unit, and the rows minus the mean in this unit.

    None if float32 is too coarse for the variances.
    """
    n, d = X.shape
    origin = near_mean(X).astype(np.float32)  # (d,) near the mean, so that differences are exact
    y = np.empty((n, d), np.float32)
    total, squares = np.zeros(d), np.zeros(d)
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_blocks(n, d):
            dev = np.subtract(X[rows], origin, out=y[rows])  # (b, d)
            total += np.ones(len(dev), np.float32) @ dev
            squares += np.einsum("nd,nd->d", dev, dev)
        shift = total / n  # (d,)
        variances = np.maximum(squares - n * shift**2, 0.0) / (n - 1)
    unit = unit_of(variances)
    if not _SMALLEST_UNIT < unit < 1.0 / _SMALLEST_UNIT or is_float32_coarse(variances):
        return None
    for rows in row_blocks(n, d):
        y[rows] -= shift.astype(np.float32)
        y[rows] *= np.float32(1.0 / unit)
    return origin + shift, unit, y


def _mean_and_variances(X: Vectors) -> tuple[Array, Array]:
    """(d,) each, of the rows of `X` (n, d)."""
    n, d = X.shape
    origin = near_mean(X)  # (d,)
    total, squares = np.zeros(d), np.zeros(d)
    for block in row_blocks(n, d):
        dev = X[block] - origin  # (b, d)
        total += np.ones(len(dev)) @ dev
        squares += np.einsum("nd,nd->d", dev, dev)
    shift = total / n
    return origin + shift, np.maximum(squares - n * shift**2, 0.0) / (n - 1)
