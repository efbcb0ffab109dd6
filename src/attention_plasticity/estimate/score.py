"""Plasticity by projection: which of two keys wins, for every pair and every query of a bin.

Arrays in, arrays out; numpy and scipy only. With key differences W (pairs, d) and centred queries Y
(n, d), the scores are S = Y Wᵀ. Three sums per group of texts and pair are kept: of S, of S², and
the number of queries that prefer the first key. Mean, variance and plasticity of a pair follow from
them, for all texts and without each group. No covariance is needed, and a bin may have fewer
queries than dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from attention_plasticity.estimate.quantity import leave_one_out
from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints, Vectors

_BLOCK = 1 << 17  # scores at a time, so that they stay in the CPU cache


class ScoreSums(NamedTuple):
    """Sums over the queries of a bin, per group of texts and pair. Pairs can be of several bins."""

    queries: Array  # (g, pairs) numbers of queries
    mean: Array  # (pairs,) mean score
    first: Array  # (g, pairs) sums of the scores about their mean
    second: Array  # (g, pairs) sums of their squares
    preferred: Array  # (g, pairs) queries that prefer the first key; those without preference half


def score_sums(
    W: npt.NDArray[np.float32],
    Q: Vectors,
    group: Ints,
    groups: int = GROUPS,
    *,
    counted: bool = True,
) -> ScoreSums:
    """Sums over queries `Q` (n, d) with groups (n,), for key differences `W` (pairs, d).

    Without `counted`, it is not counted which key queries prefer.
    """
    member = np.zeros((groups, len(Q)), np.float32)
    member[group, np.arange(len(Q))] = 1.0
    centre = Q.mean(axis=0, dtype=np.float64)  # (d,)
    Y = np.subtract(Q, centre, dtype=np.float64).astype(np.float32)  # (n, d)
    mean = W @ centre  # (pairs,) float64
    first, second = np.empty((groups, len(W))), np.empty((groups, len(W)))
    sign = np.full((groups, len(W)), 0.0 if counted else np.nan)
    step = max(1, _BLOCK // max(1, len(Q)))
    for start in range(0, len(W), step):
        part = slice(start, start + step)
        S = Y @ W[part].T  # (n, b)
        first[:, part] = member @ S
        if counted:
            sign[:, part] = member @ np.sign(S + mean[part].astype(np.float32))
        np.multiply(S, S, out=S)
        second[:, part] = member @ S
    number = np.bincount(group, minlength=groups).astype(np.float64)  # (g,)
    queries = np.repeat(number[:, None], len(W), axis=1)
    return ScoreSums(queries, mean, first, second, 0.5 * (sign + queries))


def joined(parts: Sequence[ScoreSums]) -> ScoreSums:
    """The sums of the pairs of several bins, one bin after the other."""
    return ScoreSums(*(np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True)))


def gaussian_plasticity(sums: ScoreSums) -> Array:
    """(1 + g, pairs) plasticity of a Gaussian with the moments of the scores.

    The first row has all queries, the others leave a group out. NaN with fewer than two queries.
    """
    n = leave_one_out(sums.queries)  # (1 + g, pairs)
    shift = leave_one_out(sums.first)  # (1 + g, pairs)
    variance = leave_one_out(sums.second)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance -= shift**2 / n
        np.maximum(variance, 0.0, out=variance)
        shift /= n
        shift += sums.mean
        z = shift / np.sqrt(variance / (n - 1.0))
    z[(variance == 0) & (shift == 0)] = 0.0
    found = plasticity_of(z)
    found[n < 2] = np.nan
    return found


def counted_plasticity(sums: ScoreSums) -> Array:
    """(1 + g, pairs) plasticity from pairs of queries of different groups, without a Gaussian.

    4[K(n − K) − Σ k_g(n_g − k_g)] / (n² − Σ n_g²); it has no bias, however alike the queries of a
    text are. NaN if all queries are of one group.
    """
    preferred, queries = sums.preferred, sums.queries
    n, k = leave_one_out(queries), leave_one_out(preferred)  # (1 + g, pairs)
    above = k * (n - k) - leave_one_out(preferred * (queries - preferred))
    below = n**2 - leave_one_out(queries**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = 4.0 * above / np.where(below > 0, below, np.nan)
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
    kept = np.ones(values.shape)
    for group in groups:
        kept[1 + group, pairs] = 0.0
    known, starts = np.unique(cell, return_index=True)
    with np.errstate(invalid="ignore"):
        sums = np.add.reduceat(np.where(kept > 0, values, 0.0), starts, axis=1)
        found[:, known] = sums / np.add.reduceat(kept, starts, axis=1)
    return found
