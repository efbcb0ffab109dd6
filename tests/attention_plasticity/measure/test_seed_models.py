"""Queries of a bucket as a Gaussian: moments against numpy.

`reference.py` has the three models in plain loops.
"""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.measure import seed_scores
from attention_plasticity.measure.seed_scores import BucketSums
from attention_plasticity.statistics import regress


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_queries_have_no_covariance_at_all(dtype: type) -> None:
    X = np.tile(np.array([0.1, -0.7, 1e9], dtype), (7, 1))
    sums = BucketSums.of(np.full(7, 0.1), np.ones(7, np.int64), X)
    moments = sums.moments()
    assert not moments.covariance.any()
    assert (moments.mean == X[0]).all()
    assert moments.position[0] == 0.1


def test_moments_equal_numpy_in_every_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in several blocks of rows."""
    monkeypatch.setattr(seed_scores, "LARGE_BLOCK", 4 * 5)
    rng = np.random.default_rng(4)
    p, X = rng.integers(0, 600, 90).astype(float), rng.standard_normal((90, 4))
    moments = BucketSums.of(p, (p // 100).astype(np.int64), X).moments()
    assert moments.bucket.tolist() == [1, 2, 3, 4, 5]
    for slot, j in enumerate(moments.bucket):
        members = p // 100 == j
        assert moments.count[slot] == members.sum()
        assert moments.position[slot] == pytest.approx(p[members].mean(), rel=1e-12)
        np.testing.assert_allclose(moments.mean[slot], X[members].mean(axis=0), rtol=1e-10)
        expected = np.cov(X[members], rowvar=False)
        np.testing.assert_allclose(moments.covariance[slot], expected, rtol=1e-9, atol=1e-12)


def test_covariance_survives_a_mean_a_million_times_the_spread() -> None:
    X = np.random.default_rng(1).standard_normal((5000, 3)) @ np.triu(np.ones((3, 3)))
    b, p = np.ones(5000, np.int64), np.zeros(5000)
    far = X + np.array([1e6, -3e6, 5e5])
    near = far - np.array([1e6, -3e6, 5e5])  # the same numbers after the offset rounded them
    np.testing.assert_allclose(
        *(BucketSums.of(p, b, X).moments().covariance for X in (far, near)), rtol=1e-9
    )


def test_the_regression_of_buckets_is_that_of_all_queries():
    rng = np.random.default_rng(6)
    p, X = rng.integers(0, 600, 90).astype(float), rng.standard_normal((90, 4))
    X[:, 2] = 0.1
    X += 1e3 + np.outer(p, [0.01, 0.0, 0.0, -0.02])
    found, expected = BucketSums.of(p, p.astype(np.int64) // 100, X).fit, regress(p, X)
    for name in ("mean", "alpha", "beta", "ss_total", "ss_position", "mean_square"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    X[:, 2] = 0.1
    assert BucketSums.of(p, p.astype(np.int64) // 100, X).fit.r2[2] == 0
