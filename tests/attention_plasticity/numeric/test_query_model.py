"""Queries of a bucket as a Gaussian: moments against numpy, the three models against their Σ."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.numeric.query_model import (
    BucketMoments,
    Gaussian,
    bucket_gaussians,
    bucket_moments,
    covariance_factor,
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
    assert moments.bucket.tolist() == [5]
    assert moments.count.tolist() == [2]
    none = bucket_moments(np.arange(2.0), np.array([0, 4]), np.ones((2, 3)))
    assert len(none.bucket) == 0
    for model in MODELS:
        assert bucket_gaussians(model, none, np.zeros(3), np.zeros(3), np.ones(3)) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_queries_have_no_covariance_at_all(dtype: type) -> None:
    X = np.tile(np.array([0.1, -0.7, 1e9], dtype), (7, 1))
    moments = bucket_moments(np.full(7, 0.1), np.ones(7, np.int64), X)
    assert (moments.covariance == 0).all()
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


def test_full_model_is_the_bucket_itself() -> None:
    moments = bucket_moments(*random_queries())
    nothing = np.full(4, np.nan)
    for slot, gaussian in enumerate(bucket_gaussians("full", moments, nothing, nothing, nothing)):
        np.testing.assert_allclose(gaussian.mean, moments.mean[slot])
        np.testing.assert_allclose(covariance_of(gaussian), moments.covariance[slot], atol=1e-12)


def test_diagonal_model_drops_correlations() -> None:
    moments = bucket_moments(*random_queries())
    nothing = np.full(4, np.nan)
    models = bucket_gaussians("diagonal", moments, nothing, nothing, nothing)
    for slot, gaussian in enumerate(models):
        expected = np.diag(np.diag(moments.covariance[slot]))
        np.testing.assert_allclose(gaussian.mean, moments.mean[slot])
        np.testing.assert_allclose(covariance_of(gaussian), expected, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_positional_model_joins_the_regression_and_the_semantic_block(d: int) -> None:
    moments = bucket_moments(*random_queries(d))
    alpha, beta, variance = (np.arange(d) + x for x in (0.5, 0.01, 3.0))
    models = bucket_gaussians("positional", moments, alpha, beta, variance)
    for slot, gaussian in enumerate(models):
        expected = np.zeros((d, d))
        expected[0, 0] = 3.0
        expected[1:, 1:] = moments.covariance[slot][1:, 1:]
        assert gaussian.mean[0] == pytest.approx(0.5 + 0.01 * moments.position[slot])
        np.testing.assert_allclose(gaussian.mean[1:], moments.mean[slot][1:])
        np.testing.assert_allclose(covariance_of(gaussian), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_the_ridge_is_a_trillionth_of_the_mean_variance(size: float) -> None:
    flat = np.zeros((1, 3, 3))
    flat[0, 1, 1] = 2.0 * size**2  # the third dimension has no variance of its own
    one = np.ones(1, np.int64)
    moments = BucketMoments(one, 2 * one, np.zeros(1), np.zeros((1, 3)), flat)
    (gaussian,) = bucket_gaussians("positional", moments, np.zeros(3), np.zeros(3), np.ones(3))
    assert covariance_of(gaussian)[2, 2] == pytest.approx(1e-12 * size**2, rel=1e-6)


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_factor_reproduces_covariances_of_any_rank(rank: int) -> None:
    root = np.random.default_rng(rank).standard_normal((6, rank))
    covariance = root @ root.T
    factor = covariance_factor(covariance)
    np.testing.assert_allclose(factor @ factor.T, covariance, atol=1e-12)
