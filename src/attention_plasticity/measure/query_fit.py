"""What the queries of one head tell about later queries: Gaussians, a direction, band lengths.

A fit is made of sums over queries. Sums of some texts can be
subtracted from those of all texts, so that keys of a text are scored with a fit to other texts.

Queries and keys are those that enter the attention: after RoPE, with its factor on cos and sin.
"Before RoPE" means the same vectors turned back to position 0; the factor stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.measure.later_queries import TextRows
from attention_plasticity.read.bins import FEW_QUERIES, Bins
from qk_dump.rotary import RotaryRecord, pair_dimensions, rotate
from qk_toolkit.arrays import Array

Complex = npt.NDArray[np.complex128]


class QueryGaussian(NamedTuple):
    """Mean and covariance of queries."""

    mean: Array  # (d,)
    covariance: Array  # (d, d)


@dataclass(frozen=True)
class QueryFit:
    """What is known about the queries of one head from the texts of the fit."""

    after_rope: QueryGaussian  # of all queries
    before_rope: QueryGaussian  # of all queries, turned back to position 0
    direction: Array  # (d,) top singular direction after RoPE, signed towards the mean query
    band_lengths: Array  # (bands,) mean length of a query in every band, see `Bands`
    of_bins: dict[int, QueryGaussian]  # after RoPE, of the bins with 32 queries, ascending

    def of_bin(self, number: int) -> QueryGaussian:
        """The Gaussian of a bin, or of the nearest bin with 32 queries, or of all queries."""
        if not self.of_bins:
            return self.after_rope
        return self.of_bins[min(self.of_bins, key=lambda known: abs(known - number))]


class QuerySums(NamedTuple):
    """Sums over the queries of one head, by bins of positions."""

    rows: Array  # (b,) queries
    weight: Array  # (b,) sums of weights
    squares: Array  # (b,) sums of squared weights
    first: Array  # (b, d) sums of w·q after RoPE
    second: Array  # (b, d, d) sums of w·q·qᵀ after RoPE
    turned_first: Array  # (d,) the same before RoPE, of all bins
    turned_second: Array  # (d, d)
    lengths: Array  # (bands,) sums of w·(length in the band)

    def without(self, other: QuerySums) -> QuerySums:
        """The sums without the queries of `other`, which must be among them."""
        return QuerySums(*(ours - theirs for ours, theirs in zip(self, other, strict=True)))

    def fit(self) -> QueryFit:
        """Means, covariances, direction and lengths of two or more queries."""
        weight, squares = float(self.weight.sum()), float(self.squares.sum())
        products = self.second.sum(axis=0)  # (d, d)
        after = _gaussian(self.first.sum(axis=0), products, weight, squares)
        before = _gaussian(self.turned_first, self.turned_second, weight, squares)
        direction = np.linalg.eigh(products)[1][:, -1]  # (d,)
        if direction @ after.mean < 0:
            direction = -direction
        of_bins = {
            b: _gaussian(self.first[b], self.second[b], self.weight[b], self.squares[b])
            for b in np.flatnonzero(self.rows >= FEW_QUERIES).tolist()
        }
        return QueryFit(after, before, direction, self.lengths / weight, of_bins)


def _gaussian(first: Array, second: Array, weight: float, squares: float) -> QueryGaussian:
    """From sums of w·q, w·q·qᵀ, w and w². The covariance is unbiased for independent queries."""
    mean = first / weight  # (d,)
    plain = second / weight - np.multiply.outer(mean, mean)  # (d, d)
    left = 1.0 - squares / weight**2
    return QueryGaussian(mean, plain / left if left > 0 else np.zeros_like(plain))


def query_sums(queries: TextRows, bins: Bins, record: RotaryRecord | None) -> QuerySums:
    """Sums over queries, without the first four tokens of texts, in all bins of the longest text.

    Without a `record`, the layer has no rotary embedding. Only ratios of weights matter for a fit.
    """
    kept = np.flatnonzero(queries.position >= SINK_TOKENS)
    count, d = -(-bins.context // bins.size), queries.vectors.shape[1]
    code = np.clip(bins.of(queries.position[kept]), 0, count - 1)  # (n,)
    first, second = np.zeros((count, d)), np.zeros((count, d, d))
    turned_first, turned_second = np.zeros(d), np.zeros((d, d))
    lengths = np.zeros(1 + (0 if record is None else len(record.frequencies)))  # (bands,)
    for number in np.unique(code).tolist():
        rows = kept[code == number]
        w, Q = queries.weight[rows], queries.vectors[rows]  # (m,), (m, d)
        first[number], second[number] = w @ Q, (Q * w[:, None]).T @ Q
        Q = turned(Q, queries.position[rows], record)
        turned_first += w @ Q
        turned_second += (Q * w[:, None]).T @ Q
        lengths += w @ in_bands(Q, record).lengths
    number_of, weights, squares = (
        np.bincount(code, queries.weight[kept] ** power, count).astype(np.float64)
        for power in (0, 1, 2)
    )
    return QuerySums(
        number_of, weights, squares, first, second, turned_first, turned_second, lengths
    )


def turned(X: Array, position: Array | float, record: RotaryRecord | None) -> Array:
    """Vectors `X` (n, d) at `position`, turned back to position 0."""
    return X if record is None else np.asarray(rotate(X, position, 0.0, record), np.float64)


class Bands(NamedTuple):
    """Vectors by rotary bands, each with two dimensions, and a last band that does not turn."""

    rotary: Complex  # (n, m) the two dimensions of a band as real and imaginary part
    rest: Array  # (n, d − 2m) the dimensions that do not turn
    lengths: Array  # (n, m + 1) length in every band


def in_bands(X: Array, record: RotaryRecord | None) -> Bands:
    """The bands of vectors `X` (n, d)."""
    rotary, rest = np.zeros((len(X), 0), np.complex128), X
    if record is not None:
        first, second = pair_dimensions(record)
        rotary = X[:, first] + 1j * X[:, second]
        rest = np.delete(X, slice(record.start, record.end), axis=1)
    return Bands(rotary, rest, np.column_stack([np.abs(rotary), np.linalg.norm(rest, axis=1)]))
