"""Moments of buckets and influences on them, in one pass: plain sums in float64, and any scale."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.numeric.errors.bucket_influences import moments_with_influences
from attention_plasticity.numeric.errors.influences import GroupedQueries

SIZES = {1: 40, 2: 300, 3: 900}  # queries of every bucket


def grouped(
    scale: float, dtype: type[np.floating], *, by_group: bool
) -> tuple[GroupedQueries, np.ndarray]:
    """Queries far from zero in three buckets, and their buckets."""
    rng = np.random.default_rng(0)
    bucket = np.repeat(list(SIZES), list(SIZES.values()))
    group = rng.integers(0, 16, len(bucket))
    if by_group:
        order = np.lexsort((group, bucket))
        group = group[order]
    X = rng.standard_normal((len(bucket), 6)) @ rng.standard_normal((6, 6)) + 20.0
    X[:, 5] = 7.0  # constant
    return GroupedQueries("full", group, (scale * X).astype(dtype)), bucket


@pytest.mark.parametrize("by_group", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.0**-70, 2.0**50])  # float32 squares of the last two fail
def test_moments_and_influences_are_plain_sums(scale: float, by_group: bool) -> None:
    queries, bucket = grouped(scale, np.float32, by_group=by_group)
    position = np.arange(len(bucket), dtype=float)
    moments, influences = moments_with_influences(queries, position, bucket, with_first=False)
    for code, number in enumerate(SIZES):
        rows = np.flatnonzero(bucket == number)
        X = queries.vectors[rows].astype(np.float64)
        np.testing.assert_allclose(moments.mean[code], X.mean(axis=0), rtol=1e-6)
        exact = np.cov(X, rowvar=False)
        spread = np.sqrt(np.outer(np.diagonal(exact), np.diagonal(exact))).max()
        np.testing.assert_allclose(moments.covariance[code], exact, atol=1e-5 * spread)
        assert not moments.covariance[code][5].any()
        assert moments.position[code] == pytest.approx(rows.mean())
        found = influences.of(code)
        unit, y = found.queries.unit, X - X.mean(axis=0)
        for g in range(16):
            own = y[queries.group[rows] == g]
            np.testing.assert_allclose(
                found.mean[g] * unit, own.sum(axis=0) / len(rows), atol=1e-5 * spread**0.5
            )
            np.testing.assert_allclose(
                found.scatter[g] * unit**2, own.T @ own, atol=1e-4 * spread * len(rows) / 16
            )


def test_scales_that_differ_too_much_are_computed_in_float64() -> None:
    queries, bucket = grouped(1.0, np.float64, by_group=True)
    factors = np.array([1.0, 1e-12, 1.0, 1.0, 1.0, 1.0])
    small = GroupedQueries("full", queries.group, (queries.vectors * factors).astype(np.float32))
    moments, influences = moments_with_influences(
        small, np.zeros(len(bucket)), bucket, with_first=False
    )
    X = small.vectors[bucket == 3].astype(np.float64)
    np.testing.assert_allclose(moments.covariance[2, 1], np.cov(X, rowvar=False)[1], rtol=1e-6)
    assert influences.of(2).queries.y.dtype == np.float64
