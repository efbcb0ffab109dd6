"""KS statistics, p-values, skewness and kurtosis, against scipy."""

import numpy as np
import pytest
from scipy import stats

from attention_plasticity.estimate.normality import ks_normal_statistics, ks_pvalues

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
def test_statistic_equals_scipy(sample):
    scale = np.array([1.0, 1.3, 0.7])
    for n in (1, 3, 4, 17, 399, 400, 1000, 20_000):
        columns = sample(np.random.default_rng(n), n)
        ordered = np.sort(columns / scale[:, None], axis=1)
        level, rank = stats.norm.cdf(ordered), np.arange(n)
        distance = np.maximum((rank + 1) / n - level, level - rank / n)
        found = ks_normal_statistics(columns, scale)
        np.testing.assert_allclose(found, distance.max(axis=1), rtol=0, atol=1e-14)
        if n in (17, 400):
            known = [stats.kstest(column, "norm", mode="asymp").statistic for column in ordered]
            np.testing.assert_allclose(found, known, rtol=0, atol=1e-15)


def test_chosen_columns_keep_their_own_scale():
    columns = np.random.default_rng(1).standard_normal((9, 40_000)) * np.arange(1, 10)[:, None]
    chosen = np.array([7, 1, 4, 8, 2])  # more than fit one chunk, in any order
    found = ks_normal_statistics(columns, chosen + 1.0, chosen)
    expected = [stats.kstest(columns[i] / (i + 1), "norm", mode="asymp").statistic for i in chosen]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("n", [3, 10, 50, 399, 400, 401, 999, 2500, 10_000])
def test_pvalues_equal_kstwo_in_body_and_tail(n):
    x = np.concatenate([np.linspace(0.05, 3.2, 32), np.linspace(3.3, 8.0, 4)])
    D = np.clip(x / np.sqrt(n), 0.5 / n, 1.0)
    p = ks_pvalues(D, n)
    np.testing.assert_allclose(p, stats.kstwo.sf(D, n), rtol=0, atol=1e-6 if n < 400 else 5e-5)
    assert ((p >= 0) & (p <= 1)).all()
    assert ks_pvalues(np.array([0.5 / n, 1.0]), n) == pytest.approx([1.0, 0.0], abs=5e-5)
