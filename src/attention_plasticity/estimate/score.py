"""Plasticity by projection: which of two keys wins, for every pair and every query of a bin.

Arrays in, arrays out; numpy and scipy only. With key differences W (pairs, d) and centred queries Y
(n, d), the scores are S = Y Wᵀ. Three sums per group of texts and pair are kept: of S, of S², and
the number of queries that prefer the first key. Mean, variance and plasticity of a pair follow from
them, for all texts and without each group. No covariance is needed, and a bin may have fewer
queries than dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

_BLOCK = 1 << 17  # scores at a time, so that they stay in the CPU cache


class Centred(NamedTuple):
    """Queries of a bin about their mean."""

    Y: npt.NDArray[np.float32]  # (n, d) queries minus `mean`
    mean: Array  # (d,) as it was subtracted: rounded to float32, kept as float64
    member: npt.NDArray[np.float32]  # (g, n) 1 where a query is of a group of texts
    number: Array  # (g, 1) queries of every group

    @classmethod
    def of(cls, Q: Vectors, group: Ints) -> Centred:
        """From queries (n, d) with groups (n,)."""
        Q = Q.astype(np.float32, copy=False)
        mean = Q.mean(axis=0, dtype=np.float64).astype(np.float32)  # (d,)
        member = (group == np.arange(GROUPS)[:, None]).astype(np.float32)
        number = np.bincount(group, minlength=GROUPS)[:, None].astype(float)
        return cls(Q - mean, mean.astype(np.float64), member, number)


class ScoreSums(NamedTuple):
    """Sums over the queries of a bin, per group of texts and pair."""

    queries: Array  # (g, 1) numbers of queries
    mean: Array  # (pairs,) mean score
    first: Array  # (g, pairs) sums of the scores about their mean
    second: Array  # (g, pairs) sums of their squares
    preferred: Array  # (g, pairs) queries that prefer the first key; no preference is a half


def score_sums(W: npt.NDArray[np.float32], queries: Centred, *, counted: bool = True) -> ScoreSums:
    """Sums over the queries of a bin, for key differences `W` (pairs, d).

    Without `counted`, `preferred` is (g, 0).
    """
    Y, centre, member, number = queries
    mean = W @ centre  # (pairs,) float64
    shape = (len(member), len(W))
    first = (member @ Y) @ W.T  # (g, pairs)
    second = np.empty(shape)
    sign = np.empty(shape if counted else (len(member), 0))
    tie = (-mean).astype(np.float32)  # (pairs,) score about the mean of no preference
    step = max(1, _BLOCK // max(1, len(Y)))
    for start in range(0, len(W), step):
        part = slice(start, start + step)
        S = Y @ W[part].T  # (n, b)
        if counted:
            prefers = (tie[part] < S).view(np.int8)  # (n, b)
            prefers -= tie[part] > S
            sign[:, part] = member @ prefers.astype(np.float32)
        np.multiply(S, S, out=S)
        second[:, part] = member @ S
    return ScoreSums(number, mean, first.astype(np.float64), second, 0.5 * (sign + number))


def without_each(groups: Ints) -> Array:
    """(1 + r, g) matrix: times sums (g, …), their total, then that without each of `groups`."""
    found = np.ones((1 + len(groups), GROUPS))
    found[1 + np.arange(len(groups)), groups] = 0.0
    return found


_WITHOUT_EACH = without_each(np.arange(GROUPS))


def gaussian_plasticity(sums: ScoreSums, without: Array = _WITHOUT_EACH) -> Array:
    """(1 + r, pairs) plasticity of a Gaussian with the moments of the scores.

    The first row has all queries, the others leave a group out. NaN with fewer than two queries.
    """
    n = without @ sums.queries  # (1 + r, 1)
    shift, variance = without @ sums.first, without @ sums.second  # (1 + r, pairs)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift *= 1.0 / n
        variance -= n * (shift * shift)
        np.maximum(variance, 0.0, out=variance)
        shift += sums.mean
        z = shift / np.sqrt(variance * (1.0 / (n - 1.0)))
    constant = variance == 0
    if constant.any():
        z[constant & (shift == 0)] = 0.0
    found = plasticity_of(z)
    if n.min() < 2:
        found[n[:, 0] < 2] = np.nan
    return found


def counted_plasticity(sums: ScoreSums, without: Array = _WITHOUT_EACH) -> Array:
    """(1 + r, pairs) plasticity from pairs of queries of different groups, without a Gaussian.

    4[K(n − K) − Σ k_g(n_g − k_g)] / (n² − Σ n_g²); it has no bias, however alike the queries of a
    text are. NaN if all queries are of one group.
    """
    preferred, queries = sums.preferred, sums.queries
    n, k = without @ queries, without @ preferred  # (1 + r, 1), (1 + r, pairs)
    above = k * (n - k) - without @ (preferred * (queries - preferred))
    below = n**2 - without @ queries**2  # (1 + r, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = above * (4.0 / np.where(below > 0, below, np.nan))
    return found


def plasticity_of(z: Array) -> Array:
    """4p(1 − p) of p = Φ(z), from the tail: accurate for large |z|, never negative."""
    tail = ndtr(-np.abs(z))
    value: Array = 4.0 * tail * (1.0 - tail)
    return value


def means_of_cells(values: Array, cell: Ints, cells: int, *groups: Ints) -> Array:
    """(1 + g, cells) means over the pairs of every cell of `values` (1 + g, pairs).

    `cell` (pairs,) is ascending. Each of `groups` (pairs,) has the group of a text behind a pair:
    that of its keys, or that of the query that sees it. The mean without a group leaves its pairs
    out. NaN without a pair.
    """
    found = np.full((len(values), cells), np.nan)
    if not len(cell):
        return found
    pairs = np.arange(len(cell))
    kept = np.ones(values.shape, np.bool_)
    for group in groups:
        kept[1 + group, pairs] = False
    starts = np.append(0, 1 + np.flatnonzero(cell[1:] != cell[:-1]))
    with np.errstate(invalid="ignore"):
        sums = np.add.reduceat(np.where(kept, values, 0.0), starts, axis=1)
        found[:, cell[starts]] = sums / np.add.reduceat(kept, starts, axis=1, dtype=np.int32)
    return found


def pairs_of_cells(cell: Ints, cells: int, replicates: int, *groups: Ints) -> Array:
    """(replicates, cells) numbers of the pairs from which `means_of_cells` makes its means."""
    found = np.tile(np.bincount(cell, minlength=cells).astype(np.float64), (replicates, 1))
    np.subtract.at(found, (1 + groups[0], cell), 1.0)
    for number, group in enumerate(groups[1:], start=1):
        new = np.all([group != other for other in groups[:number]], axis=0)
        np.subtract.at(found, (1 + group[new], cell[new]), 1.0)
    return found
