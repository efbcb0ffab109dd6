"""Budgets from ranks: totals, limits and order, and intervals of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity.budget.rule import budgets, rank_intervals, ranks

VALUES = st.lists(
    st.one_of(st.integers(0, 5).map(float), st.floats(0, 1, allow_subnormal=False)),
    min_size=1,
    max_size=60,
).map(np.array)
KEEP = st.floats(0.001, 1.0)
SPREAD = st.floats(0.0, 0.999)


@given(VALUES, KEEP, SPREAD)
def test_total_limits_and_order(values: np.ndarray, keep: float, spread: float) -> None:
    found = budgets(ranks(values), keep, spread)
    assert found.mean() == pytest.approx(keep, abs=1e-12)
    assert (found <= 1.0).all()
    assert (found >= (1.0 - spread) * keep - 1e-12).all()
    for one, own in zip(values, found, strict=True):
        assert (own >= found[values < one] - 1e-12).all()
        assert found[values == one] == pytest.approx(own, abs=1e-12)


@given(st.integers(2, 50), KEEP)
def test_budgets_below_the_limit_are_linear_in_the_rank(heads: int, keep: float) -> None:
    keep = keep / 2.0  # 1.8 of it is below 1
    found = budgets(np.arange(1.0, heads + 1.0), keep, 0.8)
    assert found[0] == pytest.approx(1.8 * keep)
    assert found[-1] == pytest.approx(0.2 * keep)
    assert np.diff(found, n=2) == pytest.approx(0.0, abs=1e-12)


def test_what_full_heads_leave_over_goes_to_the_others() -> None:
    found = budgets(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 0.7, 0.8)  # factors 1.8, 1.4, 1, 0.6, 0.2
    # without a limit 1.26, 0.98, 0.7, 0.42, 0.14; 2.5 remain for factors of 3.2 in sum: 1.4 · 2.5 /
    # 3.2 is above 1 as well, so 1.5 remain for 1.8
    assert found == pytest.approx([1.0, 1.0, 1.5 / 1.8, 0.6 * 1.5 / 1.8, 0.2 * 1.5 / 1.8])
    assert budgets(np.array([1.0, 2.0, 3.0]), 1.0, 0.9).tolist() == [1.0, 1.0, 1.0]
    assert budgets(np.array([1.0]), 0.3, 0.8).tolist() == [0.3]


def test_ranks_begin_with_the_largest_value() -> None:
    assert ranks(np.array([0.2, 0.5, 0.2, 0.1])).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_intervals_of_ranks() -> None:
    values = np.array([0.9, 0.5, 0.49, 0.1])
    low, high = rank_intervals(values, np.diag([0.01, 0.01, 0.01, 0.01]))
    assert low.tolist() == [1.0, 2.0, 2.0, 4.0]
    assert high.tolist() == [1.0, 3.0, 3.0, 4.0]
    shared = np.full((4, 1), 0.5)  # one error for all heads does not change their order
    low, high = rank_intervals(values, shared)
    assert low.tolist() == high.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_intervals_contain_the_true_rank() -> None:
    rng = np.random.default_rng(1)
    truth = np.linspace(0.0, 1.0, 12)
    errors = np.full(12, 0.08)
    inside = []
    for _ in range(100):
        values = truth + errors * rng.standard_normal(12)
        low, high = rank_intervals(values, np.diag(errors))
        inside.append((low <= ranks(truth)) & (ranks(truth) <= high))
    assert np.mean(inside) > 0.93
