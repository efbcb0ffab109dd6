"""Cells of query bucket and key bucket in which queries can attend to keys, for seeds' columns.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

import numpy as np

from attention_plasticity.estimate.visible import Visible
from qk_toolkit.arrays import Array, Bools, Ints


def earlier_cells(query_buckets: Ints, key_buckets: Ints) -> Bools:
    """(query buckets, key buckets): True where the keys come before the queries."""
    earlier: Bools = key_buckets[None, :] < query_buckets[:, None]
    return earlier


def seen_cells(
    query_buckets: Ints,
    key_buckets: Ints,
    visible: Visible,
    p_q: Array,
    b_q: Ints,
    p_k: Array,
    b_k: Ints,
) -> Bools:
    """Earlier cells with a key that a query sees.

    With a window of w tokens, a query at p sees keys in [p − w, p] here, and the cell of the
    previous bucket is always eligible: this is the seeds' rule. With chunks, a query sees the keys
    of its own chunk up to p.
    """
    earlier = earlier_cells(query_buckets, key_buckets)
    if visible.size is None:
        return earlier
    inside = np.isin(b_q, query_buckets)
    order = np.argsort(b_q[inside], kind="stable")
    queries = p_q[inside][order]  # (n,) sorted by bucket
    if not len(queries):
        return earlier
    first = queries - visible.size
    if visible.chunked:
        first = np.floor(queries / visible.size) * visible.size
    starts = np.searchsorted(b_q[inside][order], query_buckets)
    by_bucket = np.lexsort((p_k, b_k))
    bounds = np.searchsorted(b_k[by_bucket], [key_buckets, key_buckets + 1])
    near = np.zeros(earlier.shape, np.bool_)
    for column, (begin, end) in enumerate(bounds.T):
        keys = p_k[by_bucket[begin:end]]  # ascending
        last = np.searchsorted(keys, queries, side="right") - 1  # the last key at or before p
        within = (last >= 0) & (keys[np.maximum(last, 0)] >= first)  # (n,)
        near[:, column] = np.logical_or.reduceat(within, starts)
    if not visible.chunked:
        near |= key_buckets[None, :] == query_buckets[:, None] - 1
    return earlier & near
