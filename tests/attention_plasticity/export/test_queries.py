"""Moments of queries against numpy's own covariance, SVD, and repeated samples."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.export.queries import query_moments, top_direction


def sample(n: int = 300, d: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors, unequal weights, and groups of rows."""
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + 3).astype(np.float32)
    return vectors, rng.uniform(1, 20, n), rng.integers(0, 16, n)


def test_unequal_weights_agree_with_numpy() -> None:
    X, weight, group = sample()
    found = query_moments(X, weight, group)
    exact = X.astype(np.float64)
    assert found.mean == pytest.approx(np.average(exact, axis=0, weights=weight), rel=1e-12)
    assert found.covariance == pytest.approx(np.cov(exact.T, aweights=weight), rel=1e-10)
    products = sum(w * np.outer(x, x) for w, x in zip(weight, exact, strict=True)) / weight.sum()
    assert found.products == pytest.approx(products, rel=1e-10)


def test_errors_come_from_leaving_out_each_group() -> None:
    X, weight, group = sample()
    group[group > 11] = 3  # twelve groups
    errors = query_moments(X, weight, group).errors
    exact, whole = X.astype(np.float64), np.ones(len(X), bool)
    statistics = {
        "mean_relative_error": lambda rows: np.average(exact[rows], axis=0, weights=weight[rows]),
        "covariance_relative_error": lambda rows: np.cov(exact[rows].T, aweights=weight[rows]),
    }
    for name, statistic in statistics.items():
        others = np.array([statistic(group != number) for number in range(12)])
        squares = 11 / 12 * ((others - others.mean(axis=0)) ** 2).sum(axis=0)
        expected = np.sqrt(squares.sum()) / np.linalg.norm(statistic(whole))
        assert errors[name] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("group", [None, np.arange(300) % 3])
def test_errors_are_unknown_without_enough_groups(group: np.ndarray | None) -> None:
    X, weight, _ = sample()
    found = query_moments(X, weight, group)
    assert np.isnan(list(found.errors.values())).all()


def test_top_direction_is_the_first_singular_vector_towards_the_mean() -> None:
    X, weight, group = sample()
    for sign in (1, -1):
        direction, second = top_direction(query_moments(sign * X, weight, group))
        _, values, rows = np.linalg.svd(np.sqrt(weight)[:, None] * X.astype(np.float64))
        assert abs(direction @ rows[0]) == pytest.approx(1.0, abs=1e-12)
        assert direction @ (sign * X).mean(axis=0) > 0
        assert second == pytest.approx(values[1] / values[0], rel=1e-9)


def test_moments_do_not_depend_on_a_large_mean() -> None:
    X, weight, group = sample()
    near, far = (query_moments(X.astype(np.float64) + by, weight, group) for by in (0.0, 1e6))
    assert far.covariance == pytest.approx(near.covariance, rel=1e-6)
