"""Axis of the drift, its correlation with position, and components: against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_plasticity.numeric.drift_geometry import GroupMoments, slope_along_mean
from attention_plasticity.numeric.errors.text_groups import MIN_GROUPS

WIDTH = 5
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # t, X, weight, group


def rows_of(
    seed: int, slope: float, groups: int = 6, per_group: int = 40, width: int = WIDTH
) -> Rows:
    """Vectors with a mean, an offset of every group, and a slope along one axis."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), per_group)
    t = rng.integers(0, 500, len(group)).astype(np.float64)
    axis = np.ones(width) / math.sqrt(width)
    X = 3.0 + 0.3 * rng.standard_normal((groups, width))[group]
    X = X + rng.standard_normal((len(group), width)) + slope * np.multiply.outer(t, axis)
    return t, X, rng.uniform(0.5, 2.0, len(group)), group


def moments(rows: Rows) -> GroupMoments:
    return GroupMoments.of(*rows)


def plain_correlation(rows: Rows) -> float:
    """Fit the axis again from the rows of the other groups, and project row by row."""
    t, X, w, group = rows
    scores = np.empty(len(t))
    for one in np.unique(group):
        others = group != one
        mean_x = np.average(X[others], axis=0, weights=w[others])
        mean_t = np.average(t[others], weights=w[others])
        axis = np.zeros(X.shape[1])
        for row in np.flatnonzero(others):
            axis += w[row] * (X[row] - mean_x) * (t[row] - mean_t)
        axis /= np.linalg.norm(axis)
        for row in np.flatnonzero(group == one):
            scores[row] = axis @ (X[row] - mean_x)
    covariance = np.cov(scores, t, aweights=w)
    return float(covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1]))


def plain_slope_product(moving: Rows, fixed: Rows) -> float:
    """A line per dimension by least squares, times the mean of the other vectors."""
    t, X, w, _ = moving
    root = np.sqrt(w)
    design = np.stack([root, root * t], axis=1)
    slope = np.linalg.lstsq(design, root[:, None] * X, rcond=None)[0][1]
    return float(slope @ np.average(fixed[1], axis=0, weights=fixed[2]))


def without(rows: Rows, group: int) -> Rows:
    kept = rows[3] != group
    t, X, w, groups = (part[kept] for part in rows)
    return t, X, w, groups


def plain_error(values: list[float]) -> float:
    """The formula of the jackknife, from the values without each group."""
    mean, n = sum(values) / len(values), len(values)
    return math.sqrt((n - 1) / n * sum((value - mean) ** 2 for value in values))


@pytest.mark.parametrize("slope", [0.0, 0.002, 0.05])
def test_the_correlation_and_its_error_equal_fits_from_rows(slope: float) -> None:
    rows = rows_of(1, slope)
    found = moments(rows).correlation
    assert found.value == pytest.approx(plain_correlation(rows), rel=1e-9)
    left = [plain_correlation(without(rows, group)) for group in range(6)]
    assert found.standard_error == pytest.approx(plain_error(left), rel=1e-7)
    assert found.groups == 6


def test_the_slope_along_the_mean_and_its_error_equal_fits_from_rows() -> None:
    q, k = rows_of(2, 0.01), rows_of(3, 0.0)
    found = slope_along_mean(moments(q), moments(k))
    assert found.value == pytest.approx(plain_slope_product(q, k), rel=1e-9)
    left = [plain_slope_product(without(q, group), without(k, group)) for group in range(6)]
    assert found.standard_error == pytest.approx(plain_error(left), rel=1e-7)


def test_components_equal_those_of_the_rows() -> None:
    t, X, w, _ = rows = rows_of(4, 0.004)
    found = moments(rows).components
    dev = X - np.average(X, axis=0, weights=w)
    _, singular, right = np.linalg.svd(np.sqrt(w)[:, None] * dev, full_matrices=False)
    assert found.share == pytest.approx((singular**2 / (singular**2).sum())[:2])
    for number in range(2):
        covariance = np.cov(dev @ right[number], t, aweights=w)
        r = covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
        assert found.r[number] == pytest.approx(abs(r))
        assert abs(found.axes[:, number] @ right[number]) == pytest.approx(1.0)
        assert np.cov(dev @ found.axes[:, number], t, aweights=w)[0, 1] >= 0
    assert found.mean == pytest.approx(np.average(X, axis=0, weights=w))


