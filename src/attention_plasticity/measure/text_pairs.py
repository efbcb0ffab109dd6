"""Key pairs of the table of key heads, and how many queries prefer each key.

A pair is of any two keys of one text that a later query can see. The probability of a text is in
proportion to its number of tokens. Queries are used as they enter the attention, at their own
positions: a cache is used by these queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.pairs import PairSampler, run_starts
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.read.rows import Keys, Queries
from qk_toolkit.arrays import Array, Ints

MOST_LATER = 64
"""Later queries of one head that are counted for a pair."""
_ROUNDS = 64  # of drawing two different keys
_BLOCK = 1 << 18  # numbers at a time
_QUERIES = 64  # of several short texts at a time
_MOST_QUERIES = 512  # of a text, if all have the same weight


class TextPairs(NamedTuple):
    """Rows of the keys of pairs, sorted by text."""

    first: Ints  # (p,)
    second: Ints  # (p,)


class PlacedPairs(NamedTuple):
    """Pairs of keys with the position of a token of their text that comes after both."""

    first: Ints  # (p,)
    second: Ints  # (p,)
    position: Array  # (p,)


class Preferences(NamedTuple):
    """Numbers of queries of every pair; those that prefer neither key are in `queries` only."""

    first: Ints  # (p,) prefer the first key
    second: Ints  # (p,) prefer the second key
    queries: Ints  # (p,)


class _Order(NamedTuple):
    """Keys with a weight above 0, by text and position."""

    rows: Ints  # (n,)
    text: Ints  # (n,) number of the text, from 0
    weight: Array  # (n,) in units of the largest of the text
    low: Ints  # (n,) the first key that a query at the position of a key sees
    before: Ints  # (n,) the first key at the position of a key

    @classmethod
    def of(cls, keys: Keys, weight: Array, visible: Visible) -> _Order:
        rows = np.lexsort((keys.position, keys.text))
        rows = rows[weight[rows] > 0]
        text = np.unique(keys.text[rows], return_inverse=True)[1]
        at, own = keys.position[rows], weight[rows]
        largest = np.zeros(int(text.max(initial=-1)) + 1)
        np.maximum.at(largest, text, own)
        span = 2.0 * at.max(initial=0.0) + 2.0
        end = np.minimum(visible.end(at), span - 0.5)
        low = np.searchsorted(text * span + end, text * span + at, side="right")
        before = np.searchsorted(text * span + at, text * span + at, side="left")
        return cls(rows, text, own / largest[text], np.maximum(low, run_starts(text)), before)


def text_pairs(
    keys: Keys, weight: Array, visible: Visible, most: int, rng: np.random.Generator
) -> TextPairs:
    """Pairs in proportion to the product of the weights (keys,) of both keys within a text."""
    own = _Order.of(keys, weight, visible)
    sampler = PairSampler(own.weight, own.low)
    tokens = np.bincount(own.text, keys.weight[own.rows]).astype(np.float64)  # (texts,)
    start = np.searchsorted(own.text, np.arange(len(tokens) + 1))  # (texts + 1,)
    begin, end = start[None, :-1], start[None, 1:]
    _, later, earlier = sampler.draw(begin, end, np.array([most]), rng, tokens[None])
    return TextPairs(own.rows[later], own.rows[earlier])


def placed_pairs(
    keys: Keys, visible: Visible, number: int, rng: np.random.Generator
) -> PlacedPairs:
    """Tokens in proportion to what keys stand for, each with a pair of keys that it sees.

    A token without two earlier keys that it sees has no pair.
    """
    own = _Order.of(keys, keys.weight, visible)
    ends = np.cumsum(keys.weight[own.rows])
    place = (np.arange(number) + rng.random(number)) / number * (ends[-1] if len(ends) else 0.0)
    token = np.minimum(np.searchsorted(ends, place, side="right"), max(len(ends) - 1, 0))
    token = token[own.before[token] - own.low[token] >= 2] if len(ends) else token[:0]
    low, high = own.low[token], own.before[token]  # (p,)
    sums = np.concatenate([[0.0], np.cumsum(own.weight)])  # (n + 1,)
    pair = np.zeros((2, len(token)), np.int64)
    open_ = np.arange(len(token))
    for _ in range(_ROUNDS):
        left, right = low[open_], high[open_]
        target = sums[left] + rng.random((2, len(open_))) * (sums[right] - sums[left])
        pair[:, open_] = np.clip(np.searchsorted(sums, target, side="right") - 1, left, right - 1)
        open_ = open_[pair[0, open_] == pair[1, open_]]
        if not len(open_):
            break
    known = pair[0] != pair[1]
    first, second = own.rows[pair[:, known]]
    return PlacedPairs(first, second, keys.position[own.rows[token[known]]])


def count_preferences(
    queries: Queries,
    keys: Keys,
    pairs: TextPairs,
    visible: Visible,
    rng: np.random.Generator,
    most: int = MOST_LATER,
) -> Preferences:
    """Preferences of the later queries of the text of each pair that see both keys.

    Every token has the same probability: of the queries that see a pair, one with weight w is kept
    with probability w / (largest weight of them). At most `most` of these are used, at random.
    """
    assert queries.text is not None
    found = Preferences(*(np.zeros(len(pairs.first), np.int64) for _ in range(3)))
    order = rng.random(len(queries)) / queries.weight  # (n,)
    by_text = np.argsort(order)
    by_text = by_text[np.argsort(queries.text[by_text], kind="stable")]  # random in a text
    if (queries.weight == queries.weight[0]).all():
        rank = np.arange(len(by_text)) - run_starts(queries.text[by_text])
        by_text = by_text[rank < _MOST_QUERIES]
    texts = queries.text[by_text]
    text = keys.text[pairs.first]  # (p,)
    W = keys.after[pairs.first] - keys.after[pairs.second]  # (p, d)
    places = np.sort([keys.position[pairs.first], keys.position[pairs.second]], axis=0)
    end = visible.end(places[0])  # (p,) queries from here on do not see both
    for block, own, several in _blocks(text, texts):
        rows = by_text[own]  # (m,) queries of the texts of the block
        position, weight = queries.position[rows], queries.weight[rows]
        seen = position > places[1][block, None]  # (b, m)
        if visible.is_limited:
            seen &= position < end[block, None]
        if several:
            seen &= texts[own] == text[block, None]
        if (weight != weight[:1]).any():
            largest = np.where(seen, weight, 0.0).max(axis=1, initial=0.0)  # (b,)
            seen &= order[rows] * largest[:, None] < 1.0
        number = seen.sum(axis=1, dtype=np.int32)  # (b,)
        many = np.flatnonzero(number > most)
        seen[many] &= np.cumsum(seen[many], axis=1, dtype=np.int32) <= most
        S = W[block] @ queries.after[rows].T  # (b, m)
        found.first[block] = (seen & (S > 0)).sum(axis=1, dtype=np.int32)
        found.second[block] = (seen & (S < 0)).sum(axis=1, dtype=np.int32)
        found.queries[block] = np.minimum(number, most)
    return found


def _blocks(text: Ints, texts: Ints) -> Iterator[tuple[slice, slice, bool]]:
    """Pairs of some texts, the queries of these texts, and whether there can be several texts.

    Pairs and queries are sorted by text. A block has several short texts, or a part of the pairs of
    a long one.
    """
    begin = 0
    while begin < len(text):
        low = int(np.searchsorted(texts, text[begin], side="left"))
        last = text[begin] if low == len(texts) else texts[min(low + _QUERIES, len(texts)) - 1]
        last = max(text[begin], last)
        high = int(np.searchsorted(texts, last, side="right"))
        step = max(1, _BLOCK // max(1, high - low))
        end = min(int(np.searchsorted(text, last, side="right")), begin + step)
        yield slice(begin, end), slice(low, high), bool(last != text[begin])
        begin = end
