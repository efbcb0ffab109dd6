"""Influences on the Gaussians of all query buckets, kept for further pairs.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.blocks import near_mean, row_blocks
from attention_plasticity.numeric.errors.influences import GaussianInfluences, GroupedQueries
from attention_plasticity.numeric.query_model import BucketMoments, bucket_rows
from attention_plasticity.numeric.sizes import GROUPS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_KEPT_INFLUENCES = 1 << 24  # float32 values of the influences on covariances


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
        self._kept, self._many = known or {}, known is not None
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
            self._kept[code] = self._queries.influences(queries, many=self._many)
        return self._kept[code]


def moments_with_influences(
    queries: GroupedQueries, position: Array, bucket: Ints, *, with_first: bool
) -> tuple[BucketMoments, BucketInfluences]:
    """Moments of the query buckets, and influences on them, in one pass over the queries.

    `queries` of the model `full` are sorted by `bucket` (n,). Covariances are sums of the groups'
    own sums, so they have the precision of the influences.
    """
    buckets, rows = bucket_rows(bucket, with_first=with_first)
    d = queries.vectors.shape[1]
    mean, covariance = np.empty((len(rows), d)), np.empty((len(rows), d, d))
    known: dict[int, GaussianInfluences] = {}
    for code, members in enumerate(rows):
        mean[code], variances = _mean_and_variances(queries, members)
        centred = queries.centred(members, mean[code], variances)
        found = queries.influences(centred, many=True)
        scatter = found.scatter.sum(axis=0, dtype=np.float64)  # (d, d)
        covariance[code] = scatter * (centred.unit**2 / (len(centred.y) - 1))
        if len(known) < _most_kept(d):
            known[code] = found
    count = np.array([members.stop - members.start for members in rows], np.int64)
    at = np.array([_mean(position[members]) for members in rows])
    moments = BucketMoments(buckets, count, at, mean, covariance)
    return moments, BucketInfluences(queries, rows, moments, known)


def _most_kept(d: int) -> int:
    """Number of buckets whose influences are kept."""
    return max(1, _KEPT_INFLUENCES // (GROUPS * d**2))


def _mean(values: Array) -> float:
    return float(values[0] + (values - values[0]).mean())


def _mean_and_variances(queries: GroupedQueries, members: slice) -> tuple[Array, Array]:
    """(d,) each, of the queries with the given rows."""
    X = queries.vectors[members]  # (n, d)
    n, d = X.shape
    origin = near_mean(X)  # (d,)
    total, squares = np.zeros(d), np.zeros(d)
    for block in row_blocks(n, d):
        dev = X[block] - origin  # (b, d)
        total += np.ones(len(dev)) @ dev
        squares += np.einsum("nd,nd->d", dev, dev)
    shift = total / n
    return origin + shift, np.maximum(squares - n * shift**2, 0.0) / (n - 1)
