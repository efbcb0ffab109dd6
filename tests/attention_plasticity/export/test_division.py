"""Shares of keys from values: totals, limits and order, curves, and ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attention_plasticity.export.division import (
    PERCENTS,
    RULES,
    kept_shares,
    prune_curves,
    with_mean,
)
from qk_toolkit.errors import ConfigError

VALUES = st.lists(
    st.one_of(st.integers(-3, 5).map(float), st.floats(-1, 1, allow_subnormal=False)),
    min_size=1,
    max_size=60,
).map(np.array)
KEEP = st.floats(0.001, 1.0)
RULE = st.sampled_from(sorted(RULES))


@given(VALUES, KEEP)
def test_shares_below_the_limit_are_in_proportion_to_the_cube(
    values: np.ndarray, keep: float
) -> None:
    values = np.abs(values) + 0.1
    found = kept_shares(values, keep, "cube")
    free = found < 1.0
    assert found[free] * (values[free][:1] ** 3) == pytest.approx(
        found[free][:1] * values[free] ** 3, rel=1e-9
    )


def test_the_square_keeps_a_fifth_of_the_mean_in_every_head() -> None:
    found = kept_shares(np.array([0.0, 0.1, 0.2]), 0.3, "square")
    # squares 0, 1, 4 with the mean 5/3: factors 0.2, 0.2 + 0.8 · 3/5, 0.2 + 0.8 · 12/5
    assert found == pytest.approx([0.3 * 0.2, 0.3 * 0.68, 0.3 * 2.12])


@given(VALUES, KEEP, RULE)
def test_total_limits_and_order(values: np.ndarray, keep: float, rule: str) -> None:
    found = kept_shares(values, keep, rule)
    assert found.mean() == pytest.approx(keep, abs=1e-12)
    assert (found >= 0.0).all()
    assert (found <= 1.0).all()
    for one, own in zip(values, found, strict=True):
        assert (own >= found[values < one] - 1e-12).all()
        assert found[values == one] == pytest.approx(own, abs=1e-12)


@settings(max_examples=25)
@given(VALUES, st.data(), RULE)
def test_every_percent_has_its_total(values: np.ndarray, data: st.DataObject, rule: str) -> None:
    bools = st.lists(st.booleans(), min_size=len(values), max_size=len(values))
    counted = np.array(data.draw(bools)) | (np.arange(len(values)) == 0)
    assume(rule == "ramp" or values[counted].max() > 0.0)
    curves = prune_curves(values, counted, rule)
    assert curves.shape == (99, len(values))
    assert curves[:, counted].mean(axis=1) == pytest.approx(PERCENTS, abs=1e-12)
    assert (curves[:, ~counted] == 0.0).all()
    assert ((curves >= 0.0) & (curves <= 1.0)).all()
    assert (np.diff(curves, axis=0) >= -1e-12).all()  # more compression, fewer keys
    for row, percent in zip(curves, PERCENTS, strict=True):
        own = 1.0 - kept_shares(values[counted], 1.0 - percent, rule)
        assert row[counted] == pytest.approx(own, abs=1e-15)


def test_curves_stay_within_their_limits_with_heads_that_keep_all_or_nothing() -> None:
    for n in (25, 50):
        values = np.where(np.arange(n) % 3 == 0, 1.0, 0.0)
        for rule in RULES:
            curves = prune_curves(values, np.ones(n, bool), rule)
            assert ((curves >= 0.0) & (curves <= 1.0)).all()


def test_a_power_needs_a_value_above_zero() -> None:
    values = np.array([-0.1, 0.0])
    for rule in ("cube", "square"):
        with pytest.raises(ConfigError, match=f"{rule} needs a value above 0.*--rule ramp"):
            prune_curves(values, np.ones(2, bool), rule)
    assert prune_curves(values, np.ones(2, bool), "ramp")[49].tolist() == pytest.approx([0.9, 0.1])


@given(st.integers(2, 50), KEEP)
def test_the_ramp_is_linear_in_the_rank(heads: int, keep: float) -> None:
    keep = keep / 2.0  # 1.8 of it is below 1
    found = kept_shares(-np.arange(float(heads)), keep, "ramp")
    assert found[0] == pytest.approx(1.8 * keep)
    assert found[-1] == pytest.approx(0.2 * keep)
    assert np.diff(found, n=2) == pytest.approx(0.0, abs=1e-12)


FACTORS = st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=40).map(np.array)


@given(FACTORS, KEEP)
def test_shares_in_proportion_to_factors(factor: np.ndarray, keep: float) -> None:
    found = with_mean(factor, keep)
    assert found.mean() == pytest.approx(keep, abs=1e-12)
    assert (found <= 1.0).all()
    below = found < 1.0
    if below.any():
        assert found[below] / factor[below] == pytest.approx((found / factor)[below][0])
