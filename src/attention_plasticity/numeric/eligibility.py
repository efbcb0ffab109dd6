"""Cells of query bucket and key bucket in which queries can attend to keys.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

import numpy as np

from qk_toolkit.arrays import Array, Bools, Ints


def earlier_cells(query_buckets: Ints, key_buckets: Ints) -> Bools:
    """(query buckets, key buckets): True where the keys come before the queries."""
    earlier: Bools = key_buckets[None, :] < query_buckets[:, None]
    return earlier


def windowed_cells(
    query_buckets: Ints,
    key_buckets: Ints,
    window: int,
    p_q: Array,
    b_q: Ints,
    p_k: Array,
    b_k: Ints,
) -> Bools:
    """Earlier cells within a sliding window of `window` tokens.

    A cell is eligible if its query bucket has a query at a position p, and its key bucket has a key
    in [p − window, p]. The cell of the previous bucket is always eligible.
    """
    rows = (p_q, b_q, p_k, b_k)
    earlier = earlier_cells(query_buckets, key_buckets)
    first_query = _extremes(np.minimum, p_q, b_q, query_buckets)  # (query buckets,)
    last_key = _extremes(np.maximum, p_k, b_k, key_buckets)  # (key buckets,)
    gap = first_query[:, None] - last_key[None, :]  # tokens between the closest query and key
    near: Bools = (gap >= 0) & (gap <= window)
    overlapping = earlier & (gap < 0)
    if overlapping.any():
        visible = _visible_cells(window, query_buckets, key_buckets, rows)
        near = np.where(overlapping, visible, near)
    near |= key_buckets[None, :] == query_buckets[:, None] - 1
    return earlier & near


def _extremes(extremum: np.ufunc, p: Array, b: Ints, buckets: Ints) -> Array:
    """Lowest or highest position of each bucket."""
    inside = np.isin(b, buckets)
    code = np.searchsorted(buckets, b[inside])
    extremes = np.full(len(buckets), np.inf if extremum is np.minimum else -np.inf)
    extremum.at(extremes, code, p[inside])
    return extremes


def _visible_cells(
    window: int, query_buckets: Ints, key_buckets: Ints, rows: tuple[Array, Ints, Array, Ints]
) -> Bools:
    """(query buckets, key buckets): True if a key is in [p − window, p] of a query at p.

    Buckets may overlap in position.
    """
    p_q, b_q, p_k, b_k = rows
    inside = np.isin(b_q, query_buckets)
    order = np.argsort(b_q[inside], kind="stable")
    queries = p_q[inside][order]  # (n,) sorted by bucket
    starts = np.searchsorted(b_q[inside][order], query_buckets)
    by_bucket = np.lexsort((p_k, b_k))
    bounds = np.searchsorted(b_k[by_bucket], [key_buckets, key_buckets + 1])
    visible = np.zeros((len(query_buckets), len(key_buckets)), np.bool_)
    for column, (begin, end) in enumerate(bounds.T):
        keys = p_k[by_bucket[begin:end]]  # ascending
        last = np.searchsorted(keys, queries, side="right") - 1  # the last key at or before p
        within = (last >= 0) & (keys[np.maximum(last, 0)] >= queries - window)  # (n,)
        visible[:, column] = np.logical_or.reduceat(within, starts)
    return visible
