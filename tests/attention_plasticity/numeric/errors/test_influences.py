"""Influences of groups on a bucket's Gaussian, against the change when a group gets more weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_plasticity.numeric.errors.influences import FirstComponent, GroupedQueries, unit_of
from attention_plasticity.numeric.position import regress

MODELS = ("positional", "full", "diagonal")
N, D = 90, 4


def grouped(model: Any, scale: float = 1.0) -> GroupedQueries:
    """Queries of two buckets with 50 and 40 rows."""
    rng = np.random.default_rng(0)
    group, position = rng.integers(0, 7, N), np.sort(rng.uniform(0, 100, N))
    vectors = scale * (rng.standard_normal((N, D)) + 0.02 * position[:, None])
    fit = regress(position, vectors)
    residual = vectors[:, 0] - fit.alpha[0] - fit.beta[0] * position
    variance = float(residual @ residual / (N - 2))
    first = FirstComponent.of(group, position, residual, float(fit.beta[0]), variance)
    return GroupedQueries(model, group, vectors, first)


def weighted_mean(queries: GroupedQueries, weight: np.ndarray) -> np.ndarray:
    """(d,) mean that the model uses for the rows from 50 on; `weight` (n,) is that of each row."""
    inside = slice(50, N)
    mean = np.average(queries.vectors[inside], axis=0, weights=weight[inside])
    if queries.model == "positional":
        t = queries.first.position
        tau = np.average(t[inside], weights=weight[inside])
        slope, level = np.polyfit(t, queries.vectors[:, 0], 1, w=np.sqrt(weight))
        mean[0] = level + slope * tau
    return mean


@pytest.mark.parametrize("model", MODELS)
def test_influences_on_the_mean_are_derivatives(model: str) -> None:
    queries = grouped(model)
    rows = queries.vectors[50:]
    centred = queries.centred(slice(50, N), rows.mean(axis=0), rows.var(axis=0, ddof=1))
    found = queries.influences(centred).mean * centred.unit
    step = 1e-5
    for g in range(16):
        more, less = (1 + by * (queries.group == g) for by in (step, -step))
        change = (weighted_mean(queries, more) - weighted_mean(queries, less)) / (2 * step)
        np.testing.assert_allclose(found[g], change, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_scatter_of_all_groups_is_the_covariance(model: str) -> None:
    queries = grouped(model)
    rows = queries.vectors[:50]
    centred = queries.centred(slice(0, 50), rows.mean(axis=0), rows.var(axis=0, ddof=1))
    scatter = queries.influences(centred).scatter.sum(axis=0) * centred.unit**2 / 49
    expected = np.cov(rows, rowvar=False)
    if model == "positional":  # the first component is modelled by the regression
        expected[0] = expected[:, 0] = 0.0
    if model == "diagonal":
        expected = np.diag(expected)
    np.testing.assert_allclose(scatter, expected, rtol=1e-5, atol=1e-6)


def test_influences_on_the_residual_variance_sum_to_zero() -> None:
    first = grouped("positional").first
    for values in (first.on_level, first.on_slope, first.on_variance):
        assert values.sum() == pytest.approx(0.0, abs=1e-12)
        assert np.count_nonzero(values) == 7


@pytest.mark.parametrize("model", MODELS)
def test_a_sample_is_evenly_spaced_and_centred(model: str) -> None:
    queries = grouped(model)
    rows = queries.vectors[:50]
    centred = queries.centred(slice(0, 50), rows.mean(axis=0), rows.var(axis=0, ddof=1))
    assert centred.sample(50) is centred
    sample = centred.sample(20)
    assert len(set(sample.rows.tolist())) == 20 == sample.counts.sum()
    assert (np.diff(queries.group[sample.rows]) >= 0).all()
    y = sample.y.copy()
    if sample.first is not None:
        y[:, 0] = sample.first
    np.testing.assert_allclose(y.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose((y + sample.mean) * sample.unit, rows[sample.rows], atol=1e-5)
    assert (np.abs(sample.counts - 0.4 * centred.counts) <= 1).all()


def test_the_unit_is_a_power_of_two_near_the_deviation() -> None:
    for deviation in (1e-30, 0.3, 1.0, 7.0, 1e30):
        unit = unit_of(np.full(3, deviation**2))
        assert np.frexp(unit)[0] == 0.5
        assert 0.7 < deviation / unit < 1.5
    assert unit_of(np.zeros(3)) == 1.0
