"""Plasticity by projection: which of two keys wins, for every pair and every query of a bin.

Arrays in, arrays out; numpy and scipy only. The queries of a bin are a stack: several heads, or one
head in several frames, at the same places. With key differences W (pairs, d) and centred queries Y
(stack, n, d), the scores are S = Y Wᵀ. Three sums per group of texts and pair are kept: of S, of
S², and the number of queries that prefer the first key. Mean, variance and plasticity of a pair
follow from them, for all texts and without each group. No covariance is needed, and a bin may have
fewer queries than dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from attention_plasticity.estimate.quantity import leave_one_out
from qk_toolkit.arrays import Array, Ints

_BLOCK = 1 << 17  # scores at a time, so that they stay in the CPU cache
_MOST = 100.0  # of x in erfc(x), which is zero from about 10 on
_ERFC = np.array(
    [
        *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
        *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
    ],
    np.float32,
)
Singles = npt.NDArray[np.float32]


class ScoreSums(NamedTuple):
    """Sums over the queries of a bin, per head, group of texts and pair."""

    queries: Singles  # (g, pairs) numbers of queries
    mean: Singles  # (stack, pairs) mean score
    first: Singles  # (stack, g, pairs) sums of the scores about their mean
    second: Singles  # (stack, g, pairs) sums of their squares
    preferred: Singles  # (counted, g, pairs) queries that prefer the first key; a tie is a half


def score_sums(
    W: Singles, Q: Singles, group: Ints, groups: int, counted: int | None = None
) -> ScoreSums:
    """Sums over the queries `Q` (stack, n, d) of a bin, for key differences `W` (pairs, d).

    `group` (n,) are numbers below `groups`. Preferences are counted for the first `counted` of the
    stack, by default for all. No value depends on the others of the stack.
    """
    counted = len(Q) if counted is None else counted
    centre = Q.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)  # (stack, 1, d)
    Y, columns = Q - centre, np.ascontiguousarray(W.T)  # (stack, n, d), (d, pairs)
    exact = centre.astype(np.float64) @ columns.astype(np.float64)  # (stack, 1, pairs)
    mean = exact.astype(np.float32)[:, 0]
    member = (group == np.arange(groups)[:, None]).astype(np.float32)  # (g, n)
    number = member.sum(axis=1, keepdims=True)  # (g, 1)
    first = (member @ Y) @ columns  # (stack, g, pairs)
    second, sign = np.empty_like(first), np.empty_like(first[:counted])
    step = max(1, min(len(W), _BLOCK // max(1, Y.shape[1])))
    for start in range(0, len(W), step):
        part = slice(start, start + step)
        own = np.ascontiguousarray(columns[:, part])
        S, prefers = np.empty((2, Y.shape[1], own.shape[1]), np.float32)
        above, below = np.empty((2, *S.shape), np.int8)
        for one, queries in enumerate(Y):
            np.matmul(queries, own, out=S)  # (n, b)
            if one < counted:
                tie = -mean[one, part]  # (b,) score of no preference
                np.greater(S, tie, out=above.view(np.bool_))
                np.less(S, tie, out=below.view(np.bool_))
                np.copyto(prefers, np.subtract(above, below, out=above))
                sign[one, :, part] = member @ prefers
            np.multiply(S, S, out=S)
            second[one, :, part] = member @ S
    sign += number
    sign *= 0.5
    return ScoreSums(np.broadcast_to(number, (groups, len(W))), mean, first, second, sign)


def joined(sums: Sequence[ScoreSums]) -> ScoreSums:
    """The sums of several bins, one after the other."""
    return ScoreSums(*(np.concatenate(parts, axis=-1) for parts in zip(*sums, strict=True)))


def gaussian_plasticity(sums: ScoreSums) -> Singles:
    """(stack, 1 + g, pairs) plasticity of a Gaussian with the moments of the scores.

    The first has all queries, the others leave a group out. NaN with fewer than two queries.
    """
    n = leave_one_out(sums.queries)  # (1 + g, pairs)
    shift, variance = leave_one_out(sums.first, 1), leave_one_out(sums.second, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift *= 1.0 / n
        variance -= n * (shift * shift)
        np.maximum(variance, 0.0, out=variance)
        shift += sums.mean[:, None]
        variance *= 1.0 / (n - 1.0)
        z = np.asarray(shift / np.sqrt(variance), np.float32)
    constant = variance == 0
    if constant.any():
        z[constant & (shift == 0)] = 0.0
    found = fast_plasticity_of(z)
    if n.min() < 2:
        found[:, n < 2] = np.nan
    return found


def counted_plasticity(sums: ScoreSums) -> Singles:
    """(counted, 1 + g, pairs) plasticity from pairs of queries of different groups, by counting.

    4[K(n − K) − Σ k_g(n_g − k_g)] / (n² − Σ n_g²); it has no bias, however alike the queries of a
    text are. NaN if all queries are of one group.
    """
    preferred, queries = sums.preferred, sums.queries
    n, k = leave_one_out(queries), leave_one_out(preferred, 1)
    above = k * (n - k) - leave_one_out(preferred * (queries - preferred), 1)
    below = n * n - leave_one_out(queries * queries)  # (1 + g, pairs)
    with np.errstate(divide="ignore", invalid="ignore"):
        above *= np.float32(4.0) / np.where(below > 0, below, np.float32(np.nan))
    return np.asarray(above, np.float32)


def plasticity_of(z: Array) -> Array:
    """4p(1 − p) of p = Φ(z), from the tail: accurate for large |z|, never negative."""
    tail = ndtr(-np.abs(z))
    value: Array = 4.0 * tail * (1.0 - tail)
    return value


def fast_plasticity_of(z: Singles) -> Singles:
    """The same in single precision, within 3e-7: with the complement of the error function.

    With x = |z|/√2 and e = erfc(x), 4p(1 − p) is e(2 − e). The polynomial for e is that of
    Numerical Recipes: its relative error is below 1.2e-7, so values fall to zero and never below.
    """
    x = np.minimum(np.abs(z) * np.float32(math.sqrt(0.5)), np.float32(_MOST))
    t = 1.0 / (1.0 + 0.5 * x)
    power = t * _ERFC[0]
    for factor in _ERFC[1:-1]:
        power += factor
        power *= t
    power += _ERFC[-1]
    np.multiply(x, x, out=x)
    power -= x
    np.exp(power, out=power)
    power *= t
    value: Singles = power * (2.0 - power)
    return value


class CellSums:
    """Sums over the pairs of every cell: of all pairs, then without those of each group."""

    def __init__(self, cell: Ints, groups: int, *of_pairs: Ints) -> None:
        """`cell` (pairs,) is ascending, and not empty.

        Each of `of_pairs` (pairs,) has the group of a text behind a pair: that of its keys, or that
        of the query that sees it.
        """
        self._starts = np.append(0, 1 + np.flatnonzero(cell[1:] != cell[:-1]))
        self._kept = np.ones((1 + groups, len(cell)), np.float32)
        for group in of_pairs:
            self._kept[1 + group, np.arange(len(cell))] = 0.0
        self.cells = cell[self._starts]  # (cells,) those with a pair
        self.pairs = np.add.reduceat(self._kept, self._starts, axis=1)  # (1 + g, cells)

    def of(self, values: Singles) -> Array:
        """(…, 1 + g, cells) sums of `values` (…, 1 + g, pairs), in double precision."""
        kept = values * self._kept
        return np.asarray(np.add.reduceat(kept, self._starts, axis=-1, dtype=np.float64))
