"""Where the standard error of a head comes from: its texts, queries, keys and key pairs.

Arrays in, arrays out; numpy only. Every query and every key pair has an influence on `ap_overall`.
Their variation within a text gives the parts of queries, keys and pairs. The rest of the squared
standard error is the part of the texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.errors.influences import (
    CentredQueries,
    FirstComponent,
    GroupedQueries,
)
from attention_plasticity.numeric.errors.uncertainty import ScoredPairs

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VarianceParts:
    """Parts of the squared standard error of `ap_overall`, and the size of the sample."""

    texts: float  # the rest; by chance it can be negative
    queries: float
    keys: float
    pairs: float
    n_texts: int
    n_queries: int
    n_keys: int
    available: tuple[int, ...]  # possible pairs, per bucket
    pairs_per_bucket: int


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
        W: Floats,
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

    def query_influences(self, profile: Array, counts: Ints, overall: float) -> Array:
        """(n,) influences of all queries on the mean of `profile`, weighted by `counts`."""
        used = ~np.isnan(profile)
        total = float(counts[used].sum())
        n_pairs = self._pairs_per_bucket(len(profile))
        influences = np.zeros(len(self._text))
        for code, members in self._members.items():
            weight = counts[code] / total
            a, B = self._gradient[code] / n_pairs[code], self._curvature[code] / n_pairs[code]
            influences[members.rows] += weight * self._within_bucket(members, a, B)
            influences[members.rows] += (profile[code] - overall) / total
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

    def pair_influences(self, profile: Array, counts: Ints, keys: int) -> tuple[Ints, Ints, Array]:
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
        counts: Ints,
        overall: float,
        standard_error: float,
        key_text: Ints,
        available: Ints,
        pairs_per_bucket: int,
    ) -> VarianceParts:
        """The parts, from `ap_overall` and its standard error; `key_text` is the text of a key."""
        of_queries = self.query_influences(profile, counts, overall)
        first, second, of_pairs = self.pair_influences(profile, counts, len(key_text))
        queries = _within_texts(of_queries, self._text)
        pairs = _within_texts(of_pairs, key_text[first])
        centred = _centred(of_pairs, key_text[first])
        by_key = np.bincount(first, centred, len(key_text))
        by_key += np.bincount(second, centred, len(key_text))
        keys = max(0.0, float(by_key @ by_key) - 2.0 * float(centred @ centred))
        return VarianceParts(
            texts=standard_error**2 - queries - keys - pairs,
            queries=queries,
            keys=keys,
            pairs=pairs,
            n_texts=len(np.unique(self._text)),
            n_queries=len(self._text),
            n_keys=len(key_text),
            available=tuple(available.tolist()),
            pairs_per_bucket=pairs_per_bucket,
        )


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


def _centred(values: Array, text: Ints) -> Array:
    """Values minus the mean of their text."""
    codes = np.unique(text, return_inverse=True)[1]
    return np.asarray(values - (np.bincount(codes, values) / np.bincount(codes))[codes])


def _within_texts(values: Array, text: Ints) -> float:
    """Σ over texts of the squared deviations from the text's mean, times n/(n − 1)."""
    codes = np.unique(text, return_inverse=True)[1]
    sizes = np.bincount(codes).astype(np.float64)
    factor = np.divide(sizes, sizes - 1.0, out=np.zeros_like(sizes), where=sizes > 1)
    return float(_centred(values, text) ** 2 @ factor[codes])
