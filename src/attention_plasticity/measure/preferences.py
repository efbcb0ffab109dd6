"""Plasticity and static error of pairs, from the numbers of queries that prefer each key.

Arrays in, arrays out; numpy only. The queries come from the heads of a group and from groups of
texts. `doubled` (heads, p, g) is twice the number of queries that prefer the first key, a query
that prefers neither counts one; `queries` (heads, p, g) is the number of queries. All heads have
the same weight. The first column of a result has all groups, the others leave one out. NaN if two
heads have no queries of different groups.
"""

from __future__ import annotations

import numpy as np

from attention_plasticity.estimate.sizes import GROUPS
from qk_toolkit.arrays import Array, Ints

_EQUAL = 1e-9  # shares of queries that differ by less are equal


def pair_plasticity(doubled: Ints, queries: Ints) -> Array:
    """(p, 1 + g) 4P(1 − P) of every pair without bias, from queries of different groups."""
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


def static_error(doubled: Ints, queries: Ints) -> Array:
    """(p, 1 + g) share of queries whose choice the queries of other groups do not predict.

    The majority of the other groups is that of the mean share over heads. A share of one half, and
    a query that prefers neither key, count one half.
    """
    n = queries.astype(np.float64)  # (heads, p, g)
    first = 0.5 * doubled.astype(np.float64)
    found = np.repeat(_wrong(first, n)[:, None], 1 + GROUPS, axis=1)
    for group in np.flatnonzero(n.any(axis=(0, 1))).tolist():
        kept = np.arange(GROUPS) != group
        found[:, 1 + group] = _wrong(first[..., kept], n[..., kept])
    return found


def _wrong(first: Array, n: Array) -> Array:
    """(p,) share of wrong predictions, from numbers (heads, p, g) of queries."""
    others = n.sum(axis=-1, keepdims=True) - n
    share = (first.sum(axis=-1, keepdims=True) - first) / np.where(others > 0, others, np.nan)
    majority = share.mean(axis=0)  # (p, g) of the queries of all other groups
    wrong = np.where(majority < 0.5, 1.0, 0.0)  # for a query that prefers the first key
    wrong[np.abs(majority - 0.5) < _EQUAL] = 0.5
    wrong[np.isnan(majority)] = np.nan
    wrong = np.where(n > 0, first * wrong + (n - first) * (1.0 - wrong), 0.0)  # (heads, p, g)
    total = n.sum(axis=-1)
    return np.asarray((wrong.sum(axis=-1) / np.where(total > 0, total, np.nan)).mean(axis=0))


def _without_each(counts: Array) -> Array:
    """(heads, p, 1 + g) sums over all groups, then without each."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.concatenate([total, total - counts], axis=-1)
