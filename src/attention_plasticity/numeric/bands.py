"""Rotary bands of a head: length, concentration, and share of the variance of logits.

Arrays in, arrays out; numpy only. RoPE turns the dimensions of a vector in pairs; a pair is a band.
Vectors (n, d) have the first dimensions of all m bands, then the second ones, then the dimensions
that RoPE does not turn. Standard errors come from the groups of texts, as for plasticity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.numeric.blocks import row_blocks
from attention_plasticity.numeric.distance_pairs import DistancePairs
from attention_plasticity.numeric.errors.text_groups import (
    MIN_GROUPS,
    jackknife_factor,
    rows_per_group,
)
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

EIGHTHS = 8  # parts of the bands whose shares are kept with influences
UNTURNED = -1  # in place of the eighth of a band that does not turn
ROUNDING = 8.0  # rounding errors of a rotated vector, in units of its precision


@dataclass(frozen=True)
class BandMeans:
    """Means of queries or keys before RoPE over tokens. Without groups, influences are NaN."""

    mean: Array  # (d,) mean vector
    length: Array  # (m,) mean length of a band
    on_mean: Array  # (g, d) influences of the groups on the mean vector
    on_length: Array  # (g, m)
    on_concentration: Array  # (g, m)

    @property
    def mean_length(self) -> Array:
        """(m,) the length of the mean of every band."""
        return _lengths(self.mean[None], len(self.length)).ravel()

    @property
    def concentration(self) -> Array:
        """(m,) length of the mean / mean length, from 0 to 1; NaN if all lengths are zero."""
        return _ratio(self.mean_length, self.length)

    @property
    def phase(self) -> Array:
        """(m,) the angle of the mean of every band."""
        m = len(self.length)
        return np.arctan2(self.mean[m : 2 * m], self.mean[:m])


def band_means(X: Vectors, m: int, weight: Array, group: Ints | None) -> BandMeans:
    """Means of vectors `X` (n, d) before RoPE with weights (n,). `group` (n,): None if not known.

    The mean is computed from differences to the first vector, so that equal vectors have a mean
    without rounding errors.
    """
    n, d = X.shape
    known = np.zeros(n, np.int64) if group is None else group
    share = weight / weight.sum()  # (n,)
    origin = X[0].astype(np.float64)  # (d,)
    origin_length = _lengths(origin[None], m)[0]  # (m,)
    sums = np.zeros((GROUPS, d + m))
    for rows in row_blocks(n, d):
        block = X[rows].astype(np.float64)  # (b, d)
        member = np.zeros((GROUPS, len(block)))
        member[known[rows], np.arange(len(block))] = share[rows]
        lengths = _lengths(block, m)  # (b, m)
        sums[:, :d] += member @ (block - origin)
        sums[:, d:] += member @ (lengths - origin_length)
    totals = np.bincount(known, share, GROUPS)  # (g,)
    shift = sums.sum(axis=0)  # (d + m,)
    values = np.concatenate([origin, origin_length]) + shift
    influences = sums - np.multiply.outer(totals, shift)  # (g, d + m)
    influences = _with_factor(influences, group)
    mean, length = values[:d], values[d:]
    concentration = np.full((GROUPS, m), np.nan)
    means = BandMeans(mean, length, influences[:, :d], influences[:, d:], concentration)
    a, b = slice(0, m), slice(m, 2 * m)
    along = mean[a] * influences[:, a] + mean[b] * influences[:, b]  # (g, m)
    on_mean_length = np.where(means.mean_length > 0, along / _positive(means.mean_length), 0.0)
    concentration[:] = _ratio(on_mean_length - means.concentration * means.on_length, length)
    return means


@dataclass(frozen=True)
class PairLogits:
    """Products of queries and keys, split into bands; the last column has the other dimensions."""

    bands: Array  # (pairs, m + 1)
    total: Array  # (pairs,)
    noise: float  # rounding error of a product

    @classmethod
    def of(cls, Q: Vectors, K: Vectors, m: int, pairs: DistancePairs) -> PairLogits:
        """From queries and keys as they enter the attention; their values are about 1 or less."""
        bands = np.empty((len(pairs.query), m + 1))
        lengths = 0.0
        for rows in row_blocks(len(bands), Q.shape[1]):
            q, k = Q[pairs.query[rows]], K[pairs.key[rows]]  # (b, d)
            products = q * k
            bands[rows, :m] = products[:, :m] + products[:, m : 2 * m]
            bands[rows, m] = products[:, 2 * m :].sum(axis=1)
            squares = np.einsum("nd,nd->n", q, q) * np.einsum("nd,nd->n", k, k)
            lengths = max(lengths, float(squares.max(initial=0.0)))
        precision = float(np.finfo(np.result_type(Q, K)).eps)
        return cls(bands, bands.sum(axis=1), ROUNDING * precision * np.sqrt(lengths))


@dataclass(frozen=True)
class VarianceShares:
    """Share of every band in the variance of the logit; NaN if the logit does not vary."""

    share: Array  # (m + 1,) the last one is that of the dimensions that do not turn
    influences: Array  # (g, m + 1); NaN if groups are not known, or too few

    def by_eighth(self, frequency: Array) -> dict[int, tuple[float, Array]]:
        """Sums over the bands of each eighth: share, and influences (g,)."""
        eighths = np.append(band_eighths(frequency), UNTURNED)  # (m + 1,)
        found = {}
        for number in np.unique(eighths).tolist():
            chosen = eighths == number  # (m + 1,)
            found[number] = float(self.share[chosen].sum()), self.influences[:, chosen].sum(axis=1)
        return found


def band_eighths(frequency: Array) -> Ints:
    """(m,) number of the eighth of the bands, from 0 to 7; `UNTURNED` for frequency 0.

    The number depends on the place of a band alone. So a band keeps it if RoPE is scaled.
    """
    m = len(frequency)
    return np.where(frequency != 0, np.arange(m) * EIGHTHS // max(m, 1), UNTURNED)


def variance_shares(logits: PairLogits, weight: Array, group: Ints | None) -> VarianceShares:
    """Cov(l_f, logit) / Var(logit) over pairs with weights (pairs,); they sum to 1.

    `group` (pairs,) is that of the text of a pair; None: not known.
    """
    columns = logits.bands.shape[1]
    unknown = VarianceShares(np.full(columns, np.nan), np.full((GROUPS, columns), np.nan))
    if len(weight) == 0:
        return unknown
    v = weight / weight.sum()  # (pairs,)
    total = logits.total - v @ logits.total  # (pairs,)
    variance = float(v @ total**2)
    if variance <= logits.noise**2:
        return unknown
    bands = logits.bands - v @ logits.bands  # (pairs, m + 1)
    member = np.zeros((GROUPS, len(v)))
    member[0 if group is None else group, np.arange(len(v))] = v * total
    products, squares = member @ bands, member @ total  # (g, m + 1), (g,)
    share = products.sum(axis=0) / variance
    influences = (products - np.multiply.outer(squares, share)) / variance
    return VarianceShares(share, _with_factor(influences, group))


def standard_errors(influences: Array) -> Array:
    """(m,) standard errors from influences (g, m)."""
    return np.asarray(np.sqrt((influences**2).sum(axis=0)))


def _with_factor(influences: Array, group: Ints | None) -> Array:
    """Influences (g, m) with the small-sample factor; NaN if there are too few groups."""
    counts = None if group is None else rows_per_group(group)
    if counts is None or np.count_nonzero(counts) < MIN_GROUPS:
        return np.full(influences.shape, np.nan)
    return np.asarray(influences * jackknife_factor(counts))


def _lengths(X: Array, m: int) -> Array:
    """(n, m) the length of every band of vectors (n, d)."""
    return np.asarray(np.sqrt(X[:, :m] ** 2 + X[:, m : 2 * m] ** 2))


def _positive(values: Array) -> Array:
    return np.where(values > 0, values, 1.0)


def _ratio(values: Array, lengths: Array) -> Array:
    """Values / lengths; NaN where a length is zero."""
    return np.where(lengths > 0, values / _positive(lengths), np.nan)
