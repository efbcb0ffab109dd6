"""The queries of a head that are shown as examples. Arrays in, arrays out; numpy only."""

from __future__ import annotations

import numpy as np

from qk_toolkit.arrays import Array, Ints

STRONGEST = 8
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


def strongest_queries(top: Array, pairs: Ints, keys: Ints) -> Ints:
    """Numbers of the queries with the largest weights `top` (n,), the largest first.

    A pair of tokens in `pairs` (n, 2) is taken once, and so is a key: a text and a position in
    `keys` (n, 2). Queries whose key is at position 0 are left out: it is a sink of most heads,
    whatever its token is.
    """
    order = np.argsort(-top, kind="stable")
    order = order[keys[order, 1] > 0]
    for columns in (keys, pairs):
        _, first = np.unique(columns[order], axis=0, return_index=True)
        order = order[np.sort(first)]
    return np.asarray(order[:STRONGEST])


def typical_queries(top: Array, weight: Array) -> Ints:
    """Numbers of the queries at quantiles of `top` (n,), over tokens, from small to large.

    `weight` (n,) are the tokens that a query stands for.
    """
    if len(top) == 0:
        return np.zeros(0, np.int64)
    order = np.argsort(top, kind="stable")
    below = np.cumsum(weight[order])
    places = np.searchsorted(below, np.array(QUANTILES) * below[-1])
    chosen = order[np.minimum(places, len(order) - 1)].tolist()
    return np.array(list(dict.fromkeys(chosen)), np.int64)
