"""Rows of the table of key heads, from the counts of the query heads of each.

The counts of a query head are part of its record. The row of a key head is made from the records of
its query heads when the tables are written, so it does not matter in which run, process or shard
each of them was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from attention_plasticity.head.key_head import unpacked
from attention_plasticity.head.result import HeadResult
from attention_plasticity.head.values import FEW_GROUPS
from attention_plasticity.metrics import GROUP_COLUMNS, KEY_HEADS
from attention_plasticity.numeric.attention_means import head_mean
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.pair_preferences import Preferences
from attention_plasticity.numeric.preference_scores import (
    grouped_mean,
    pair_plasticity,
    static_error,
)
from attention_plasticity.numeric.sizes import GROUPS
from attention_plasticity.run.head_means import MeanEstimate, mean_estimate
from qk_toolkit.arrays import Array

FEW_QUERIES = "no pair of keys is seen by two captured queries of every query head"
NO_ERRORS = "error_bars is off"
_FAR = "attn_far_mass"
_FEWEST = 2  # queries of each head that see a pair
ESTIMATES = tuple(metric.column for metric in KEY_HEADS.columns if metric.error)
"""Columns of the table of key heads that have a standard error."""


@dataclass(frozen=True)
class KeyHeadRow:
    """The row of a key head."""

    layer: int
    k_head: int
    values: dict[str, Any]
    estimates: dict[str, Estimate]
    missing: dict[str, str] = field(default_factory=dict)  # column → reason


def key_head_row(results: Sequence[HeadResult]) -> KeyHeadRow | None:
    """The row of a key head from its query heads; None if none of them has counts."""
    used = [result for result in results if result.key_head and "problem" not in result.key_head]
    if not used:
        return None
    found: dict[str, Estimate | str] = {}
    sizes = {"n_pairs": 0, "n_attended_pairs": 0, "n_queries": math.nan}
    for kind, start in (("pairs", ""), ("attended", "attended_")):
        joined = _joined(used, kind)
        for name, score in (("plasticity", pair_plasticity), ("static_error", static_error)):
            found[f"{start}{name}"] = joined if isinstance(joined, str) else joined.mean(score)
            found[f"{start}{name}_heads"] = (
                joined if isinstance(joined, str) else joined.mean(partial(_of_heads, score))
            )
        if not isinstance(joined, str):
            sizes[f"n_{start}pairs"] = len(joined.weight)
            if kind == "pairs":
                sizes["n_queries"] = float(joined.counts.queries.sum(axis=0).mean())
    found |= _aligned(used)
    found["far_mass"] = _far(used)
    found |= _spread(used)
    first = used[0]
    groups = [one.groups for one in found.values() if isinstance(one, Estimate) and one.groups]
    values: dict[str, Any] = {
        "layer": first.layer,
        "k_head": first.k_head,
        "n_q_heads": len(used),
        "layer_type": first.metrics["layer_type"],
        "sliding_window": first.metrics["sliding_window"],
        **sizes,
        "n_groups": min(groups, default=math.nan),
    }
    estimates, missing = {}, {}
    for name in ESTIMATES:
        one = found[name]
        if isinstance(one, str):
            values[name] = values[f"{name}_se"] = math.nan
            missing[name] = missing[f"{name}_se"] = one
            continue
        estimates[name] = one
        values[name], values[f"{name}_se"] = one.value, one.standard_error
        if math.isnan(one.standard_error):
            missing[f"{name}_se"] = FEW_GROUPS if one.groups else NO_ERRORS
    return KeyHeadRow(first.layer, first.k_head, values, estimates, missing)


@dataclass(frozen=True)
class _Joined:
    """Pairs that two or more queries of every head see."""

    counts: Preferences  # (heads, p) each
    weight: Array  # (p,)
    group: Any  # (p,) of texts; None without errors

    def mean(self, score: Callable[[Preferences], Array]) -> Estimate:
        """Mean over pairs."""
        return head_mean(score(self.counts), self.weight, self.group)


def _joined(used: Sequence[HeadResult], kind: str) -> _Joined | str:
    """The counts of all heads, or why there are none."""
    parts = [result.key_head[kind] for result in used]
    problem = next((part["problem"] for part in parts if "problem" in part), None)
    if problem is not None:
        return str(problem)
    counts = Preferences(
        *(
            np.stack([unpacked(part[name], "<u1").astype(np.int64) for part in parts])
            for name in Preferences._fields
        )
    )
    kept = np.flatnonzero((counts.queries >= _FEWEST).all(axis=0))
    if not len(kept):
        return FEW_QUERIES
    weight = unpacked(parts[0]["weight"], "<f8") if parts[0]["weight"] else None
    group = unpacked(parts[0]["group"], "<u1").astype(np.int64)[kept]
    return _Joined(
        Preferences(*(numbers[:, kept] for numbers in counts)),
        np.ones(len(kept)) if weight is None else weight[kept],
        group if used[0].key_head["errors"] else None,
    )


def _of_heads(score: Callable[[Preferences], Array], counts: Preferences) -> Array:
    """(p,) mean over heads of the score of each head alone."""
    alone = [
        score(Preferences(*(numbers[head : head + 1] for numbers in counts)))
        for head in range(len(counts.queries))
    ]
    return np.asarray(np.mean(alone, axis=0))


def _aligned(used: Sequence[HeadResult]) -> dict[str, Estimate | str]:
    """Plasticity at one position, of the group and as a mean over its heads."""
    names = ("aligned_plasticity", "aligned_plasticity_heads")
    parts = [result.key_head["aligned"] for result in used]
    problem = next((part["problem"] for part in parts if "problem" in part), None)
    if problem is not None:
        return dict.fromkeys(names, str(problem))
    group = unpacked(parts[0]["group"], "<u1").astype(np.int64)  # (p,)
    code = unpacked(parts[0]["bin"], "<u2").astype(np.int64)  # (p,)
    shape = (len(parts), -1, GROUPS)
    doubled = np.stack([unpacked(part["doubled"], "<u1") for part in parts]).reshape(shape)
    queries = np.stack([unpacked(part["queries"], "<u1") for part in parts]).reshape(shape)
    doubled, queries = doubled.astype(np.int64), queries.astype(np.int64)[:, code]  # (heads, p, g)
    errors = bool(used[0].key_head["errors"])
    of_group = grouped_mean(doubled, queries, group, errors=errors)
    if math.isnan(of_group.value):
        return dict.fromkeys(names, FEW_QUERIES)
    alone = [
        grouped_mean(one[None], own[None], group, errors=errors)
        for one, own in zip(doubled, queries, strict=True)
    ]
    return dict(zip(names, (of_group, _mean(alone)), strict=True))


def _far(used: Sequence[HeadResult]) -> Estimate | str:
    """Mean over query heads of the attention on far keys, without the first tokens."""
    heads = []
    for result in used:
        value = result.metrics[_FAR]
        if math.isnan(value):
            return result.missing.get(_FAR, FEW_QUERIES)
        columns = result.influences
        quantities = columns.get("quantity", [])
        influences, groups = np.full(GROUPS, np.nan), 0
        if _FAR in quantities:
            row = quantities.index(_FAR)
            influences = np.array([columns[name][row] for name in GROUP_COLUMNS])
            groups = int(columns["n_groups"][row])
        heads.append(Estimate(value, 0.0, influences, groups))
    return _mean(heads)


def _mean(heads: Sequence[Estimate]) -> Estimate:
    """Mean over heads of estimates from the same texts."""
    influences = np.mean([one.influences for one in heads], axis=0)
    value = math.fsum(one.value for one in heads) / len(heads)
    return Estimate(value, 0.0, influences, min(one.groups for one in heads))


def _spread(used: Sequence[HeadResult]) -> dict[str, Estimate | str]:
    """How unequally keys receive attention; the same in the records of all heads of a group."""
    names = {"received_gini": "gini", "received_half": "half"}
    content = used[0].key_head["spread"]
    if "problem" in content:
        return dict.fromkeys(names, str(content["problem"]))
    found: dict[str, Estimate | str] = {}
    for name, short in names.items():
        value, influences, groups = content[short]
        found[name] = Estimate(value, 0.0, np.array(influences, np.float64), groups)
    return found


class KeyHeadRows:
    """Collects the rows of key heads. Heads are added by layer and number."""

    def __init__(self) -> None:
        self.rows: list[KeyHeadRow] = []
        self._open: list[HeadResult] = []

    def add(self, result: HeadResult) -> Iterator[KeyHeadRow]:
        """Add a query head. Yields the row of the key head before, if it is complete."""
        last = self._open[-1] if self._open else result
        if (last.layer, last.k_head) != (result.layer, result.k_head):
            yield from self.end()
        self._open.append(result)

    def end(self) -> Iterator[KeyHeadRow]:
        """The row of the last key head."""
        row = key_head_row(self._open) if self._open else None
        self._open = []
        if row is not None:
            self.rows.append(row)
            yield row

    @property
    def means(self) -> dict[str, MeanEstimate]:
        """Means over key heads, with errors over texts."""
        unknown = Estimate(math.nan, 0.0, np.full(GROUPS, np.nan), 0)
        found = {}
        for name in ESTIMATES:
            own = [row.estimates.get(name, unknown) for row in self.rows]
            found[name] = mean_estimate(
                [one.value for one in own],
                [0.0] * len(own),
                [one.influences.tolist() for one in own],
                [one.groups for one in own],
            )
        return found
