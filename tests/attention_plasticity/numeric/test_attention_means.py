"""Means of attention: bins, distant mass, and errors of equal and of few groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_plasticity.numeric.attention_means import (
    bucket_means,
    common_bins,
    distant_mass,
    head_mean,
)
from attention_plasticity.numeric.sizes import DISTANCES
from qk_dump.attention_columns import first_distances


def test_the_bins_of_tables_are_those_of_dumps() -> None:
    assert list(DISTANCES) == first_distances()


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
    group = np.arange(16)
    expected = values.std(ddof=1) / 4
    assert head_mean(values, group).standard_error == pytest.approx(expected, rel=1e-12)
    found = bucket_means(values[:, None], group.astype(float), np.full(16, 3), group)
    assert found.error[0, 0] == pytest.approx(expected, rel=1e-12)
    assert (found.bucket[0], found.count[0], found.groups[0]) == (3, 16, 16)


def test_few_groups_have_no_error() -> None:
    values, group = np.arange(6.0), np.array([0, 0, 1, 1, 2, 2])
    assert math.isnan(head_mean(values, group).standard_error)  # a head needs 4 groups
    three = bucket_means(values[:, None], values, np.zeros(6, int), group)
    assert math.isfinite(three.error[0, 0])  # a bucket needs 3
    two = bucket_means(values[:4, None], values[:4], np.zeros(4, int), group[:4])
    assert math.isnan(two.error[0, 0])
    unknown = bucket_means(values[:, None], values, np.zeros(6, int), None)
    assert np.isnan([unknown.error[0, 0], unknown.groups[0]]).all()
    assert unknown.mean[0, 0] == 2.5
