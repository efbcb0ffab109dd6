"""Where the standard error of a head comes from: its texts, queries, keys and key pairs.

Arrays in, arrays out; numpy only. Every query and every key pair has an influence on the mean.
The squared error is the sum over texts of the squared sum of influences, so it is a sum of products
of two influences. A product of a query with itself belongs to the queries, of a pair with itself to
the pairs, of two pairs with one common key to the keys. All other products are those of rows that
have only their text in common. They are the part of the texts. No part needs several rows of a
text, so the parts are also right for texts with one query or one pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attention_plasticity.numeric.errors.influences import (
    CentredQueries,
    FirstComponent,
    GroupedQueries,
)
from attention_plasticity.numeric.errors.uncertainty import ScoredPairs
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

Numbers = Array | Ints


@dataclass(frozen=True)
class VarianceParts:
    """Parts of the squared standard error of a mean of plasticity, and the size of the sample."""

    by_group: tuple[float, ...]  # part of the texts, by group; by chance it can be negative
    queries: float
    keys: float  # by chance it can be negative
    pairs: float
    n_texts: int
    n_queries: int
    n_keys: int
    queries_per_bucket: tuple[int, ...]  # of query buckets
    available: tuple[int, ...]  # possible pairs, per bucket
    pairs_per_bucket: int

    @property
    def texts(self) -> float:
        """The part of the texts."""
        return math.fsum(self.by_group)


class VarianceSums:
    """Collects what the influences of queries and pairs are computed from."""

    def __init__(self, queries: GroupedQueries, text: Ints, query_buckets: int) -> None:
        """`text` (n,) is the example of every query."""
        d = queries.vectors.shape[1]
        self._queries, self._text = queries, text
        self._members: dict[int, CentredQueries] = {}
        self._gradient = np.zeros((query_buckets, d))  # Σ f'w/√v over pairs
        self._curvature = np.zeros((query_buckets, d, d))  # Σ slope·wwᵀ/v over pairs
        self._pairs: list[tuple[int, Ints, Ints, Array]] = []  # bucket, keys, keys, plasticity

    def add(
        self,
        code: int,
        queries: CentredQueries,
        W: Vectors,
        scored: ScoredPairs,
        first: Ints,
        second: Ints,
    ) -> None:
        """Add pairs of query bucket `code`; `first` and `second` are the rows of their keys."""
        self._members[code] = queries
        self._gradient[code] += (scored.scores.first * scored.precision) @ W
        X = W * (np.sqrt(scored.scores.width_slope) * scored.precision)[:, None]  # (pairs, d)
        self._curvature[code] += X.T @ X
        self._pairs.append((code, first, second, scored.scores.value))

    def query_influences(self, profile: Array, counts: Numbers, overall: float) -> Array:
        """(n,) influences of all queries on the mean of `profile`, weighted by `counts`.

        `counts` (query buckets,) are numbers of queries, or sums of their weights. The queries of a
        bucket share its sum equally.
        """
        used = ~np.isnan(profile)
        total = float(counts[used].sum())
        n_pairs = self._pairs_per_bucket(len(profile))
        influences = np.zeros(len(self._text))
        for code, members in self._members.items():
            weight = counts[code] / total
            a, B = self._gradient[code] / n_pairs[code], self._curvature[code] / n_pairs[code]
            influences[members.rows] += weight * self._within_bucket(members, a, B)
            share = counts[code] / len(members.y)  # 1 if queries are counted
            influences[members.rows] += share * (profile[code] - overall) / total
            if members.first is not None:
                assert self._queries.first is not None
                influences += weight * _regression_part(self._queries.first, members, a[0], B[0, 0])
        return influences

    def _within_bucket(self, members: CentredQueries, a: Array, B: Array) -> Array:
        """(n_j,) influences through the mean and covariance of the bucket."""
        y = members.y.astype(np.float64)  # in the model `positional` without the first component
        n = len(y)
        if self._queries.model == "diagonal":
            squares = y**2 @ np.diagonal(B)
        else:
            squares = np.einsum("nd,nd->n", y @ B, y)
        return np.asarray(y @ a / n + (squares - squares.mean()) / (n - 1))

    def _pairs_per_bucket(self, buckets: int) -> Array:
        sizes = np.zeros(buckets)
        for code, first, _, _ in self._pairs:
            sizes[code] += len(first)
        return sizes

    def pair_influences(
        self, profile: Array, counts: Numbers, keys: int
    ) -> tuple[Ints, Ints, Array]:
        """First key, second key and influence of every pair, summed over query buckets."""
        total = float(counts[~np.isnan(profile)].sum())
        n_pairs = self._pairs_per_bucket(len(profile))
        number = np.concatenate(
            [
                np.minimum(first, second) * keys + np.maximum(first, second)
                for _, first, second, _ in self._pairs
            ]
        )
        influence = np.concatenate(
            [
                counts[code] / total * (values - profile[code]) / n_pairs[code]
                for code, _, _, values in self._pairs
            ]
        )
        pairs, slot = np.unique(number, return_inverse=True)
        summed = np.asarray(np.bincount(slot, influence), np.float64)
        return np.asarray(pairs // keys), np.asarray(pairs % keys), summed

    def finish(
        self,
        profile: Array,
        counts: Numbers,
        overall: float,
        key_text: Ints,
        key_group: Ints,
        available: Ints,
        pairs_per_bucket: int,
    ) -> VarianceParts:
        """The parts of the error of `overall`, with text and group of every key."""
        of_queries = self.query_influences(profile, counts, overall)  # (n,)
        first, second, of_pairs = self.pair_influences(profile, counts, len(key_text))
        by_key = _sums((first, second), (of_pairs, of_pairs), len(key_text))  # (keys,)
        squares = of_queries**2, by_key**2, -(of_pairs**2)  # a pair is in `by_key` twice
        texts, codes = np.unique(np.r_[self._text, key_text], return_inverse=True)
        of_query, of_key = codes[: len(self._text)], codes[len(self._text) :]
        sums = _sums((of_query, of_key[first]), (of_queries, of_pairs), len(texts))  # (texts,)
        own = _sums((of_query, of_key, of_key[first]), squares, len(texts))  # (texts,)
        by_text = len(texts) / max(1, len(texts) - 1) * sums**2 - own
        group = np.zeros(len(texts), np.int64)
        group[of_query], group[of_key] = self._queries.group, key_group
        pairs = float(of_pairs @ of_pairs)
        return VarianceParts(
            by_group=tuple(np.bincount(group, by_text, GROUPS).tolist()),
            queries=float(of_queries @ of_queries),
            keys=float(by_key @ by_key) - 2.0 * pairs,
            pairs=pairs,
            n_texts=len(np.unique(self._text)),
            n_queries=len(self._text),
            n_keys=len(key_text),
            queries_per_bucket=tuple(counts.tolist()),
            available=tuple(available.tolist()),
            pairs_per_bucket=pairs_per_bucket,
        )


def _sums(rows: Sequence[Ints], values: Sequence[Array], size: int) -> Array:
    """(size,) sums of values by row number, over all arrays."""
    total = np.zeros(size)
    for row, value in zip(rows, values, strict=True):
        total += np.bincount(row, value, size)
    return total


def _regression_part(
    regression: FirstComponent, members: CentredQueries, a: float, b: float
) -> Array:
    """(n,) influences of all queries through the regression of the first component.

    `a` and `b` are the derivatives with respect to its mean and variance, in the bucket's unit.
    """
    t, unit = regression.position, members.unit
    n, center = len(t), regression.center
    residual = regression.residual
    spread = float((t - center) @ (t - center))
    tau = float(t[members.rows].mean())
    on_mean = residual / n
    if spread > 0:
        on_mean = on_mean + (tau - center) * (t - center) * residual / spread
    on_mean[members.rows] += regression.beta * (t[members.rows] - tau) / len(members.rows)
    squares = residual**2
    on_variance = (squares - squares.mean()) / n
    return np.asarray(a / unit * on_mean + b / unit**2 * on_variance)
