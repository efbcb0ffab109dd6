"""Attention that captured keys receive from the captured later queries of their text.

Arrays in, arrays out; numpy only. The weight of a query–key pair is `exp(logit − lse)`, where `lse`
is the log-sum-exp of the logits over all keys that the query sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.windows import Window
from qk_toolkit.arrays import Array, Ints, Vectors

Rows = npt.NDArray[np.intp]

MOST_QUERIES = 1024  # of one text
_FEWEST_QUERIES = 128
_MOST_PRODUCTS = 1 << 23  # of queries and keys of a head; more queries of a text are not needed
_KEY_BLOCK = 128
_BLOCK_PRODUCTS = 1 << 19  # at a time
_ROUNDING, _RELATIVE_ROUNDING = 0.1, 2.0**-9  # by which a logit may exceed lse


@dataclass(frozen=True)
class Logits:
    """How the logits of a layer follow from q·k, and which keys a query sees."""

    scale: float
    softcap: float | None = None  # logits are c·tanh(logit/c)
    window: int | None = None  # tokens; None: all earlier keys
    chunked: bool = False  # the window is a chunk: a query sees the keys of its own chunk

    def of(self, products: Vectors) -> Vectors:
        """Logits from the dot products, which are overwritten."""
        products *= products.dtype.type(self.scale)
        if self.softcap is not None:
            products /= products.dtype.type(self.softcap)
            np.tanh(products, out=products)
            products *= products.dtype.type(self.softcap)
        return products

    def end_position(self, key_position: Array) -> Array:
        """(keys,) queries at this position or later do not see a key."""
        assert self.window is not None
        return Window(self.window, self.chunked).end_position(key_position)


class TextRows(NamedTuple):
    """Vectors of a head with the position and the text of each."""

    vectors: Vectors  # (n, d)
    position: Array  # (n,)
    text: Ints  # (n,)


class Received(NamedTuple):
    """Attention of every key, and the number of queries that it comes from."""

    attention: Array  # (keys,) sums of weights
    queries: Ints  # (keys,)


def attention_received(
    queries: TextRows, lse: Vectors, keys: TextRows, logits: Logits
) -> Received | None:
    """Sums of the weights that each key receives from later queries of its text.

    Queries without a known `lse` (NaN) are left out. At most 1,024 queries of a text are used,
    evenly spaced, and fewer if there would be too many products. None if a logit exceeds the `lse`
    of its query: scale and `lse` do not fit.
    """
    received = Received(np.zeros(len(keys.text)), np.zeros(len(keys.text), np.int64))
    chosen = _chosen_queries(queries, lse, keys.text)  # by text, then position
    order = np.lexsort((keys.position, keys.text))
    first, end = _seen_by(queries.text[chosen], queries.position[chosen], keys, order, logits)
    received.queries[order] = end - first
    seen = end > first
    order, first, end = order[seen], first[seen], end[seen]
    Q, limits = queries.vectors[chosen], lse[chosen]  # (m, d), (m,)
    allowed = allowed_excess(Q, keys.vectors, limits, logits.scale)
    for block in _blocks(first, end):
        low, high = int(first[block][0]), int(end[block][-1])  # both ascend
        products = Q[low:high] @ keys.vectors[order[block]].T  # (m, b)
        rows = first[block] - low, end[block] - low
        weights = _weights(products, limits[low:high], *rows, logits, allowed)
        if weights is None:
            return None
        received.attention[order[block]] = np.ones(high - low, weights.dtype) @ weights
    return received


def _chosen_queries(queries: TextRows, lse: Vectors, key_text: Ints) -> Rows:
    """Queries with known attention, by text and position; of long texts evenly spaced ones."""
    known = np.flatnonzero(~np.isnan(lse))
    order = known[np.lexsort((queries.position[known], queries.text[known]))]
    texts, starts, sizes = np.unique(queries.text[order], return_index=True, return_counts=True)
    sorted_keys = np.sort(key_text)
    keys = np.searchsorted(sorted_keys, texts, side="right")
    keys -= np.searchsorted(sorted_keys, texts, side="left")  # (texts,)
    most = MOST_QUERIES
    while most > _FEWEST_QUERIES and _products(sizes, keys, most) > _MOST_PRODUCTS:
        most //= 2
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    size = np.repeat(sizes, sizes)
    number = -(-rank * most // size)  # the chosen ranks are number·size // most
    chosen = (size <= most) | ((number * size // most == rank) & (number < most))
    return np.asarray(order[chosen])


def _products(queries: Ints, keys: Ints, most: int) -> int:
    """Products of queries and keys, if at most `most` queries of a text are used."""
    return int(np.minimum(queries, most) @ keys)


def _seen_by(
    text: Ints, position: Array, keys: TextRows, order: Rows, logits: Logits
) -> tuple[Rows, Rows]:
    """For every key in `order`: the first query that sees it, and the query after the last one.

    `text` and `position` (m,) are those of the queries, sorted.
    """
    key_text, at = keys.text[order], keys.position[order]  # (n,)
    first = _queries_before(text, position, key_text, at, inclusive=True)
    if logits.window is None:
        end = np.searchsorted(text, key_text, side="right")
    else:
        last = logits.end_position(at)
        end = _queries_before(text, position, key_text, last, inclusive=False)
    return first, np.maximum(first, end)


def _queries_before(
    text: Ints, position: Array, key_text: Ints, at: Array, *, inclusive: bool
) -> Rows:
    """(n,) number of queries before the places `at` in the order by text and position."""
    m, n = len(text), len(key_text)
    is_place = np.repeat([False, True], [m, n])
    merged = np.lexsort(
        (
            is_place if inclusive else ~is_place,
            np.concatenate([position, at]),
            np.concatenate([text, key_text]),
        )
    )
    before = np.cumsum(merged < m)
    result = np.empty(n, np.intp)
    places = merged >= m
    result[merged[places] - m] = before[places]
    return result


def _blocks(first: Rows, end: Rows) -> Iterator[slice]:
    """Slices of keys, so that each slice and the queries that see it are not too many products."""
    start = 0
    while start < len(first):
        stop = min(start + _KEY_BLOCK, len(first))
        while (
            stop > start + 1 and (end[stop - 1] - first[start]) * (stop - start) > _BLOCK_PRODUCTS
        ):
            stop = start + (stop - start) // 2
        yield slice(start, stop)
        start = stop


def _weights(
    products: Vectors, lse: Vectors, first: Rows, end: Rows, logits: Logits, allowed: float
) -> Vectors | None:
    """exp(logit − lse), or 0 for queries before `first` (b,) and from `end` (b,) on.

    `products` (m, b) are overwritten. None if a logit exceeds its lse by more than `allowed`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        excess = logits.of(products)
        excess -= lse[:, None]
        for rows, hidden in ((slice(0, first[-1]), first), (slice(end[0], None), end)):
            number = np.arange(len(lse))[rows, None]
            outside = number < hidden if hidden is first else number >= hidden  # (rows, b)
            np.copyto(excess[rows], -np.inf, where=outside)
        if not excess.max() <= allowed:  # also for NaN
            return None
        return np.asarray(np.exp(excess, out=excess))


def allowed_excess(Q: Vectors, K: Vectors, lse: Vectors, scale: float) -> float:
    """How much a logit may exceed `lse` because vectors were rounded, at most to float16."""
    with np.errstate(over="ignore"):
        norms = [float(np.sqrt(np.einsum("nd,nd->n", X, X).max(initial=0.0))) for X in (Q, K)]
        largest = abs(scale) * norms[0] * norms[1]  # of a logit
    if not np.isfinite(largest):
        largest = 0.0
    return _ROUNDING + _RELATIVE_ROUNDING * max(float(np.abs(lse).max(initial=0.0)), largest)
