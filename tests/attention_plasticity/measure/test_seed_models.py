"""Queries of a bucket as a Gaussian: moments against numpy, and covariances of any rank.

`test_plasticity.py` compares the three models with plain loops.
"""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.measure.seed_models import (
    BucketMoments,
    Gaussian,
    _covariance_factor,
    bucket_gaussians,
    bucket_moments,
    margin_and_deviation,
)

MODELS = ("positional", "full", "diagonal")


def covariance_of(gaussian: Gaussian) -> np.ndarray:
    factor = np.diag(gaussian.factor) if gaussian.factor.ndim == 1 else gaussian.factor
    return factor @ factor.T


def random_queries(d: int = 4, n: int = 90) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(d)
    p = rng.integers(0, 600, n).astype(float)
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + rng.standard_normal(d)
    return p, (p // 100).astype(np.int64), X


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("d", [1, 4])
def test_moments_equal_numpy_in_every_bucket(d: int, in_order: bool, dtype: type) -> None:
    p, b, X = random_queries(d)
    if in_order:
        order = np.argsort(b, kind="stable")
        p, b, X = p[order], b[order], X[order]
    X = X.astype(dtype)
    moments = bucket_moments(p, b, X)
    assert moments.bucket.tolist() == [1, 2, 3, 4, 5]
    for slot, j in enumerate(moments.bucket):
        members = X[b == j].astype(np.float64)
        assert moments.count[slot] == len(members)
        assert moments.position[slot] == pytest.approx(p[b == j].mean(), rel=1e-12)
        np.testing.assert_allclose(moments.mean[slot], members.mean(axis=0), rtol=1e-10)
        expected = np.cov(members, rowvar=False).reshape(d, d)
        np.testing.assert_allclose(moments.covariance[slot], expected, rtol=1e-9, atol=1e-12)


def test_bucket_zero_and_buckets_of_one_query_have_no_model() -> None:
    b = np.array([0, 0, 0, 2, 5, 5, 9])
    moments = bucket_moments(np.arange(7.0), b, np.random.default_rng(0).standard_normal((7, 3)))
    assert (moments.bucket.tolist(), moments.count.tolist()) == ([5], [2])
    none = bucket_moments(np.arange(2.0), np.array([0, 4]), np.ones((2, 3)))
    assert len(none.bucket) == 0
    for model in MODELS:
        assert bucket_gaussians(model, none, np.zeros(3), np.zeros(3), np.ones(3)) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_queries_have_no_covariance_at_all(dtype: type) -> None:
    X = np.tile(np.array([0.1, -0.7, 1e9], dtype), (7, 1))
    moments = bucket_moments(np.full(7, 0.1), np.ones(7, np.int64), X)
    assert not moments.covariance.any()
    assert (moments.mean == X[0]).all()
    assert moments.position[0] == 0.1


def test_covariance_survives_a_mean_a_million_times_the_spread() -> None:
    X = np.random.default_rng(1).standard_normal((5000, 3)) @ np.triu(np.ones((3, 3)))
    b, p = np.ones(5000, np.int64), np.zeros(5000)
    far = X + np.array([1e6, -3e6, 5e5])
    near = far - np.array([1e6, -3e6, 5e5])  # the same numbers after the offset rounded them
    np.testing.assert_allclose(
        bucket_moments(p, b, far).covariance, bucket_moments(p, b, near).covariance, rtol=1e-9
    )


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_the_ridge_is_a_trillionth_of_the_mean_variance(size: float) -> None:
    flat = np.zeros((1, 3, 3))
    flat[0, 1, 1] = 2.0 * size**2  # the third dimension has no variance of its own
    one = np.ones(1, np.int64)
    moments = BucketMoments(one, 2 * one, np.zeros(1), np.zeros((1, 3)), flat)
    (gaussian,) = bucket_gaussians("positional", moments, np.zeros(3), np.zeros(3), np.ones(3))
    assert covariance_of(gaussian)[2, 2] == pytest.approx(1e-12 * size**2, rel=1e-6)


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_margins_are_those_of_covariances_of_any_rank(rank: int) -> None:
    rng = np.random.default_rng(rank)
    root, mean, W = rng.standard_normal((6, rank)), rng.standard_normal(6), np.eye(6)[:, ::-1] - 1
    factor = _covariance_factor(root @ root.T)
    np.testing.assert_allclose(factor @ factor.T, root @ root.T, atol=1e-12)
    assert not np.triu(factor, 1).any()
    margin, deviation = margin_and_deviation(W, Gaussian(mean, factor))
    np.testing.assert_allclose(margin, W @ mean)
    np.testing.assert_allclose(deviation**2, ((W @ root) ** 2).sum(axis=1), atol=1e-12)
