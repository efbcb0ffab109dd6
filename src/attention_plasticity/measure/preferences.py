"""Plasticity and static error of pairs, from the numbers of queries that prefer each key.

Arrays in, arrays out; numpy only. The queries come from the heads of a group. A position of a text
has one query of each head, so the heads have equal weights.
"""

from __future__ import annotations

import numpy as np

from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.measure.text_pairs import Preferences
from qk_toolkit.arrays import Array, Ints

_EQUAL = 1e-9  # shares of queries that differ by less are equal


def pair_plasticity(of_heads: Preferences) -> Array:
    """(p,) 4P(1 − P) of every pair without bias, from counts (heads, p) of 2 or more queries.

    P is the mean over heads of the share of queries that prefer the first key. Twice the
    probability that two different queries disagree; of one head it is 4k(n − k)/(n(n − 1)).
    """
    n = of_heads.queries.astype(np.float64)  # (heads, p)
    ties = n - of_heads.first - of_heads.second
    share = (of_heads.first + 0.5 * ties) / n
    within = (share * (1.0 - share) * n - 0.25 * ties / n) / (n - 1.0)  # without bias
    mean = share.mean(axis=0)  # (p,)
    excess = (within - share * (1.0 - share)).sum(axis=0) / len(n) ** 2
    return np.asarray(4.0 * (mean * (1.0 - mean) + excess))


def static_error(of_heads: Preferences) -> Array:
    """(p,) share of queries whose choice the majority of the other queries does not predict.

    Counts (heads, p) of 2 or more queries. A query is left out of its own head, and the shares of
    the heads are averaged; a share of one half, and a query that prefers neither key, count one
    half.
    """
    n = of_heads.queries.astype(np.float64)  # (heads, p)
    first, second = of_heads.first, of_heads.second
    ties = n - first - second
    number = first + 0.5 * ties  # (heads, p) queries that prefer the first key
    mean = (number / n).mean(axis=0)  # (p,)
    without = (number - 1.0) / (n - 1.0), number / (n - 1.0)  # a query that prefers first, second
    share = [mean + (rest - number / n) / len(n) for rest in without]  # 2 × (heads, p)
    wrong = first * _error(0.5 - share[0]) + second * _error(share[1] - 0.5) + 0.5 * ties
    return np.asarray((wrong / n).mean(axis=0))


def _error(excess: Array) -> Array:
    """1 where the others prefer the other key, one half where they prefer neither."""
    return np.where(np.abs(excess) < _EQUAL, 0.5, (excess > 0).astype(np.float64))


def grouped_plasticity(doubled: Ints, queries: Ints) -> Array:
    """(p, 1 + g) 4P(1 − P) of every pair without bias, from queries of different groups of texts.

    `doubled` (heads, p, g) is twice the number of queries that prefer the first key, `queries`
    (heads, p, g) the number of queries. Every two heads have the same weight. The first column has
    all groups, the others leave one out. NaN if two heads have no queries of different groups.
    """
    n = queries.astype(np.float64)
    first = 0.5 * doubled.astype(np.float64)  # (heads, p, g)
    second = n - first
    all_first, all_second, all_n = (_without_each(part) for part in (first, second, n))
    found = np.zeros((n.shape[1], 1 + GROUPS))
    for head in range(len(n)):
        disagree = all_first[head] * all_second - _without_each(first[head] * second)
        pairs = all_n[head] * all_n - _without_each(n[head] * n)  # (heads, p, 1 + g)
        found += (disagree / np.where(pairs > 0, pairs, np.nan)).sum(axis=0)
    return np.asarray(4.0 * found / len(n) ** 2)


def _without_each(counts: Array) -> Array:
    """(heads, p, 1 + g) sums over all groups, then without each."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.concatenate([total, total - counts], axis=-1)
