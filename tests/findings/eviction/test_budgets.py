"""Rules and orders of the study of evictions: totals, limits, and which head gets what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.export.division import PERCENTS, prune_curves
from findings.eviction.budgets import RULES, curves, write_orders, write_rules
from findings.eviction.plan import FLAT, HALF, HEAD, ORDERS, PLASTICITY, RANDOM_ORDER, Plan

SHAPE = (4, 3)
VALUES = st.lists(
    st.floats(0.01, 1.0), min_size=12, max_size=12, unique_by=lambda one: round(one, 3)
).map(lambda found: np.array(found).reshape(SHAPE))


@settings(max_examples=15)
@given(VALUES, st.sampled_from(sorted(RULES)))
def test_every_rule_keeps_the_total_and_the_order(values: np.ndarray, rule: str) -> None:
    found = curves(values, RULES[rule])
    assert found.shape == (99, *SHAPE)
    assert found.mean(axis=(1, 2)) == pytest.approx(PERCENTS, abs=1e-9)
    assert ((found >= -1e-12) & (found <= 1.0)).all()
    rows = values if "in each layer" in rule else values.reshape(1, -1)
    for own, pruned in zip(rows, found.reshape(99, *rows.shape).swapaxes(0, 1), strict=True):
        assert (np.diff(pruned[:, np.argsort(own)], axis=1) <= 1e-9).all()


def test_the_rules_of_the_product_are_among_them() -> None:
    values = np.random.default_rng(0).uniform(0.1, 0.9, SHAPE)
    square = "square of the value, fifth equal"
    for name, own in (("cube of the value", "cube"), (square, "square"), ("ramp 0.8", "ramp")):
        expected = prune_curves(values.ravel(), np.ones(12, bool), own).reshape(99, *SHAPE)
        assert curves(values, RULES[name]) == pytest.approx(expected, abs=1e-12)


def test_orders_divide_the_same_budgets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    heads = {name: rng.uniform(0.1, 0.9, SHAPE) for name in ORDERS}
    write_rules(tmp_path, heads[PLASTICITY])
    write_orders(tmp_path, heads, "cube of the value", Plan(random_orders=3))
    own = np.load(tmp_path / f"{PLASTICITY}.npy")
    assert (own == curves(heads[PLASTICITY], RULES["cube of the value"])).all()
    for name in (*ORDERS, f"{RANDOM_ORDER}:0", f"{RANDOM_ORDER}:2"):
        other = np.load(tmp_path / f"{name}.npy")
        for row, expected in zip(other, own, strict=True):
            assert np.sort(row, axis=None) == pytest.approx(np.sort(expected, axis=None))
    for name in ORDERS:
        order = np.argsort(heads[name], axis=None)
        kept = 1.0 - np.load(tmp_path / f"{name}.npy")[49].ravel()
        assert (np.diff(kept[order]) >= -1e-12).all()
        lost = np.load(tmp_path / f"{HALF}:{name}.npy")[93].ravel()
        assert np.flatnonzero(lost).tolist() == sorted(order[:6].tolist())
        assert set(lost.tolist()) == {0.0, 0.94}
    assert (np.load(tmp_path / f"{FLAT}.npy") == PERCENTS[:, None, None]).all()
    alone = np.load(tmp_path / f"{HEAD}:2.1.npy")
    assert alone[74, 2, 1] == 0.75
    assert np.count_nonzero(alone[74]) == 1
