"""Means of attention: bins, distant and far mass, weights, and errors of few groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_plasticity.numeric import sizes
from attention_plasticity.numeric.attention_means import (
    bucket_means,
    common_bins,
    distant_mass,
    far_mass,
    head_mean,
)
from qk_dump.attention_columns import SINK_TOKENS, first_distances


def test_the_bins_and_sinks_of_tables_are_those_of_dumps() -> None:
    assert list(sizes.DISTANCES) == first_distances()
    assert sizes.SINK_TOKENS == SINK_TOKENS


@pytest.mark.parametrize("bins", [1, 5])
def test_bins_that_are_not_known_are_nan(bins: int) -> None:
    """The last bin of a dump also holds all larger distances."""
    masses = np.random.default_rng(0).random((7, bins)).astype(np.float32)
    common = common_bins(masses)
    np.testing.assert_array_equal(common[:, : bins - 1], masses[:, : bins - 1])
    assert np.isnan(common[:, bins - 1 :]).all()
    masses[:, -1] = 0
    np.testing.assert_array_equal(common_bins(masses)[:, :bins], masses)
    assert not common_bins(masses)[:, bins:].any()


@pytest.mark.parametrize("bins", [24, 30])
def test_further_bins_are_added_to_the_last(bins: int) -> None:
    masses = np.random.default_rng(0).random((7, bins)).astype(np.float32)
    common = common_bins(masses)
    assert common.shape == (7, 24)
    np.testing.assert_allclose(common.sum(axis=1), masses.sum(axis=1), rtol=1e-6)
    shared = min(bins, 23)
    np.testing.assert_array_equal(common[:, :shared], masses[:, :shared])


def test_distant_mass_begins_at_the_bin_of_its_distance() -> None:
    masses = np.eye(24)[None, :, :].reshape(24, 24)  # row i has all mass in bin i
    for place, first in enumerate(first_distances()[1:], start=1):
        assert distant_mass(masses, first).tolist() == [float(i >= place) for i in range(24)]


def test_distant_mass_inside_the_last_bin_is_not_known() -> None:
    masses = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])  # distances 0, 1, 2 and more
    assert distant_mass(masses, 2).tolist() == [0.0, 0.0]
    assert distant_mass(masses, 256).tolist() == [0.0, 0.0]  # the last bin is empty
    masses[0, 2] = 0.25
    assert distant_mass(masses, 2).tolist() == [0.25, 0.0]
    assert np.isnan(distant_mass(masses, 4)).all()


def test_errors_are_those_of_independent_groups() -> None:
    """One query per group: the error of a mean is that of independent values."""
    values = np.random.default_rng(1).standard_normal(16)
    group, weight = np.arange(16), np.full(16, 0.3)
    expected = values.std(ddof=1) / 4
    assert head_mean(values, weight, group).standard_error == pytest.approx(expected, rel=1e-12)
    found = bucket_means(values[:, None], weight, group.astype(float), np.full(16, 3), group)
    assert found.error[0, 0] == pytest.approx(expected, rel=1e-12)
    assert (found.bucket[0], found.count[0], found.groups[0]) == (3, 16, 16)


def test_few_groups_have_no_error() -> None:
    values, group, one = np.arange(6.0), np.array([0, 0, 1, 1, 2, 2]), np.ones(6)
    assert math.isnan(head_mean(values, one, group).standard_error)  # a head needs 4 groups
    three = bucket_means(values[:, None], one, values, np.zeros(6, int), group)
    assert math.isfinite(three.error[0, 0])  # a bucket needs 3
    two = bucket_means(values[:4, None], one[:4], values[:4], np.zeros(4, int), group[:4])
    assert math.isnan(two.error[0, 0])
    unknown = bucket_means(values[:, None], one, values, np.zeros(6, int), None)
    assert np.isnan([unknown.error[0, 0], unknown.groups[0]]).all()
    assert unknown.mean[0, 0] == 2.5


def test_weights_count_rows_several_times() -> None:
    """A row of weight 3 counts as three rows of its group. The scale of weights has no effect."""
    rng = np.random.default_rng(2)
    values, group = rng.standard_normal(60), rng.integers(0, 8, 60)
    bucket, weight = rng.integers(0, 3, 60), rng.integers(1, 5, 60)
    times = np.repeat(np.arange(60), weight)  # every row as often as its weight
    one = np.ones(len(times))
    for factor in (1.0, 1e-9, 1e9):
        found = head_mean(values, factor * weight, group)
        plain = head_mean(values[times], one, group[times])
        assert found.value == pytest.approx(plain.value, rel=1e-12)
        np.testing.assert_allclose(found.influences, plain.influences, rtol=1e-9, atol=1e-15)
        means = bucket_means(values[:, None], factor * weight, values, bucket, group)
        again = bucket_means(values[times, None], one, values[times], bucket[times], group[times])
        np.testing.assert_allclose(means.mean, again.mean, rtol=1e-12)
        np.testing.assert_allclose(means.error, again.error, rtol=1e-9)
        np.testing.assert_allclose(means.weight, factor * again.count, rtol=1e-12)


@pytest.mark.parametrize("distant_from", [1, 2, 4, 16])
@pytest.mark.parametrize("window", [None, 7, 18])
def test_far_mass_is_a_sum_over_keys(distant_from: int, window: int | None) -> None:
    """At every position, also where only some of tokens 0 to 3 are distant."""
    rng = np.random.default_rng(3)
    n = 40
    masses, sinks, expected = np.zeros((n, 24)), np.zeros(n), np.zeros(n)
    for p in range(n):
        first = 0 if window is None else max(0, p - window + 1)
        weights = {key: float(rng.random()) for key in range(first, p + 1)}
        total = sum(weights.values())
        for key, weight in weights.items():
            masses[p, (p - key).bit_length()] += weight / total
            sinks[p] += weight / total * (key < 4)
            expected[p] += weight / total * (key >= 4 and p - key >= distant_from)
    found = far_mass(masses, sinks, np.arange(n, dtype=float), distant_from)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (found >= 0).all()


def test_far_mass_inside_the_last_bin_is_not_known() -> None:
    masses = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    assert np.isnan(far_mass(masses, np.zeros(2), np.array([9.0, 9.0]), 4)).all()
