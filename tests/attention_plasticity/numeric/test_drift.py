"""How far vectors drift with position: plain sums, weights, errors and bias of groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_plasticity.numeric.drift import Drift, TurnedRows, drift
from reference_drift import plain_shares


def random_rows(
    n: int = 300, d: int = 5, groups: int = 12, slope: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Positions, vectors that drift and differ between groups, weights, and groups."""
    rng = np.random.default_rng(seed)
    t, group = rng.integers(0, 1000, n).astype(float), rng.integers(0, groups, n)
    X = rng.standard_normal((n, d)) + rng.standard_normal(d) + slope * np.outer(t / 1000, range(d))
    X += 0.5 * rng.standard_normal((groups, d))[group]
    return t, X, rng.uniform(0.2, 3.0, n), group


def values(found: Drift) -> list[float]:
    return [estimate.value for estimate in found]


@pytest.mark.parametrize("slope", [0.0, 0.3, 3.0])
def test_shares_equal_plain_sums(slope: float) -> None:
    t, X, w, group = random_rows(slope=slope)
    assert values(drift(t, X, w, group)) == pytest.approx(plain_shares(t, X, w), rel=1e-9)
    alone = drift(t, X, w, None)
    assert values(alone) == pytest.approx(plain_shares(t, X, w), rel=1e-9)
    assert all(np.isnan(one.influences).all() and one.groups == 0 for one in alone)
    assert all(math.isnan(one.bias) for one in alone)


def test_errors_and_bias_are_those_of_an_exact_jackknife() -> None:
    t, X, w, group = random_rows(n=4000, groups=16, seed=1)
    found = drift(t, X, w, group)
    without = np.array(
        [plain_shares(t[group != g], X[group != g], w[group != g]) for g in range(16)]
    )
    for place, estimate in enumerate(found):
        deviation = without[:, place] - without[:, place].mean()
        error = math.sqrt(15 / 16 * (deviation**2).sum())
        bias = 15 * (without[:, place].mean() - estimate.value)
        assert estimate.standard_error == pytest.approx(error, rel=0.1)  # it is linear
        assert estimate.bias == pytest.approx(bias, rel=0.15)


def test_influences_and_bias_are_derivatives_of_plain_sums() -> None:
    """First and second differences when the weights of one group change."""
    t, X, w, group = random_rows(groups=6)
    found, step = drift(t, X, w, group), 1e-3
    middle = np.array(plain_shares(t, X, w))
    bias = np.zeros(2)
    for g in range(6):
        more, less = (
            np.array(plain_shares(t, X, np.where(group == g, w * (1 + sign * step), w)))
            for sign in (1, -1)
        )
        expected = math.sqrt(6 / 5) * (more - less) / (2 * step)
        influences = [estimate.influences[g] for estimate in found]
        np.testing.assert_allclose(influences, expected, rtol=1e-4, atol=1e-8)
        bias += 6 / 5 * (more + less - 2 * middle) / (2 * step**2)
    np.testing.assert_allclose([estimate.bias for estimate in found], bias, rtol=1e-4)


def test_the_bias_is_that_of_many_samples() -> None:
    """Vectors without drift: R² is far from 0 in a small sample, and its bias accounts for it."""
    found = [drift(*random_rows(n=96, slope=0.0, seed=seed)) for seed in range(200)]
    r2 = np.array([one.r2.value for one in found])
    bias = np.array([one.r2.bias for one in found])
    assert r2.mean() > 0.008
    assert abs((r2 - bias).mean()) < 3 * (r2 - bias).std() / math.sqrt(200)


def test_weights_count_rows_several_times_and_scales_have_no_effect() -> None:
    t, X, _, group = random_rows(n=60)
    times = np.random.default_rng(3).integers(1, 5, 60)
    rows = np.repeat(np.arange(60), times)
    plain = drift(t[rows], X[rows], np.ones(len(rows)), group[rows])
    for factor, size in ((1.0, 1.0), (1e-9, 1e30), (1e9, 1e-30)):
        found = drift(7 + 3 * t, size * X, factor * times, group)
        for one, other in zip(found, plain, strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-9)
            assert one.bias == pytest.approx(other.bias, rel=1e-6)
            np.testing.assert_allclose(one.influences, other.influences, rtol=1e-6, atol=1e-12)


def test_nothing_to_explain() -> None:
    t, X, w, group = random_rows()
    one_position = drift(np.full(len(t), 9.0), X, w, group)
    assert (one_position.r2.value, one_position.r2.standard_error) == (0.0, 0.0)
    rng = np.random.default_rng(0)
    constant = np.full((300, 4), 3.0) + 1e-7 * rng.standard_normal((300, 4))
    rounded = drift(t, constant.astype(np.float32), w, group)
    assert rounded.r2.value == rounded.r2.bias == 0.0
    assert rounded.mean_share.value == pytest.approx(1.0)
    zero = drift(t, np.zeros((300, 4)), w, group)
    assert zero.r2.value == 0.0
    assert math.isnan(zero.mean_share.value)


def test_few_groups_have_neither_error_nor_bias() -> None:
    t, X, w, group = random_rows(groups=3)
    for estimate in drift(t, X, w, group):
        assert estimate.groups == 3
        assert math.isnan(estimate.standard_error)
        assert math.isnan(estimate.bias)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_turned_vectors_drift_as_the_vectors_before(dtype: type[np.floating]) -> None:
    """The sums of every part are turned back; plain sums are of the rows before."""
    t, X, w, group = random_rows(d=6, groups=8, seed=3)
    order = np.argsort(t // 250, kind="stable")
    t, X, w, group = t[order], X[order] + 5.0, w[order], group[order]
    turned, parts = X.copy(), []
    for part in range(4):
        inside = np.flatnonzero(t // 250 == part)
        rows = slice(int(inside[0]), int(inside[-1]) + 1)
        turn = np.linalg.qr(np.random.default_rng(part).standard_normal((6, 6)))[0]
        turned[rows] = X[rows] @ turn
        forward, back = (lambda Y, R=turn: Y @ R), (lambda Y, R=turn: Y @ R.T)
        parts.append(TurnedRows(rows, forward, back))
    precise = dtype is np.float64
    found = drift(t, turned.astype(dtype), w, group, parts)
    assert values(found) == pytest.approx(plain_shares(t, X, w), rel=1e-9 if precise else 1e-5)
    for one, other in zip(found, drift(t, X, w, group), strict=True):
        rtol = 1e-7 if precise else 1e-3
        np.testing.assert_allclose(one.influences, other.influences, rtol=rtol, atol=rtol * 1e-2)
        assert one.bias == pytest.approx(other.bias, rel=1e-7 if precise else 1e-3)
