"""The table of key heads: which of two keys the queries of all heads of a group prefer.

All query heads of a key head are asked about the same pairs. Their counts are stored with each
query head, and `key_head_row` joins those of a group. So the row of a key head does not depend on
which of its query heads were computed together, or when.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attention_plasticity.estimate.quantity import Quantity, mean_of, quantity, ratio_of_means
from attention_plasticity.estimate.score import score_sums
from attention_plasticity.estimate.sizes import GROUPS, SINK_TOKENS
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.found import FEW_GROUPS
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.preferences import (
    grouped_plasticity,
    pair_plasticity,
    static_error,
)
from attention_plasticity.measure.result import HeadResult, KeyHeadRow
from attention_plasticity.measure.shared import Shared
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.measure.text_pairs import (
    Preferences,
    TextPairs,
    count_preferences,
    placed_pairs,
    text_pairs,
)
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.read.layer import NO_TEXTS, SINGLE_EXAMPLE
from attention_plasticity.read.pool import NO_ATTENDED_KEYS, KeyPool
from attention_plasticity.read.rows import Keys, Queries
from attention_plasticity.read.unknown import Unknown
from qk_dump.rotary import rotate
from qk_toolkit.arrays import Array, Ints, Vectors

NO_PAIRS = "no text has two keys that a later query can see"
FEW_QUERIES = "no pair of keys is seen by two captured queries of every query head"
_MOST_PAIRS = 2048
_MOST_PLACED = 1024  # pairs at one position
_FEWEST = 2  # queries of each head that see a pair

Counts = dict[str, Any]
"""Plain values, for JSON: numbers below 2³² as text, quantities, or a `problem`."""


def key_head_counts(
    queries: Queries,
    grid: Grid | Unknown,
    keys: Keys,
    pool: KeyPool | None,
    far: Quantity | Unknown,
    shared: Shared,
    streams: tuple[Streams, Streams],
) -> Counts:
    """What the row of the key head needs of one query head.

    `far` is the far attention of the head; `streams` are those of the key head and of the head.
    """
    problem = _problem(queries, keys)
    if problem is not None:
        return {"problem": problem}
    assert isinstance(queries.visible, Visible)
    visible, (of_group, of_head) = queries.visible, streams

    def drawn(own: Keys, weight: Array, purpose: Purpose) -> TextPairs:
        rng = of_group.rng(purpose)
        name = f"text pairs {purpose}"
        return shared.get(name, None, lambda: text_pairs(own, weight, visible, _MOST_PAIRS, rng))

    attended: Counts = {"problem": NO_ATTENDED_KEYS}
    if pool is not None:
        weight = pool.pair_weight(pool.of_group)
        pairs = drawn(pool.keys, weight, Purpose.ATTENDED_TEXT_PAIRS)
        attended = _preferences(queries, pool.keys, pairs, visible, of_head)
    pairs = drawn(keys, keys.weight, Purpose.TEXT_PAIRS)
    return {
        "pairs": _preferences(queries, keys, pairs, visible, of_head),
        "attended": attended,
        "aligned": aligned_counts(grid, keys, visible, shared, of_group),
        "far": {"problem": far.reason} if isinstance(far, Unknown) else _message(far),
        "spread": shared.get("spread", None, lambda: _spread(pool)),
    }


def _problem(queries: Queries, keys: Keys) -> str | None:
    """Why nothing can be counted; None if it can."""
    if keys.group is None:
        return SINGLE_EXAMPLE
    if queries.text is None:
        return NO_TEXTS
    if isinstance(queries.visible, Unknown):
        return queries.visible.reason
    return keys.in_attention_problem


def _preferences(
    queries: Queries, keys: Keys, pairs: TextPairs, visible: Visible, streams: Streams
) -> Counts:
    if not len(pairs.first):
        return {"problem": NO_PAIRS}
    found = count_preferences(queries, keys, pairs, visible, streams.rng(Purpose.LATER_QUERIES))
    assert keys.group is not None
    return {
        "group": _text(keys.group[pairs.first]),
        **{name: _text(numbers) for name, numbers in found._asdict().items()},
    }


def aligned_counts(
    grid: Grid | Unknown, keys: Keys, visible: Visible, shared: Shared, streams: Streams
) -> Counts:
    """Preferences of the queries of a bin, turned to one position, by groups of texts.

    `streams` are those of the key head.
    """
    if isinstance(grid, Unknown):
        return {"problem": grid.reason}
    rng = streams.rng(Purpose.PLACED_PAIRS)
    pairs = shared.get("placed pairs", None, lambda: placed_pairs(keys, visible, _MOST_PLACED, rng))
    if not len(pairs.first):
        return {"problem": NO_PAIRS}
    assert keys.group is not None
    bins = grid.bins.of(pairs.position)  # (p,)
    place = np.minimum(np.searchsorted(grid.number, bins), max(len(grid) - 1, 0))
    known = grid.number[place] == bins if len(grid) else np.zeros(len(bins), np.bool_)
    record = keys.layer.rotation.record

    def make() -> Vectors:
        found: Vectors = keys.after[pairs.first] - keys.after[pairs.second]  # (p, d)
        if record is None or not len(grid):
            return found
        return rotate(found, pairs.position, grid.target[place], record)

    W = shared.get("placed differences", grid.queries, make)  # as a query at its position sees them
    doubled = np.zeros((len(bins), GROUPS), np.int64)
    count = np.zeros((len(bins), GROUPS), np.int64)
    for one in np.unique(place[known]).tolist():
        own = np.flatnonzero(known & (place == one))
        group = grid.group[grid.chosen[one]]
        sums = score_sums(W[own], grid.turned(one), group, GROUPS)
        doubled[own] = np.rint(2.0 * sums.preferred[0].T)
        count[own] = sums.queries[:, :1].T
    return {
        "group": _text(keys.group[pairs.first]),
        "doubled": _text(doubled),
        "queries": _text(count),
    }


def _spread(pool: KeyPool | None) -> Counts:
    """How unequally keys receive attention, as a mean over texts by tokens."""
    if pool is None:
        return {"problem": NO_ATTENDED_KEYS}
    keys, attention = pool.keys, pool.of_group
    known = np.flatnonzero(keys.position >= SINK_TOKENS)
    text, tokens, gini, half = attention_spread(
        attention[known], keys.weight[known], keys.text[known]
    )
    if not len(text):
        return {"problem": NO_PAIRS}
    group = keys.texts.groups.of(text)
    return {
        name: _message(ratio_of_means(values, tokens, group))
        for name, values in (("gini", gini), ("half", half))
    }


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


def key_head_row(results: Sequence[HeadResult]) -> KeyHeadRow | None:
    """The row of a key head from its query heads; None if none of them has counts."""
    used = [result for result in results if result.key_head and "problem" not in result.key_head]
    if not used:
        return None
    found: dict[str, Quantity | str] = {}
    sizes: dict[str, float] = {"n_pairs": 0, "n_attended_pairs": 0, "n_queries": math.nan}
    for kind, start in (("pairs", ""), ("attended", "attended_")):
        joined = _joined(used, kind)
        for name, score in (("plasticity", pair_plasticity), ("static_error", static_error)):
            both = f"{start}{name}", f"{start}{name}_heads"
            if isinstance(joined, str):
                found |= dict.fromkeys(both, joined)
                continue
            counts, group = joined
            ones = np.ones(len(group))
            found[both[0]] = ratio_of_means(score(counts), ones, group)
            found[both[1]] = ratio_of_means(_of_heads(score, counts), ones, group)
        if not isinstance(joined, str):
            sizes[f"n_{start}pairs"] = len(joined[1])
            if kind == "pairs":
                sizes["n_queries"] = float(joined[0].queries.sum(axis=0).mean())
    found |= aligned_of_group(used)
    found["far_mass"] = _mean([_read(result.key_head["far"]) for result in used])
    spread = used[0].key_head["spread"]
    for name in ("gini", "half"):
        content = spread if "problem" in spread else spread[name]
        found[f"received_{name}"] = _read(content)
    return _row(used, found, sizes)


def _row(
    used: Sequence[HeadResult], found: dict[str, Quantity | str], sizes: dict[str, float]
) -> KeyHeadRow:
    """The row, its quantities, and why values are missing."""
    first = used[0]
    groups = [one.groups for one in found.values() if isinstance(one, Quantity) and one.groups]
    values: dict[str, Any] = {
        "layer": first.layer,
        "k_head": first.k_head,
        "n_q_heads": len(used),
        "layer_type": first.metrics["layer_type"],
        "sliding_window": first.metrics["sliding_window"],
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
    return KeyHeadRow(first.layer, first.k_head, values, quantities, missing)


def _joined(used: Sequence[HeadResult], kind: str) -> tuple[Preferences, Ints] | str:
    """Counts (heads, p) of pairs that two or more queries of every head see, and their groups.

    The reason if there are none.
    """
    parts = [result.key_head[kind] for result in used]
    problem = next((part["problem"] for part in parts if "problem" in part), None)
    if problem is not None:
        return str(problem)
    counts = Preferences(
        *(np.stack([_numbers(part[name]) for part in parts]) for name in Preferences._fields)
    )
    kept = np.flatnonzero((counts.queries >= _FEWEST).all(axis=0))
    if not len(kept):
        return FEW_QUERIES
    group = _numbers(parts[0]["group"])[kept]
    return Preferences(*(numbers[:, kept] for numbers in counts)), group


def _of_heads(score: Callable[[Preferences], Array], counts: Preferences) -> Array:
    """(p,) mean over heads of the score of each head alone."""
    alone = [
        score(Preferences(*(numbers[head : head + 1] for numbers in counts)))
        for head in range(len(counts.queries))
    ]
    return np.asarray(np.mean(alone, axis=0))


def aligned_of_group(used: Sequence[HeadResult]) -> dict[str, Quantity | str]:
    """Plasticity at one position, of the group and as a mean over its heads."""
    names = ("aligned_plasticity", "aligned_plasticity_heads")
    parts = [result.key_head["aligned"] for result in used]
    problem = next((part["problem"] for part in parts if "problem" in part), None)
    if problem is not None:
        return dict.fromkeys(names, str(problem))
    group = _numbers(parts[0]["group"])  # (p,)
    shape = (len(parts), -1, GROUPS)
    doubled, queries = (  # (heads, p, g)
        np.stack([_numbers(part[name]) for part in parts]).reshape(shape)
        for name in ("doubled", "queries")
    )
    of_group = _mean_of_pairs(doubled, queries, group)
    if math.isnan(of_group.value):
        return dict.fromkeys(names, FEW_QUERIES)
    alone = [
        _mean_of_pairs(one[None], own[None], group)
        for one, own in zip(doubled, queries, strict=True)
    ]
    return dict(zip(names, (of_group, mean_of(alone)), strict=True))


def _mean_of_pairs(doubled: Ints, queries: Ints, group: Ints) -> Quantity:
    """Mean over pairs. Leaving a group out removes its pairs and its queries."""
    values = grouped_plasticity(doubled, queries)  # (p, 1 + g)
    known = ~np.isnan(values[:, 0])
    if not known.any():
        return quantity(np.full(1 + GROUPS, np.nan), np.zeros(GROUPS, np.bool_))
    kept = np.ones(values[known].shape, np.bool_)  # (p, 1 + g)
    kept[np.arange(len(kept)), 1 + group[known]] = False
    with np.errstate(invalid="ignore"):
        means = np.where(kept, values[known], 0.0).sum(axis=0) / kept.sum(axis=0)
    return quantity(means, queries[:, known].sum(axis=(0, 1)) > 0)


def _mean(heads: Sequence[Quantity | str]) -> Quantity | str:
    """Mean over heads, or why one of them has no value."""
    for one in heads:
        if isinstance(one, str):
            return one
    return mean_of([one for one in heads if isinstance(one, Quantity)])


def _text(numbers: Ints) -> str:
    """Numbers below 2³² as text, which JSON writes and reads faster than lists."""
    return b64encode(numbers.astype("<u4").tobytes()).decode()


def _numbers(text: str) -> Ints:
    """(n,) the numbers of a text."""
    return np.frombuffer(b64decode(text), "<u4").astype(np.int64)


def _message(found: Quantity) -> list[Any]:
    """Value, influences and number of groups."""
    return [found.value, found.influences.tolist(), int(found.groups)]


def _read(content: Any) -> Quantity | str:
    """The quantity of a message, or its problem."""
    if isinstance(content, dict):
        return str(content["problem"])
    value, influences, groups = content
    return Quantity(value, np.array(influences, np.float64), groups)
