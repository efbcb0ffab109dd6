"""Regression, rotation and shape of residuals, each against scipy or its defining equation."""

import math

import numpy as np
import pytest

from attention_plasticity import (
    compute_noise_normality_stats,
    fit_multioutput_linear_regressor,
    make_pos_rotation,
    orientation_from_keys,
)
from attention_plasticity.statistics import reflection_vector, residual_variance, rotate


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fit_survives_a_mean_a_million_times_the_spread(dtype):
    rng = np.random.default_rng(1)
    t = np.sort(rng.integers(0, 1000, 4000)).astype(float)
    X = rng.standard_normal((4000, 3)) + np.outer(t / 1000, [0.5, 1.0, 2.0])
    X = (X + 1e6 * np.array([1.0, -3.0, 0.7])).astype(dtype)
    centred = X.astype(np.float64) - X[0].astype(np.float64)
    fit, expected = (fit_multioutput_linear_regressor(t, rows) for rows in (X, centred))
    far = fit_multioutput_linear_regressor(1e9 + t, centred)
    for one in (fit, far):
        np.testing.assert_allclose(one.beta, expected.beta, rtol=1e-9)
        np.testing.assert_allclose(one.r2, expected.r2, rtol=1e-9)


@pytest.mark.parametrize("position", [0.0, 0.1, 12345.0])
def test_one_position_explains_nothing(position):
    X = np.random.default_rng(3).standard_normal((1500, 3))
    fit = fit_multioutput_linear_regressor(np.full(1500, position), X)
    assert not fit.beta.any()
    assert not fit.r2.any()
    assert fit.r2_mean == 0
    np.testing.assert_allclose(fit.alpha, X.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e30, 1e-30])
def test_constant_dimension_has_no_slope_and_no_r2(value, dtype):
    t = np.random.default_rng(4).permutation(3000).astype(float)
    X = np.stack([np.full(3000, value), t], axis=1).astype(dtype)
    fit = fit_multioutput_linear_regressor(t, X)
    assert (fit.beta[0], fit.r2[0], fit.alpha[0]) == (0, 0, X[0, 0])
    assert fit.r2[1] == pytest.approx(1.0)


def test_orientation_is_the_sign_of_the_mean_of_bucket_means():
    b = np.array([4, 0, 0, 0, 4])
    X = np.array([[5.0, -1, 0], [-1, -1, 0], [-1, -1, 0], [-1, 2, 0], [3, -9, 0]])
    # dimension 0: mean of all rows positive too; dimension 1: bucket means 0 and -5
    assert orientation_from_keys(b, X).tolist() == [1.0, -1.0, 1.0]
    lopsided = np.r_[np.full(90, -1.0), np.full(10, 5.0)][:, None]  # overall mean -0.4
    assert orientation_from_keys(np.r_[np.zeros(90), np.ones(10)], lopsided).tolist() == [1.0]
    assert orientation_from_keys(np.r_[np.zeros(90), np.ones(10)], -lopsided).tolist() == [-1.0]


NOISE = np.random.default_rng(10).standard_normal(6)
E1 = np.eye(6)[0]
BETAS = {
    "general": NOISE,
    "e1": E1,
    "minus e1": -E1,
    "near e1": E1 + 1e-9 * NOISE,
    "very near e1": E1 + 1e-15 * NOISE,
    "near minus e1": -E1 + 1e-9 * NOISE,
    "across e1": np.eye(6)[3],
    "tiny": 1e-300 * NOISE,
    "huge": 1e300 * NOISE,
    "uneven": np.array([1e-200, 0, 1e200, 0, 1, 0]),
    "one dimension": np.array([3.0]),
    "one dimension, falling": np.array([-3.0]),
}


@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
def test_rotation_is_a_reflection_taking_beta_to_the_first_axis(beta):
    H = make_pos_rotation(beta)
    d = len(beta)
    unit = beta / np.abs(beta).max()
    unit /= np.linalg.norm(unit)
    np.testing.assert_allclose(H, H.T, atol=1e-15)
    np.testing.assert_allclose(H @ H.T, np.eye(d), atol=1e-14)
    np.testing.assert_allclose(H @ unit, np.eye(d)[0], atol=1e-14)
    assert (make_pos_rotation(np.zeros(d)) == np.eye(d)).all()


@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
def test_rank_one_rotation_equals_the_matrix_product(beta):
    rng = np.random.default_rng(11)
    d = len(beta)
    signs = rng.choice([-1.0, 1.0], d)
    u = reflection_vector(beta)
    for dtype in (np.float32, np.float64):
        X = (rng.standard_normal((900, d)) + 3).astype(dtype)
        before = X.copy()
        expected = X.astype(np.float64) @ np.diag(signs) @ make_pos_rotation(beta)
        np.testing.assert_allclose(rotate(X, 0.0, signs, u), expected, atol=1e-13)
        assert (before == X).all()


def residuals_and_variance(n, d, seed):
    residuals = np.random.default_rng(seed).standard_t(4, (n, d))
    residuals -= residuals.mean(axis=0)
    return residuals, (residuals**2).sum(axis=0) / (n - 2)


def test_dimensions_without_variance_take_no_part_in_the_medians():
    residuals, variance = residuals_and_variance(80, 5, seed=2)
    dead = np.insert(residuals, 2, 0.0, axis=1), np.insert(variance, 2, 0.0)
    expected = compute_noise_normality_stats(residuals, variance)
    assert compute_noise_normality_stats(*dead) == pytest.approx(expected, rel=1e-12)
    variance[1:] = 0.0
    for d in (1, 5):
        found = compute_noise_normality_stats(residuals[:, :d], variance[:d])
        assert all(map(math.isnan, found))


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_rounding_noise_is_told_from_variance_by_the_size_of_the_queries(size):
    noise = np.random.default_rng(14).standard_normal((1, 90))
    assert residual_variance(1e-16 * size * noise, size**2)[0] == 0
    assert residual_variance(1e-13 * size * noise, size**2)[0] > 0
