"""What the queries of one head tell about later queries: Gaussians, a direction, band lengths.

Arrays in, arrays out; numpy only. A fit is made of sums over queries. Sums of some texts can be
subtracted from those of all texts, so that keys of a text are scored with a fit to other texts.

Queries and keys are those that enter the attention: after RoPE, with its factor on cos and sin.
"Before RoPE" means the same vectors turned back to position 0; the factor stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.estimate.blocks import LARGE_BLOCK, row_blocks
from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.read.bins import FEW_QUERIES, Bins
from qk_dump.rotary import RotaryRecord, pair_dimensions, rotate
from qk_toolkit.arrays import Array, Ints, Vectors

_FEWEST = 2  # queries; a covariance needs two


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of queries."""

    mean: Array  # (d,)
    covariance: Array  # (d, d)


@dataclass(frozen=True)
class QueryFit:
    """What is known about the queries of one head from the texts of the fit."""

    bins: Bins
    record: RotaryRecord | None  # None: the layer has no rotary embedding
    after_rope: Gaussian  # of all queries
    before_rope: Gaussian  # of all queries, turned back to position 0
    direction: Array  # (d,) top singular direction after RoPE, signed towards the mean query
    band_lengths: Array  # (bands,) mean length of a query in every band, see `band_values`
    known_bins: Ints  # (b,) ascending; bins with enough queries
    of_bins: tuple[Gaussian, ...]  # after RoPE, of the queries of each known bin

    def of_bin(self, number: int) -> Gaussian:
        """The Gaussian of a bin, or of the nearest bin with 32 queries, or of all queries."""
        if not len(self.known_bins):
            return self.after_rope
        return self.of_bins[int(np.argmin(np.abs(self.known_bins - number)))]


@dataclass(frozen=True)
class QuerySums:
    """Sums over the queries of one head, by bins of positions."""

    bins: Bins
    record: RotaryRecord | None
    rows: Ints  # (b,) queries
    weight: Array  # (b,) sums of weights
    squares: Array  # (b,) sums of squared weights
    first: Array  # (b, d) sums of w·q after RoPE
    second: Array  # (b, d, d) sums of w·q·qᵀ after RoPE
    turned_first: Array  # (d,) the same before RoPE, of all bins
    turned_second: Array  # (d, d)
    lengths: Array  # (bands,) sums of w·(length in the band)

    def __sub__(self, other: QuerySums) -> QuerySums:
        """The sums without the queries of `other`, which must be among them."""
        return QuerySums(
            self.bins,
            self.record,
            self.rows - other.rows,
            self.weight - other.weight,
            self.squares - other.squares,
            self.first - other.first,
            self.second - other.second,
            self.turned_first - other.turned_first,
            self.turned_second - other.turned_second,
            self.lengths - other.lengths,
        )

    def fit(self) -> QueryFit:
        """Means, covariances, direction and lengths. Raises a `ValueError` below two queries."""
        rows = int(self.rows.sum())
        if rows < _FEWEST:
            raise ValueError(
                f"{rows} queries at position {SINK_TOKENS} or later; {_FEWEST} or more are needed"
            )
        weight, squares = float(self.weight.sum()), float(self.squares.sum())
        products = self.second.sum(axis=0)  # (d, d)
        pooled = _gaussian(self.first.sum(axis=0), products, weight, squares)
        before = _gaussian(self.turned_first, self.turned_second, weight, squares)
        direction = np.linalg.eigh(products)[1][:, -1]  # (d,)
        if direction @ pooled.mean < 0:
            direction = -direction
        known = np.flatnonzero(self.rows >= FEW_QUERIES)  # (b,)
        of_bins = tuple(
            _gaussian(self.first[b], self.second[b], self.weight[b], self.squares[b]) for b in known
        )
        lengths = self.lengths / weight
        return QueryFit(self.bins, self.record, pooled, before, direction, lengths, known, of_bins)


def fit_queries(
    queries: Vectors, position: Array, weight: Array, bins: Bins, record: RotaryRecord | None
) -> QueryFit:
    """The fit to `queries` (n, d) after RoPE, at `position` (n,), with weights (n,).

    The first four tokens of texts are left out. Only ratios of weights matter.
    """
    return query_sums(queries, position, weight, bins, record).fit()


def query_sums(
    queries: Vectors, position: Array, weight: Array, bins: Bins, record: RotaryRecord | None
) -> QuerySums:
    """The sums of which `fit_queries` makes a fit. They have all bins of the longest text."""
    kept = np.flatnonzero(position >= SINK_TOKENS)
    count, d = -(-bins.context // bins.size), queries.shape[1]
    code = np.clip(bins.of(position[kept]), 0, count - 1)  # (n,)
    first, second = np.zeros((count, d)), np.zeros((count, d, d))
    turned_first, turned_second = np.zeros(d), np.zeros((d, d))
    lengths = np.zeros(number_of_bands(record, d))
    for number in np.unique(code).tolist():
        of_bin = kept[code == number]
        for block in row_blocks(len(of_bin), d, LARGE_BLOCK):
            rows = of_bin[block]
            w, Q = weight[rows], queries[rows].astype(np.float64)  # (m,), (m, d)
            first[number] += w @ Q
            second[number] += (Q * w[:, None]).T @ Q
            if record is not None:
                Q = np.asarray(rotate(Q, position[rows], 0.0, record), np.float64)
                turned_first += w @ Q
                turned_second += (Q * w[:, None]).T @ Q
            lengths += w @ band_values(Q, record)[1]
    if record is None:
        turned_first, turned_second = first.sum(axis=0), second.sum(axis=0)
    rows_of, weights, squares = (
        np.bincount(code, values, count) for values in (None, weight[kept], weight[kept] ** 2)
    )
    return QuerySums(
        bins,
        record,
        rows_of.astype(np.int64),
        weights.astype(np.float64),
        squares.astype(np.float64),
        first,
        second,
        turned_first,
        turned_second,
        lengths,
    )


def number_of_bands(record: RotaryRecord | None, d: int) -> int:
    """Rotary bands of vectors with `d` dimensions, plus one of the dimensions that do not turn."""
    turned = 0 if record is None else len(record.frequencies)
    return turned + (2 * turned < d)


def band_values(X: Array, record: RotaryRecord | None) -> tuple[Array, Array]:
    """Vectors `X` (n, d) in the order of bands (n, d), and their length in every band (n, bands).

    A rotary band has two dimensions. The dimensions that do not turn are the last band. The first
    array has the first dimension of every rotary band, then the second of each, then the rest.
    """
    if record is None:
        return X, np.linalg.norm(X, axis=1)[:, None]
    first, second = pair_dimensions(record)
    a, b = X[:, first], X[:, second]  # (n, m) each
    rest = np.delete(X, np.r_[_numbers(first), _numbers(second)], axis=1)  # (n, d − 2m)
    parts = [np.hypot(a, b)]
    if rest.shape[1]:
        parts.append(np.linalg.norm(rest, axis=1)[:, None])
    return np.concatenate([a, b, rest], axis=1), np.concatenate(parts, axis=1)


def _numbers(dimensions: slice) -> Ints:
    return np.arange(dimensions.start, dimensions.stop, dimensions.step or 1)


def _gaussian(first: Array, second: Array, weight: float, squares: float) -> Gaussian:
    """From sums of w·q, w·q·qᵀ, w and w²; the covariance is that of `query_moments`."""
    mean = first / weight  # (d,)
    plain = second / weight - np.multiply.outer(mean, mean)  # (d, d)
    left = 1.0 - squares / weight**2
    return Gaussian(mean, plain / left if left > 0 else np.zeros_like(plain))
