"""Rules of division that are tried, and the budgets of every allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from attention_plasticity.export.division import (
    PERCENTS,
    kept_shares,
    places,
    ranks,
    shares_of_ratio,
    with_mean,
)
from findings.eviction.plan import (
    BOTH,
    FAR,
    FLAT,
    LAYERS,
    PLASTICITY,
    RANDOM,
    RULE,
    SOURCE,
    STATIC,
    Condition,
    Plan,
    main_source,
)
from findings.eviction.values import Values
from qk_toolkit.arrays import Array

Rule = Callable[[Array, float], Array]
"""(n,) values and the mean share that is kept → shares that are kept."""
_PLACES = {"value": 0.0, "value and rank": 0.5, "rank": 1.0}
_CONSTANT, _GROWING = (30.0, 100.0, 300.0), (200.0, 400.0, 800.0)


def _ratio(by_rank: float, ratio: float, *, grows: bool) -> Rule:
    """The logarithm of the share is linear in the place of a head."""

    def rule(values: Array, keep: float) -> Array:
        own = max(ratio * keep, 1.0) if grows else ratio
        return shares_of_ratio(places(values, by_rank), keep, own)

    return rule


def _tried() -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for (name, by_rank), ratio in product(_PLACES.items(), _CONSTANT):
        found[f"{ratio:g}, {name}"] = _ratio(by_rank, ratio, grows=False)
    for (name, by_rank), ratio in product(_PLACES.items(), _GROWING):
        found[f"{ratio:g} × kept, {name}"] = _ratio(by_rank, ratio, grows=True)
    found["ramp"] = lambda values, keep: kept_shares(values, keep, "ramp")
    found["cube of the value"] = lambda values, keep: with_mean(
        np.maximum(values, 1e-6) ** 3.0, keep
    )
    return found


RULES = _tried()
"""*100, value*: the ratio of the largest to the smallest share. *400 × kept*: times the mean share.

The place between both is linear in the value, in its rank, or in the mean of the two."""
BASELINES = ("ramp", "cube of the value")
"""Rules without a ratio. They are compared and cannot be chosen."""


def curves(values: Array, rule: str) -> Array:
    """(99, layers, key heads) shares to prune."""
    rows = [1.0 - RULES[rule](values.ravel(), 1.0 - percent) for percent in PERCENTS]
    return np.clip(rows, 0.0, 1.0).reshape(len(PERCENTS), *values.shape)


def curves_of(allocation: str, values: Mapping[str, Values], rule: str, plan: Plan) -> Array:
    """(99, layers, key heads) shares to prune. `rule` is the chosen one."""
    main = values[main_source(plan)]
    plasticity = main[PLASTICITY]  # (layers, key heads)
    kind, _, name = allocation.partition(":")
    if allocation == FLAT:
        return np.broadcast_to(PERCENTS[:, None, None], (len(PERCENTS), *plasticity.shape))
    if allocation in (PLASTICITY, STATIC):
        return curves(main[allocation], rule)
    if kind == RULE:
        return curves(plasticity, name)
    if kind == SOURCE:
        return curves(values[name][PLASTICITY], rule)
    if kind == RANDOM:
        rng = np.random.default_rng([plan.seed, int(name)])
        return curves(rng.permutation(plasticity.ravel()).reshape(plasticity.shape), rule)
    raise ValueError(f"unknown allocation {allocation}")


def windows_of(condition: Condition, values: Mapping[str, Values], plan: Plan) -> Array:
    """(99, layers, key heads) the same shares in all rows: of heads with a window, or 0."""
    main = values[main_source(plan)]
    kind, _, name = condition.allocation.partition(":")
    whole_layers = kind == LAYERS
    order = _order(name if whole_layers else condition.allocation, main, plan)
    heads = order.shape[1]
    if whole_layers:
        order = order.mean(axis=1, keepdims=True)  # (layers, 1)
    number = round(condition.compression * order.size)
    pruned = np.zeros(order.size)
    smallest = np.argsort(order, axis=None, kind="stable")[:number]
    pruned[smallest] = 1.0 - (plan.sink + plan.recent) / condition.context
    shape = (len(PERCENTS), len(order), heads)
    return np.broadcast_to(pruned.reshape(order.shape), shape)


def _order(name: str, main: Values, plan: Plan) -> Array:
    """(layers, key heads) the heads with the smallest numbers get a window."""
    if name == BOTH:
        rank = [-ranks(main[one].ravel()) for one in (PLASTICITY, FAR)]
        return np.asarray(sum(rank)).reshape(main[PLASTICITY].shape)
    if name.startswith(f"{RANDOM}:"):
        rng = np.random.default_rng([plan.seed, int(name.partition(":")[2])])
        return rng.random(main[PLASTICITY].shape)
    return main[name]
