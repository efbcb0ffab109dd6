"""The estimator: leaving groups out against refits from rows, bias, errors, and few groups."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.estimate.quantity import (
    MIN_GROUPS,
    group_sums,
    leave_one_out,
    mean_of,
    present_groups,
    quantity,
    ratio_of_means,
    sums_by,
)

GROUPS = 16


def jackknife(statistic, group):
    """Value and standard error of the textbook, from refits without the rows of each group."""
    left = [statistic(group != g) for g in sorted(set(group.tolist()))]
    n, mean = len(left), math.fsum(left) / len(left)
    value = n * statistic(np.full(len(group), True)) - (n - 1) * mean
    return value, math.sqrt((n - 1) / n * math.fsum((x - mean) ** 2 for x in left))


@st.composite
def samples(draw):
    """Positions, values, weights and groups; at least four groups have three rows or more."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    groups = draw(st.sets(st.integers(0, 15), min_size=4))
    sizes = [draw(st.integers(3, 9)) for _ in groups]
    group = rng.permutation(np.repeat(sorted(groups), sizes))
    t = rng.permutation(1000)[: len(group)].astype(float)
    x = draw(st.sampled_from([1e-9, 1.0, 1e9])) * (rng.standard_normal(len(t)) + 1 + t / 700)
    return t, x, rng.uniform(0.2, 5.0, len(t)), group


def assert_equals(found, expected, group):
    size = abs(expected[0]) + expected[1]
    assert found.value == pytest.approx(expected[0], rel=1e-9, abs=1e-9 * size)
    assert found.standard_error == pytest.approx(expected[1], rel=1e-6, abs=1e-9 * size)
    assert found.groups == len(set(group.tolist()))


@settings(max_examples=50)
@given(samples())
def test_means_equal_refits_without_each_group(sample):
    _, x, w, group = sample
    plain = jackknife(lambda kept: float(np.mean(x[kept])), group)
    assert_equals(ratio_of_means(x, np.ones(len(x)), group), plain, group)
    weighted = jackknife(lambda kept: float(np.average(x[kept], weights=w[kept])), group)
    assert_equals(ratio_of_means(x, w, group), weighted, group)


@settings(max_examples=50)
@given(samples())
def test_functions_of_sums_equal_refits_without_each_group(sample):
    t, x, _, group = sample
    ratio = jackknife(lambda kept: float(x[kept].sum() / t[kept].sum()), group)
    sums = leave_one_out(group_sums(np.stack([x, t], axis=1), group))  # (1 + g, 2)
    assert_equals(quantity(sums[:, 0] / sums[:, 1], present_groups(group)), ratio, group)
    r2 = jackknife(lambda kept: float(np.corrcoef(t[kept], x[kept])[0, 1] ** 2), group)
    columns = np.stack([np.ones(len(t)), t, x, t * t, t * x, x * x], axis=1)
    n, st_, sx, stt, stx, sxx = leave_one_out(group_sums(columns, group)).T
    found = (stx - st_ * sx / n) ** 2 / (stt - st_**2 / n) / (sxx - sx**2 / n)
    assert_equals(quantity(found, present_groups(group)), r2, group)


@pytest.mark.parametrize("columns", [(), (3,)])
def test_sums_by_slots_equal_loops(columns):
    rng = np.random.default_rng(0)
    slot, values = rng.integers(0, 40, 60), rng.standard_normal((60, *columns))
    found = sums_by(values, slot, 50)
    expected = np.zeros((50, *columns))
    for one, value in zip(slot, values, strict=True):
        expected[one] += value
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_few_groups_give_the_plain_value_without_an_error(groups):
    rng = np.random.default_rng(3)
    x, group = rng.standard_normal(40), np.arange(40) % groups
    sums = leave_one_out(group_sums(np.stack([x, np.ones(40)], axis=1), group))
    with np.errstate(invalid="ignore"):
        found = quantity((sums[:, 0] / sums[:, 1]) ** 2, present_groups(group))
    assert found.groups == groups
    assert (found.value == pytest.approx(x.mean() ** 2, rel=1e-9)) == (groups < MIN_GROUPS)
    assert math.isnan(found.standard_error) == (groups < MIN_GROUPS)
    assert np.isnan(found.influences).all() == (groups < MIN_GROUPS)


def test_without_a_value_for_one_left_out_group_there_is_no_error():
    replicates = np.linspace(0.0, 1.0, 1 + GROUPS)
    replicates[5] = np.nan
    found = quantity(replicates, np.full(GROUPS, True))
    assert (found.value, found.groups) == (0.0, GROUPS)
    assert math.isnan(found.standard_error)
    known = quantity(replicates, np.arange(GROUPS) != 4)  # this group has no rows
    assert math.isfinite(known.standard_error)
    assert math.isnan(quantity(np.full(1 + GROUPS, np.nan), np.full(GROUPS, True)).value)


def replicates(seed, shape=()):
    return np.random.default_rng(seed).standard_normal((1 + GROUPS, *shape))


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_differences_units_and_means_are_those_of_the_replicates():
    """They hold for every linear function, so errors of shared texts cancel."""
    present = np.arange(GROUPS) % 4 > 0
    a, b, c = (replicates(seed) for seed in range(3))
    one, two, three = (quantity(values, present) for values in (a, b, c))
    assert_same(one.minus(two), quantity(a - b, present))
    assert_same(one.times(-2.5), quantity(-2.5 * a, present))
    assert_same(mean_of([one, two, three]), quantity((a + b + c) / 3, present))
    assert one.minus(one).standard_error == 0.0
    few = quantity(b, np.arange(GROUPS) < 5)
    assert one.minus(few).groups == mean_of([one, few]).groups == 5


def test_one_or_some_of_several_values():
    values, present = replicates(4, (5, 3)), np.arange(GROUPS)[:, None] < np.array([16, 9, 3])
    present = np.broadcast_to(present[:, None], (GROUPS, 5, 3))
    whole = quantity(values, present)
    assert whole.groups.tolist() == [[16, 9, 3]] * 5
    for i, j in np.ndindex(5, 3):
        found, one = whole.at(i).at(j), quantity(values[:, i, j], present[:, i, j])
        assert_same(found, one)
        assert isinstance(found.value, float)
        assert isinstance(found.groups, int)
        np.testing.assert_allclose(whole.standard_error[i, j], one.standard_error, rtol=1e-12)
    some = whole.at([4, 0])
    assert_same(some, quantity(values[:, [4, 0]], present[:, [4, 0]]))


def test_weights_count_rows_several_times_and_0_leaves_them_out():
    """A row of weight 3 counts as three rows of its group. The scale of weights has no effect."""
    rng = np.random.default_rng(5)
    x, group, weight = rng.standard_normal((60, 2)), rng.integers(0, 8, 60), rng.integers(0, 5, 60)
    times = np.repeat(np.arange(60), weight)
    plain = ratio_of_means(x[times], np.ones(len(times)), group[times])
    for factor in (1.0, 1e-9, 1e9):
        assert_same(ratio_of_means(x, factor * weight, group), plain)
    own = rng.integers(0, 3, (60, 2)).astype(float)  # weights of every column
    own[group == 2, 1] = 0.0
    found = ratio_of_means(x, own, group)
    for column in range(2):
        assert_same(found.at(column), ratio_of_means(x[:, column], own[:, column], group))
    assert found.groups.tolist() == [8, 7]
    assert found.influences[2, 1] == 0.0
