"""The table of key heads: which of two keys the queries of all heads of a group prefer.

A token is drawn, and two earlier keys of its text that it sees. The queries of all heads in the bin
of the token, of all texts, are turned to its position and asked which key they prefer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_plasticity.estimate.pairs import run_starts
from attention_plasticity.estimate.quantity import (
    Quantity,
    Unknown,
    leave_one_out,
    mean_of,
    quantity,
    ratio_of_means,
)
from attention_plasticity.estimate.score import score_sums
from attention_plasticity.estimate.sizes import GROUPS, SINK_TOKENS
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.found import FEW_GROUPS
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.result import KeyHeadRow
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.read.group import HeadGroup
from attention_plasticity.read.layer import NO_TEXTS, SINGLE_EXAMPLE
from attention_plasticity.read.pool import NO_ATTENDED_KEYS, KeyPool
from attention_plasticity.read.rows import Keys, Queries
from qk_dump.rotary import rotate
from qk_toolkit.arrays import Array, Ints, Vectors

NO_PAIRS = "no token sees two earlier keys of its text"
NO_KEYS = "no key of a text receives attention"
FEW_QUERIES = "no bin of queries has a pair and queries of two groups of texts"
_MOST_PAIRS = 1024
_ROUNDS = 64  # of drawing two different keys
_EQUAL = 1e-9  # shares of queries that differ by less are equal


class SeenPairs(NamedTuple):
    """Pairs of keys with the position of a token of their text that comes after both."""

    first: Ints  # (p,) rows of the keys
    second: Ints  # (p,)
    position: Array  # (p,)


class Asked(NamedTuple):
    """What queries of every group of texts prefer, by pair.

    Query heads with queries at the same places are a set; its numbers are sums over its heads.
    """

    first: Array  # (sets, p, g) queries that prefer the first key; one that prefers neither: a half
    queries: Array  # (sets, p, g)
    heads: Ints  # (sets,) numbers of heads


def key_head_row(
    group: HeadGroup,
    grids: Sequence[tuple[Sequence[int], Grid | Unknown]],
    far: Mapping[int, Quantity | Unknown],
) -> KeyHeadRow | None:
    """The row of a key head; None if no query head can be asked.

    `grids` are query heads with queries at the same places, and these queries in bins; `far` is the
    far attention of every head.
    """
    places = [one for one in grids if not _problem(group.queries[one[0][0]], group.keys)]
    used = sorted(head for heads, _ in places for head in heads)
    if not used:
        return None
    found: dict[str, Quantity | str] = {}
    sizes: dict[str, float] = {"n_pairs": 0, "n_queries": math.nan}
    asked = _asked(group, [grid for _, grid in places])
    if isinstance(asked, str):
        found |= dict.fromkeys(("aligned_plasticity", "static_error"), asked)
    else:
        counts, of_pair = asked
        plasticity = pair_plasticity(counts)  # (p, 1 + g)
        known = ~np.isnan(plasticity[:, 0])
        scores = {"aligned_plasticity": plasticity, "static_error": static_error(counts)}
        present = counts.queries[:, known].sum(axis=(0, 1)) > 0  # (g,)
        for name, values in scores.items():
            found[name] = _mean_of_pairs(values[known], of_pair[known], present)
        if known.any():
            sizes["n_pairs"] = int(known.sum())
            sizes["n_queries"] = float(counts.queries[:, known].sum(axis=(0, 2)).mean())
    found["far_mass"] = _mean([far[head] for head in used])
    found |= _spread(group.pool)
    return _row(group, used, found, sizes)


def _problem(queries: Queries, keys: Keys) -> str | None:
    """Why queries cannot be asked; None if they can."""
    if keys.group is None:
        return SINGLE_EXAMPLE
    if queries.text is None:
        return NO_TEXTS
    if isinstance(queries.visible, Unknown):
        return queries.visible.reason
    return keys.in_attention_problem


def _asked(group: HeadGroup, grids: Sequence[Grid | Unknown]) -> tuple[Asked, Ints] | str:
    """What the queries prefer, and the group of the text of each pair (p,); or a reason."""
    known: list[Grid] = []
    for grid in grids:
        if isinstance(grid, Unknown):
            return grid.reason
        if grid.no_rotation is not None:
            return grid.no_rotation
        known.append(grid)
    keys, visible = group.keys, known[0].queries.visible
    assert isinstance(visible, Visible)
    assert keys.group is not None
    streams = Streams(group.config.seed, group.layer, group.k_head)
    pairs = seen_pairs(keys, visible, _MOST_PAIRS, streams.rng(Purpose.SEEN_PAIRS))
    if not len(pairs.first):
        return NO_PAIRS
    first, queries = zip(*(_preferred(keys, pairs, grid) for grid in known), strict=True)
    heads = np.array([len(grid.heads) for grid in known])
    return Asked(np.stack(first), np.stack(queries), heads), keys.group[pairs.first]


def _preferred(keys: Keys, pairs: SeenPairs, grid: Grid) -> tuple[Array, Array]:
    """(p, g) each: numbers of queries of all heads that prefer the first key, and of all."""
    first, number = np.zeros((2, len(pairs.first), GROUPS))
    if not len(grid):
        return first, number
    bins = grid.bins.of(pairs.position)  # (p,)
    place = np.minimum(np.searchsorted(grid.number, bins), len(grid) - 1)
    known = grid.number[place] == bins
    W: Vectors = keys.after[pairs.first] - keys.after[pairs.second]  # (p, d)
    record = keys.layer.rotation.record
    if record is not None:  # as a query at its position sees them
        W = rotate(W, pairs.position, grid.target[place], record)
    for one in np.unique(place[known]).tolist():
        own = np.flatnonzero(known & (place == one))
        group = grid.group[grid.chosen[one]]
        sums = score_sums(W[own], grid.turned(one), group, GROUPS)
        first[own] = sums.preferred.sum(axis=0).T
        number[own] = len(grid.heads) * sums.queries.T
    return first, number


def pair_plasticity(asked: Asked) -> Array:
    """(p, 1 + g) 4P(1 − P) of every pair without bias, from queries of different groups.

    All heads have the same weight. The first column has all groups, the others leave one out. NaN
    if two heads have no queries of different groups.
    """
    first, n, heads = asked
    second = n - first
    all_first, all_second, all_n = (leave_one_out(part, -1) for part in (first, second, n))
    found = np.zeros(all_n.shape[1:])  # (p, 1 + g)
    for one, weight in enumerate(heads):
        disagree = all_first[one] * all_second - leave_one_out(first[one] * second, -1)
        pairs = all_n[one] * all_n - leave_one_out(n[one] * n, -1)  # (sets, p, 1 + g)
        share = disagree / np.where(pairs > 0, pairs, np.nan)
        found += weight * np.tensordot(heads, share, 1)
    return np.asarray(4.0 * found / heads.sum() ** 2)


def static_error(asked: Asked) -> Array:
    """(p, 1 + g) share of queries whose choice the queries of other groups do not predict.

    The majority of the other groups is that of the mean share over heads. A share of one half, and
    a query that prefers neither key, count one half.
    """
    used = np.flatnonzero(asked.queries.any(axis=(0, 1)))  # others change nothing
    first, n = asked.first[..., used], asked.queries[..., used]  # (sets, p, m)
    share = asked.heads / asked.heads.sum()
    all_first, all_n = leave_one_out(first, -1), leave_one_out(n, -1)  # (sets, p, 1 + m)
    others = all_n[..., None] - n[..., None, :]  # (sets, p, 1 + m, m) of all other groups
    prefer = (all_first[..., None] - first[..., None, :]) / np.where(others > 0, others, np.nan)
    excess = np.tensordot(share, prefer, 1) - 0.5  # (p, 1 + m, m)
    excess[np.abs(excess) < _EQUAL] = 0.0
    wrong = 0.5 - 0.5 * np.sign(excess)  # for a query that prefers the first key
    kept = np.append(np.ones((1, len(used)), np.bool_), ~np.eye(len(used), dtype=np.bool_), axis=0)
    found = np.zeros(all_n.shape[1:])  # (p, 1 + m)
    for weight, k, number, total in zip(share, first, n, all_n, strict=True):
        errors = (number - k)[:, None] + wrong * (2.0 * k - number)[:, None]  # (p, 1 + m, m)
        errors = np.where(kept & (number > 0)[:, None], errors, 0.0).sum(axis=-1)
        found += weight * errors / np.where(total > 0, total, np.nan)
    row = np.zeros(1 + asked.queries.shape[-1], np.int64)
    row[1 + used] = 1 + np.arange(len(used))
    return np.asarray(found[:, row])


def seen_pairs(keys: Keys, visible: Visible, number: int, rng: np.random.Generator) -> SeenPairs:
    """Tokens in proportion to what keys stand for, each with a pair of keys that it sees.

    A token without two earlier keys that it sees has no pair.
    """
    order = np.lexsort((keys.position, keys.text))
    order = order[keys.weight[order] > 0]
    text = np.unique(keys.text[order], return_inverse=True)[1]  # (n,) from 0
    at, tokens = keys.position[order], keys.weight[order]
    if not len(order):
        return SeenPairs(order, order, at)
    span = 2.0 * at.max() + 2.0
    end = np.minimum(visible.end(at), span - 0.5)
    starts = run_starts(text)
    low = np.maximum(np.searchsorted(text * span + end, text * span + at, side="right"), starts)
    before = np.searchsorted(text * span + at, text * span + at, side="left")  # (n,)
    ends = np.cumsum(tokens)
    chosen = (np.arange(number) + rng.random(number)) / number * ends[-1]
    token = np.minimum(np.searchsorted(ends, chosen, side="right"), len(ends) - 1)
    token = token[before[token] - low[token] >= 2]
    largest = np.maximum.reduceat(tokens, np.unique(starts))[text]
    sums = np.concatenate([[0.0], np.cumsum(tokens / largest)])  # (n + 1,)
    pair = _two_of(sums, low[token], before[token], rng)
    different = pair[0] != pair[1]
    first, second = order[pair[:, different]]
    return SeenPairs(first, second, at[token[different]])


def _two_of(sums: Array, low: Ints, high: Ints, rng: np.random.Generator) -> Ints:
    """(2, p) two keys of each range by their weights, whose sums are `sums`; rarely the same."""
    pair = np.zeros((2, len(low)), np.int64)
    left = np.arange(len(low))
    for _ in range(_ROUNDS):
        begin, end = low[left], high[left]
        target = sums[begin] + rng.random((2, len(left))) * (sums[end] - sums[begin])
        pair[:, left] = np.clip(np.searchsorted(sums, target, side="right") - 1, begin, end - 1)
        left = left[pair[0, left] == pair[1, left]]
        if not len(left):
            break
    return pair


def _mean_of_pairs(values: Array, group: Ints, present: Array) -> Quantity | str:
    """Mean over pairs (p, 1 + g). Leaving a group out removes its pairs and its queries."""
    if not len(values):
        return FEW_QUERIES
    kept = np.ones(values.shape, np.bool_)  # (p, 1 + g)
    kept[np.arange(len(kept)), 1 + group] = False
    with np.errstate(invalid="ignore"):
        means = np.where(kept, values, 0.0).sum(axis=0) / kept.sum(axis=0)
    return quantity(means, present)


def _spread(pool: KeyPool | None) -> dict[str, Quantity | str]:
    """How unequally keys receive attention, as means over texts by tokens."""
    names = "received_gini", "received_half"
    if pool is None:
        return dict.fromkeys(names, NO_ATTENDED_KEYS)
    keys, attention = pool.keys, pool.of_group
    known = np.flatnonzero(keys.position >= SINK_TOKENS)
    text, tokens, *values = attention_spread(attention[known], keys.weight[known], keys.text[known])
    if not len(text):
        return dict.fromkeys(names, NO_KEYS)
    group = keys.texts.group_of(text)
    means = [ratio_of_means(one, tokens, group) for one in values]
    return dict(zip(names, means, strict=True))


def attention_spread(
    attention: Array, tokens: Array, text: Ints
) -> tuple[Ints, Array, Array, Array]:
    """Texts, their tokens, and how unequally their keys (n,) receive attention: (texts,) each.

    The Gini coefficient is 0 if all keys receive the same and near 1 if one receives all. The half
    is the smallest share of the keys that together receive half of the attention. Texts whose keys
    receive no attention are left out.
    """
    found = []
    order = np.lexsort((-attention, text))  # the largest first
    for rows in np.split(order, np.flatnonzero(np.diff(text[order])) + 1):
        weight, own = tokens[rows], attention[rows] * tokens[rows]  # (m,)
        total, all_tokens = own.sum(), weight.sum()
        if not total > 0:
            continue
        sums = np.cumsum(own)
        lower = total - sums + 0.5 * own  # of keys that receive less, and half of its own
        gini = 1.0 - 2.0 * float(weight @ lower) / (all_tokens * total)
        last = int(np.searchsorted(sums, 0.5 * total))
        part = (0.5 * total - (sums[last] - own[last])) / own[last]  # of the last key
        half = (weight[:last].sum() + part * weight[last]) / all_tokens
        found.append((text[rows[0]], all_tokens, gini, half))
    columns = np.array(found, np.float64).reshape(-1, 4).T
    return columns[0].astype(np.int64), columns[1], columns[2], columns[3]


def _row(
    group: HeadGroup,
    used: Sequence[int],
    found: Mapping[str, Quantity | str],
    sizes: Mapping[str, float],
) -> KeyHeadRow:
    """The row, its quantities, and why values are missing."""
    window = group.queries[used[0]].window
    groups = [one.groups for one in found.values() if isinstance(one, Quantity) and one.groups]
    values: dict[str, Any] = {
        "layer": group.layer,
        "k_head": group.k_head,
        "n_q_heads": len(used),
        "layer_type": group.keys.layer.type_name(window),
        "sliding_window": math.nan if window is None else window,
        **sizes,
        "n_groups": min(groups, default=math.nan),
    }
    quantities, missing = {}, {}
    for name in KEY_HEADS.with_error:
        one = found[name]
        if isinstance(one, str):
            values[name] = values[f"{name}_se"] = math.nan
            missing[name] = missing[f"{name}_se"] = one
            continue
        quantities[name] = one
        values[name], values[f"{name}_se"] = one.value, one.standard_error
        if math.isnan(one.standard_error):
            missing[f"{name}_se"] = FEW_GROUPS
    return KeyHeadRow(values, quantities, missing)


def _mean(heads: Sequence[Quantity | Unknown]) -> Quantity | str:
    """Mean over heads, or why one of them has no value."""
    for one in heads:
        if isinstance(one, Unknown):
            return one.reason
    return mean_of([one for one in heads if isinstance(one, Quantity)])
