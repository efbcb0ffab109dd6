"""Sums over vectors and positions: R², means and slopes, from plain rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.estimate.moments import Moments, product
from attention_plasticity.estimate.quantity import MIN_GROUPS


class Rows(NamedTuple):
    t: np.ndarray  # (n,)
    X: np.ndarray  # (n, d)
    w: np.ndarray  # (n,)
    group: np.ndarray  # (n,)

    def without(self, group):
        return Rows(*(part[self.group != group] for part in self))


def rows_of(seed, slope=0.005, groups=6, per_group=40, width=5):
    """Vectors with a mean, an offset of every group, and a slope along one axis."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(rng.permutation(16)[:groups], per_group))
    t = rng.integers(0, 500, len(group)).astype(float)
    X = rng.standard_normal(width) + 0.3 * rng.standard_normal((16, width))[group]
    X = X + rng.standard_normal((len(group), width)) + slope * np.outer(t, np.ones(width))
    return Rows(t, X, rng.uniform(0.5, 2.0, len(group)), group)


def plain_slope(rows):
    """(d,) a line per dimension by least squares."""
    root = np.sqrt(rows.w)
    design = np.stack([root, root * rows.t], axis=1)
    return np.linalg.lstsq(design, root[:, None] * rows.X, rcond=None)[0][1]


def plain_r2(rows):
    t, X, w, _ = rows
    line = X - np.outer(t, plain_slope(rows))
    left = np.average((line - np.average(line, axis=0, weights=w)) ** 2, axis=0, weights=w)
    total = np.average((X - np.average(X, axis=0, weights=w)) ** 2, axis=0, weights=w)
    return float(1 - left.sum() / total.sum())


def plain_mean_share(rows):
    mean = np.average(rows.X, axis=0, weights=rows.w)
    return float(mean @ mean / np.average((rows.X**2).sum(axis=1), weights=rows.w))


def assert_jackknife(found, plain, rows):
    """Bias and error of the textbook, from the value of the rows without each group."""
    numbers = np.unique(rows.group).tolist()
    left = [plain(rows.without(group)) for group in numbers]
    n, mean = len(left), sum(left) / len(left)
    error = math.sqrt((n - 1) / n * sum((value - mean) ** 2 for value in left))
    expected = plain(rows)
    if n >= MIN_GROUPS:
        expected -= (n - 1) * (mean - expected)
    assert found.value == pytest.approx(expected, rel=1e-7, abs=1e-10)
    assert found.groups == n
    if n >= MIN_GROUPS:
        assert found.standard_error == pytest.approx(error, rel=1e-6)
        assert not found.influences[np.setdiff1d(np.arange(16), numbers)].any()
    else:
        assert math.isnan(found.standard_error)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    slope=st.sampled_from([0.0, 0.002, 0.05]),
    groups=st.integers(2, 9),
    width=st.integers(1, 6),
)
def test_values_and_errors_equal_fits_from_rows(seed, slope, groups, width):
    rows = rows_of(seed, slope, groups, 8, width)
    found = Moments.of(*rows)
    assert_jackknife(found.r2, plain_r2, rows)
    assert_jackknife(found.mean_share, plain_mean_share, rows)
    np.testing.assert_allclose(found.slopes[0], plain_slope(rows), rtol=1e-7, atol=1e-12)
    for group in np.unique(rows.group):
        left = rows.without(group)
        np.testing.assert_allclose(
            found.means[1 + group], np.average(left.X, axis=0, weights=left.w), rtol=1e-9
        )
        np.testing.assert_allclose(
            found.slopes[1 + group], plain_slope(left), rtol=1e-7, atol=1e-12
        )


def values(found):
    quantities = (found.r2, found.mean_share)
    return [number for one in quantities for number in (one.value, one.standard_error)]


def test_one_position():
    t, X, w, group = rows_of(7)
    still = Moments.of(np.full(len(t), 0.1), X, w, group)
    assert not still.moves
    assert (still.r2.value, still.r2.standard_error) == (0.0, 0.0)
    assert np.isnan(still.slopes).all()
    assert math.isnan(product(still.slopes, still.means, still.present).value)
    one_moves = Moments.of(np.where(group == group[0], t, 9.0), X, w, group)
    assert np.isnan(one_moves.slopes[1 + group[0]]).all()  # the rest is at one position
    assert np.isfinite(one_moves.slopes[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_vectors(dtype):
    t, X, w, group = rows_of(8)
    constant = np.full_like(X, 3.3).astype(dtype)
    rounded = constant + np.finfo(dtype).eps * np.random.default_rng(0).standard_normal(X.shape)
    for one in (constant, rounded.astype(dtype)):
        found = Moments.of(t, one, w, group)
        assert not found.varies
        assert (found.r2.value, found.r2.standard_error) == (0.0, 0.0)
        assert found.mean_share.value == pytest.approx(1.0)
    zero = Moments.of(t, np.zeros_like(X), w, group)
    assert zero.r2.value == 0.0
    assert math.isnan(zero.mean_share.value)


def test_float32_vectors_far_from_zero_have_their_own_variance():
    t, X, w, group = rows_of(12)
    exact = values(Moments.of(t, X + 1000.0, w, group))
    single = values(Moments.of(t, (X + 1000.0).astype(np.float32), w, group))
    assert single == pytest.approx(exact, rel=2e-3, abs=1e-6)
