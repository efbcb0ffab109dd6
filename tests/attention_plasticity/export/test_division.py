"""Shares of keys from values: totals, limits and order, curves, and ranks."""

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

VALUES = st.lists(
    st.one_of(st.integers(-3, 5).map(float), st.floats(-1, 1, allow_subnormal=False)),
    min_size=1,
    max_size=60,
).map(np.array)
KEEP = st.floats(0.001, 1.0)
RULE = st.sampled_from(sorted(RULES))


@given(VALUES, KEEP, st.floats(0.01, 100.0), st.floats(-100.0, 100.0), RULE)
def test_other_units_of_the_values_change_nothing(values, keep, unit, shift, rule):
    assume(len(np.unique(values.round(3))) == len(np.unique(values)))  # rounding keeps the order
    other = kept_shares(shift + unit * values, keep, rule)
    assert other == pytest.approx(kept_shares(values, keep, rule), abs=1e-6)


@given(st.integers(2, 40), st.floats(0.05, 0.3))
def test_the_ratio_of_the_largest_to_the_smallest_share(heads, keep):
    values = np.linspace(-3.0, 5.0, heads)
    found = kept_shares(values, keep)
    free = found < 1.0  # heads that keep everything would have more
    assert found[free] == pytest.approx(found[0] * 100.0 ** np.linspace(0.0, 1.0, heads)[free])
    assert (found[~free] == 1.0).all()


@given(st.integers(1, 20), KEEP, RULE)
def test_equal_values_keep_equal_shares(heads, keep, rule):
    assert kept_shares(np.full(heads, -0.3), keep, rule) == pytest.approx(keep)


@given(VALUES, KEEP, RULE)
def test_total_limits_and_order(values, keep, rule):
    found = kept_shares(values, keep, rule)
    assert found.mean() == pytest.approx(keep, abs=1e-12)
    assert (found >= 0.0).all()
    assert (found <= 1.0).all()
    for one, own in zip(values, found, strict=True):
        assert (own >= found[values < one] - 1e-12).all()
        assert found[values == one] == pytest.approx(own, abs=1e-12)


@settings(max_examples=25)
@given(VALUES, st.data(), RULE)
def test_every_percent_has_its_total(values, data, rule):
    bools = st.lists(st.booleans(), min_size=len(values), max_size=len(values))
    counted = np.array(data.draw(bools)) | (np.arange(len(values)) == 0)
    curves = prune_curves(values, counted, rule)
    assert curves.shape == (99, len(values))
    assert curves[:, counted].mean(axis=1) == pytest.approx(PERCENTS, abs=1e-12)
    assert (curves[:, ~counted] == 0.0).all()
    assert ((curves >= 0.0) & (curves <= 1.0)).all()
    assert (np.diff(curves, axis=0) >= -1e-12).all()  # more compression, fewer keys
    for row, percent in zip(curves, PERCENTS, strict=True):
        own = 1.0 - kept_shares(values[counted], 1.0 - percent, rule)
        assert row[counted] == pytest.approx(own, abs=1e-15)


def test_curves_stay_within_their_limits_with_heads_that_keep_all_or_nothing():
    for n in (25, 50):
        values = np.where(np.arange(n) % 3 == 0, 1.0, 0.0)
        for rule in RULES:
            curves = prune_curves(values, np.ones(n, bool), rule)
            assert ((curves >= 0.0) & (curves <= 1.0)).all()


@given(st.integers(2, 50), KEEP)
def test_the_ramp_is_linear_in_the_rank(heads, keep):
    keep = keep / 2.0  # 1.8 of it is below 1
    found = kept_shares(-np.arange(float(heads)), keep, "ramp")
    assert found[0] == pytest.approx(1.8 * keep)
    assert found[-1] == pytest.approx(0.2 * keep)
    assert np.diff(found, n=2) == pytest.approx(0.0, abs=1e-12)


FACTORS = st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=40).map(np.array)


@given(FACTORS, KEEP)
def test_shares_in_proportion_to_factors(factor, keep):
    found = with_mean(factor, keep)
    assert found.mean() == pytest.approx(keep, abs=1e-12)
    assert (found <= 1.0).all()
    below = found < 1.0
    if below.any():
        assert found[below] / factor[below] == pytest.approx((found / factor)[below][0])
