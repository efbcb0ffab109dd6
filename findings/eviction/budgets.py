"""Rules of division that are tried, and the budget file of every allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from attention_plasticity.export.division import PERCENTS, kept_shares, ranks, with_mean
from findings.eviction.plan import (
    FLAT,
    HALF,
    HEAD,
    ORDERS,
    PLASTICITY,
    RANDOM_HALF,
    RANDOM_ORDER,
    RULE,
    VALUE,
    Plan,
)
from qk_toolkit.arrays import Array

Rule = Callable[[Array, float], Array]
"""(layers, key heads) values and the mean share that is kept → shares that are kept."""


def _places(values: Array) -> Array:
    """1 for the largest value, -1 for the smallest, linear in the rank between them."""
    n = values.size
    return np.asarray(1.0 - 2.0 * (ranks(values.ravel()) - 1.0) / (n - 1)).reshape(values.shape)


def _of_product(rule: str) -> Rule:
    """A rule of `export --to kvpress-budget`."""
    return lambda values, keep: kept_shares(values.ravel(), keep, rule).reshape(values.shape)


def _ramp(slope: float) -> Rule:
    return lambda values, keep: with_mean((1.0 + slope * _places(values)).ravel(), keep).reshape(
        values.shape
    )


def _power(exponent: float, floor: float = 0.0) -> Rule:
    """In proportion to a power of the value; a part `floor` of the keys is divided equally."""

    def rule(values: Array, keep: float) -> Array:
        factor = np.maximum(values, 1e-6).ravel() ** exponent
        factor = floor + (1.0 - floor) * factor / factor.mean()
        return with_mean(factor, keep).reshape(values.shape)

    return rule


def _odds(slope: float) -> Rule:
    """The odds of keeping a key grow by a factor with the rank: no head keeps all or nothing."""

    def rule(values: Array, keep: float) -> Array:
        if keep >= 1.0:
            return np.ones(values.shape)
        x = slope * _places(values)

        def shares(level: float) -> Array:
            return np.asarray(1.0 / (1.0 + np.exp(-(x + level))))

        level = brentq(lambda one: shares(one).mean() - keep, -60.0, 60.0, xtol=1e-14)
        return shares(float(level))

    return rule


def _by_layer(rule: Rule) -> Rule:
    """The same mean share in every layer."""
    return lambda values, keep: np.stack([rule(row[None], keep)[0] for row in values])


RULES: dict[str, Rule] = {
    "ramp 0.4": _ramp(0.4),
    "ramp 0.6": _ramp(0.6),
    "ramp 0.8": _of_product("ramp"),
    "ramp 0.9": _ramp(0.9),
    "ramp 0.8 in each layer": _by_layer(_ramp(0.8)),
    "proportional": _power(1.0),
    "proportional, half equal": _power(1.0, floor=0.5),
    "square of the value": _power(2.0),
    "square of the value, fifth equal": _power(2.0, floor=0.2),
    "cube of the value": _power(3.0),
    "proportional in each layer": _by_layer(_power(1.0)),
    "odds 1": _odds(1.0),
    "odds 2": _odds(2.0),
    "odds 3": _odds(3.0),
    "odds 4": _odds(4.0),
}


def curves(values: Array, rule: Rule) -> Array:
    """(99, layers, key heads) shares to prune."""
    return np.stack([1.0 - rule(values, 1.0 - percent) for percent in PERCENTS])


def write_rules(folder: Path, plasticity: Array) -> None:
    """Write the equal budgets, and those of every rule; `plasticity` is (layers, key heads)."""
    equal = np.broadcast_to(PERCENTS[:, None, None], (len(PERCENTS), *plasticity.shape))
    _write(folder, {FLAT: equal})
    _write(folder, {f"{RULE}:{name}": curves(plasticity, rule) for name, rule in RULES.items()})


def write_orders(folder: Path, heads: Mapping[str, Array], rule: str, plan: Plan) -> None:
    """Write the budgets of all orders by one rule; `heads` has (layers, key heads) of each.

    All orders divide the same budgets, those of plasticity at one position. They differ in which
    head gets which. VALUE has the budgets of another value by the rule. For halves, the heads with
    the smaller values lose keys. HEAD is one head that alone loses keys.
    """
    shape = heads[PLASTICITY].shape
    values = {name: _in_order_of(heads[PLASTICITY], heads[name]) for name in ORDERS}
    drawn = {}
    for number in range(plan.random_orders):
        rng = np.random.default_rng([plan.seed, number])
        drawn[str(number)] = rng.permutation(heads[PLASTICITY].ravel()).reshape(shape)
    _write(folder, {name: curves(one, RULES[rule]) for name, one in values.items()})
    _write(folder, {f"{VALUE}:{name}": curves(heads[name], RULES[rule]) for name in ORDERS})
    _write(folder, {f"{HALF}:{name}": _half(one) for name, one in values.items()})
    for name, one in drawn.items():
        found = {f"{RANDOM_ORDER}:{name}": curves(one, RULES[rule])}
        _write(folder, found | {f"{RANDOM_HALF}:{name}": _half(one)})
    for layer, head in np.ndindex(*shape):
        one = np.zeros((len(PERCENTS), *shape))
        one[:, layer, head] = PERCENTS
        _write(folder, {f"{HEAD}:{layer}.{head}": one})


def _in_order_of(values: Array, order: Array) -> Array:
    """The same values, the largest where `order` is largest."""
    found = np.empty(values.size)
    found[np.argsort(order, axis=None, kind="stable")] = np.sort(values, axis=None)
    return found.reshape(values.shape)


def _half(values: Array) -> Array:
    """Only the half of the heads with the smaller values loses keys."""
    lost = np.zeros(values.size)
    lost[np.argsort(values, axis=None, kind="stable")[: values.size // 2]] = 1.0
    return PERCENTS[:, None, None] * lost.reshape(values.shape)


def _write(folder: Path, found: Mapping[str, Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in found.items():
        np.save(folder / f"{name}.npy", one)
