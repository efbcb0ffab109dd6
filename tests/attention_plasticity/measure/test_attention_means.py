"""Means of attention: bins, distant and far mass."""

import numpy as np
import pytest

from attention_plasticity.estimate import sizes
from attention_plasticity.measure.attention import common_bins, distant_mass, far_mass
from qk_dump.columns import SINK_TOKENS, first_distances


def test_the_bins_and_sinks_of_tables_are_those_of_dumps():
    assert list(sizes.DISTANCES) == first_distances()
    assert sizes.SINK_TOKENS == SINK_TOKENS


def test_further_bins_are_added_to_the_last():
    masses = np.random.default_rng(0).random((7, 30)).astype(np.float32)
    common = common_bins(masses)
    np.testing.assert_array_equal(common[:, :23], masses[:, :23])
    np.testing.assert_allclose(common.sum(axis=1), masses.sum(axis=1), rtol=1e-6)


def test_distant_mass_inside_the_last_bin_is_not_known():
    masses = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])  # distances 0, 1, 2 and more
    assert distant_mass(masses, 2).tolist() == [0.0, 0.0]
    assert distant_mass(masses, 256).tolist() == [0.0, 0.0]  # the last bin is empty
    masses[0, 2] = 0.25
    assert distant_mass(masses, 2).tolist() == [0.25, 0.0]
    unknown = distant_mass(masses, 4)
    assert np.isnan(unknown).all()
    assert np.isnan(far_mass(unknown, np.zeros(2), np.array([1.0, 9.0]), 4)).all()


@pytest.mark.parametrize("distant_from", [1, 2, 4, 16])
@pytest.mark.parametrize("window", [None, 7, 18])
def test_far_mass_is_a_sum_over_keys(distant_from, window):
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
    distant = distant_mass(masses, distant_from)
    found = far_mass(distant, sinks, np.arange(n, dtype=float), distant_from)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (found >= 0).all()
