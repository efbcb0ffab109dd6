"""How many queries prefer each key of a pair.

Arrays in, arrays out; numpy only. Queries are used as they enter the attention, at their own
positions: a cache is used by these queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attention_plasticity.numeric.sizes import GROUPS
from attention_plasticity.numeric.text_pairs import TextPairs
from attention_plasticity.numeric.windows import Window
from qk_toolkit.arrays import Array, Bools, Ints, Vectors

MOST_LATER = 64
"""Later queries of one head that are counted for a pair."""
_BLOCK = 1 << 18  # numbers at a time


class PlacedQueries(NamedTuple):
    """Queries with position, text and weight."""

    vectors: Vectors  # (n, d)
    position: Array  # (n,)
    text: Ints  # (n,)
    weight: Array  # (n,)


class PlacedKeys(NamedTuple):
    """Keys with position and text."""

    vectors: Vectors  # (n, d)
    position: Array  # (n,)
    text: Ints  # (n,)


class Preferences(NamedTuple):
    """Numbers of queries of every pair; those that prefer neither key are in `queries` only."""

    first: Ints  # (p,) prefer the first key
    second: Ints  # (p,) prefer the second key
    queries: Ints  # (p,)


def count_preferences(
    queries: PlacedQueries,
    keys: PlacedKeys,
    pairs: TextPairs,
    window: Window | None,
    rng: np.random.Generator,
    most: int = MOST_LATER,
) -> Preferences:
    """Preferences of the later queries of the text of each pair that see both keys.

    Every token has the same probability: of the queries that see a pair, one with weight w is kept
    with probability w / (largest weight of them). At most `most` of these are used, at random.
    """
    found = Preferences(*(np.zeros(len(pairs), np.int64) for _ in range(3)))
    order = rng.random(len(queries.text)) / queries.weight  # (n,)
    by_text = np.lexsort((order, queries.text))  # within a text in random order
    texts = queries.text[by_text]
    key_text = keys.text[pairs.first]  # (p,) the id of the text
    for begin, end in _runs(key_text):
        low, high = (np.searchsorted(texts, key_text[begin], side) for side in ("left", "right"))
        own = by_text[low:high]  # (m,) queries of this text
        for block in _blocks(begin, end, high - low):
            chosen = _chosen(queries, keys, pairs, block, own, order, window, most)
            _count(queries, keys, pairs, block, own, chosen, found)
    return found


def _runs(text: Ints) -> Iterator[tuple[int, int]]:
    """First number, and number after the last one, of the pairs of each text."""
    starts = np.flatnonzero(np.diff(text, prepend=-1))
    yield from zip(starts.tolist(), [*starts[1:].tolist(), len(text)], strict=True)


def _blocks(begin: int, end: int, width: int) -> Iterator[slice]:
    """Slices of pairs, each of which has not too many products with `width` queries."""
    step = max(1, _BLOCK // max(1, width))
    for start in range(begin, end, step):
        yield slice(start, min(start + step, end))


def _chosen(
    queries: PlacedQueries,
    keys: PlacedKeys,
    pairs: TextPairs,
    block: slice,
    own: Ints,
    order: Array,
    window: Window | None,
    most: int,
) -> Bools:
    """(b, m) the queries `own` (m,) that are used for each pair of the block."""
    places = np.sort(
        np.stack([keys.position[pairs.first[block]], keys.position[pairs.second[block]]]), axis=0
    )
    position, weight = queries.position[own], queries.weight[own]  # (m,)
    seen = position > places[1][:, None]  # (b, m)
    if window is not None:
        seen &= position < window.end_position(places[0])[:, None]
    largest = np.where(seen, weight, 0.0).max(axis=1, initial=0.0)  # (b,)
    seen &= order[own] * largest[:, None] < 1.0
    return np.asarray(seen & (np.cumsum(seen, axis=1) <= most))


def _count(
    queries: PlacedQueries,
    keys: PlacedKeys,
    pairs: TextPairs,
    block: slice,
    own: Ints,
    chosen: Bools,
    found: Preferences,
) -> None:
    """Count the preferences of the chosen queries (b, m) of the pairs of a block."""
    first, second = keys.vectors[pairs.first[block]], keys.vectors[pairs.second[block]]
    difference = first.astype(np.float64) - second  # (b, d)
    pair, query = np.nonzero(chosen)  # (s,)
    sign = np.empty(len(pair))
    step = max(1, _BLOCK // queries.vectors.shape[1])
    for start in range(0, len(pair), step):
        part = slice(start, start + step)
        Q = queries.vectors[own[query[part]]].astype(np.float64)  # (s, d)
        sign[part] = np.einsum("sd,sd->s", Q, difference[pair[part]])
    size = len(difference)
    found.first[block] = np.bincount(pair[sign > 0], minlength=size)
    found.second[block] = np.bincount(pair[sign < 0], minlength=size)
    found.queries[block] = np.bincount(pair, minlength=size)


def count_in_groups(Q: Vectors, group: Ints, W: Array) -> Ints:
    """(p, g) twice the number of queries of each group that prefer the first key; ties are half.

    `Q` (m, d) are queries, `group` (m,) the groups of their texts, `W` (p, d) first minus second
    key of every pair.
    """
    member = np.zeros((GROUPS, len(group)))
    member[group, np.arange(len(group))] = 1.0
    found = np.empty((len(W), GROUPS), np.int64)
    queries = Q.astype(np.float64)
    for block in _blocks(0, len(W), len(Q)):
        sign = np.sign(W[block] @ queries.T)  # (b, m)
        found[block] = np.rint((sign + 1.0) @ member.T)
    return found