def test_a_planted_drift_is_found() -> None:
    """x = mean + slope · t along a unit axis + noise of variance 1: r and the slope are known."""
    rng = np.random.default_rng(5)
    n, slope = 40_000, 0.004
    group, t = rng.integers(0, 16, n), rng.uniform(0, 500, n)
    axis = np.array([0.6, 0.0, -0.8])
    X = 2.0 + rng.standard_normal((n, 3)) + slope * np.multiply.outer(t, axis)
    found = GroupMoments.of(t, X, np.ones(n), group)
    moved = slope * 500 / math.sqrt(12)  # standard deviation along the axis
    truth = moved / math.sqrt(moved**2 + 1.0)
    r = found.correlation
    assert abs(r.value - truth) < 4 * r.standard_error + 1e-3
    assert 0 < r.standard_error < 0.01
    keys = np.array([1.0, 5.0, 2.0]) + rng.standard_normal((n, 3))
    along = slope_along_mean(found, GroupMoments.of(t, keys, np.ones(n), group))
    assert abs(along.value - slope * (0.6 * 1.0 - 0.8 * 2.0)) < 4 * along.standard_error


def test_without_drift_the_correlation_is_zero_on_average() -> None:
    """Many heads without drift, with offsets of texts. The axis of the same rows is above zero."""
    cross, same, errors = [], [], []
    for seed in range(300):
        t, X, w, _ = rows = rows_of(100 + seed, 0.0, groups=8, per_group=12, width=8)
        found = moments(rows).correlation
        cross.append(found.value)
        errors.append(found.standard_error)
        axis = (w * (t - np.average(t, weights=w))) @ X
        same.append(np.corrcoef(X @ axis, t)[0, 1])
    spread = float(np.std(cross))
    assert abs(np.mean(cross)) < 3.5 * spread / math.sqrt(len(cross))
    assert np.mean(same) > 0.2
    assert 0.6 * spread < np.sqrt(np.mean(np.square(errors))) < 2.0 * spread


def test_scale_and_orthogonal_rotation_change_nothing_but_the_size_of_the_slope() -> None:
    rng = np.random.default_rng(6)
    q, k = rows_of(7, 0.01), rows_of(8, 0.003)
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]

    def changed(rows: Rows, factor: float) -> Rows:
        return rows[0], factor * rows[1] @ turn, 3.0 * rows[2], rows[3]

    before, after = moments(q), moments(changed(q, 8.0))
    assert after.correlation.value == pytest.approx(before.correlation.value)
    assert after.correlation.standard_error == pytest.approx(before.correlation.standard_error)
    assert after.components.share == pytest.approx(before.components.share)
    assert after.components.r == pytest.approx(before.components.r)
    one = slope_along_mean(before, moments(k))
    other = slope_along_mean(after, moments(changed(k, 0.5)))
    assert other.value == pytest.approx(4.0 * one.value)
    assert other.standard_error == pytest.approx(4.0 * one.standard_error)


def test_few_groups_have_no_error_and_one_group_no_correlation() -> None:
    few = moments(rows_of(9, 0.01, groups=MIN_GROUPS - 1)).correlation
    assert 0 < few.value < 1
    assert math.isnan(few.standard_error)
    assert math.isnan(moments(rows_of(9, 0.01, groups=1)).correlation.value)


def test_vectors_or_positions_that_do_not_vary() -> None:
    t, X, w, group = rows_of(10, 0.0)
    constant = GroupMoments.of(t, np.full_like(X, 0.1), w, group)
    assert not constant.varies
    assert math.isnan(constant.correlation.value)
    assert np.isnan(constant.components.share).all()
    still = GroupMoments.of(np.full_like(t, 7.0), X, w, group)
    assert not still.moves
    assert math.isnan(still.correlation.value)
    assert still.components.share.sum() > 0
    assert np.isnan(still.components.r).all()
    assert math.isnan(slope_along_mean(still, constant).value)


def test_vectors_of_one_dimension_have_one_component() -> None:
    found = moments(rows_of(11, 0.02, width=1)).components
    assert found.share[0] == pytest.approx(1.0)
    assert math.isnan(found.share[1])
    assert math.isnan(found.r[1])


def test_float32_vectors_far_from_zero_have_their_own_variance() -> None:
    t, X, w, group = rows_of(12, 0.01)
    exact = moments((t, X + 1000.0, w, group)).correlation.value
    single = moments((t, (X + 1000.0).astype(np.float32), w, group)).correlation.value
    assert single == pytest.approx(exact, abs=1e-3)
