"""KS statistics and p-values, against scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from attention_plasticity.numeric.normality import (
    ks_normal_pvalues,
    ks_normal_statistics,
    ks_pvalues,
)

SAMPLES = {
    "gaussian": lambda rng, n: rng.standard_normal((3, n)),
    "heavy tails": lambda rng, n: rng.standard_cauchy((3, n)),
    "far beyond the bins": lambda rng, n: (
        rng.choice([-1.0, 1.0], (3, n)) * rng.uniform(5, 50, (3, n))
    ),
    "all above": lambda rng, n: rng.uniform(6, 9, (3, n)),
    "all below": lambda rng, n: -rng.uniform(6, 9, (3, n)),
    "ties": lambda rng, n: np.round(rng.standard_normal((3, n)), 1),
    "one value": lambda rng, n: np.full((3, n), 0.3),
    "on bin edges": lambda rng, n: rng.integers(-10, 11, (3, n)) / 2.0,
    "narrow": lambda rng, n: 1e-6 * rng.standard_normal((3, n)),
    "skewed": lambda rng, n: rng.standard_gamma(2.0, (3, n)) - 2.0,
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_statistic_equals_scipy(
    sample: Callable[[np.random.Generator, int], np.ndarray],
) -> None:
    scale = np.array([1.0, 1.3, 0.7])
    for n in (1, 3, 4, 17, 200, 999, 1000, 7001, 60_000):
        columns = sample(np.random.default_rng(n), n)
        scaled = columns / scale[:, None]
        expected = [stats.kstest(column, "norm").statistic for column in scaled]
        found = ks_normal_statistics(columns, scale)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15, err_msg=f"n = {n}")


def test_chosen_columns_keep_their_own_scale() -> None:
    columns = np.random.default_rng(1).standard_normal((9, 40_000)) * np.arange(1, 10)[:, None]
    chosen = np.array([7, 1, 4, 8, 2])  # more than fit one chunk, in any order
    found = ks_normal_statistics(columns, chosen + 1.0, chosen)
    expected = [stats.kstest(columns[i] / (i + 1), "norm").statistic for i in chosen]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "n",
    [1, 3, 5, 10, 50, 140, 141, 200, 499, 500, 999, 1000, 1001, 1500, 2500, 5000, 10_000, 50_000],
)
def test_pvalues_equal_kstwo_in_body_and_tail(n: int) -> None:
    x = np.concatenate([np.linspace(0.05, 3.2, 64), np.linspace(3.3, 8.0, 6)])
    D = np.clip(x / np.sqrt(n), 0.5 / n, 1.0)
    p = ks_pvalues(D, n)
    atol = 4e-6 if 140 < n < 500 else 1e-6  # there scipy has an expansion, and we do not
    np.testing.assert_allclose(p, stats.kstwo.sf(D, n), rtol=0, atol=atol)
    assert ((p >= 0) & (p <= 1)).all()


@pytest.mark.parametrize("n", [3, 1000, 50_000])
def test_pvalues_at_the_ends(n: int) -> None:
    assert ks_pvalues(np.array([0.5 / n, 1.0]), n) == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("n", [1000, 20_000])
def test_pvalues_fall_as_the_distance_grows(n: int) -> None:
    p = ks_pvalues(np.linspace(0.3, 7.0, 4000) / np.sqrt(n), n)
    assert (np.diff(p) <= 1e-9).all()


@pytest.mark.parametrize("n", [20, 999, 1000, 30_000])
def test_whole_test_equals_kstest(n: int) -> None:
    columns = np.random.default_rng(1).standard_t(12, (6, n))
    expected = [stats.kstest(x, "norm").pvalue for x in columns]
    np.testing.assert_allclose(ks_normal_pvalues(columns, np.ones(6)), expected, rtol=0, atol=1e-6)
