"""Plasticity by projection: against moments of kept queries, counts of pairs, and plain loops."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attention_plasticity.estimate import score
from attention_plasticity.estimate.score import (
    CellSums,
    counted_plasticity,
    fast_plasticity_of,
    gaussian_plasticity,
    joined,
    plasticity_of,
    score_sums,
)

GROUPS = 16
Sample = tuple[np.ndarray, np.ndarray, np.ndarray]  # W, Q, group


def sample(seed, n=50, d=6, pairs=9, groups=5):
    """Differences of keys, queries with a mean and an offset per group, and groups."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n) * 3 % GROUPS
    Q = rng.standard_normal((n, d)) + 0.5 + 0.5 * rng.standard_normal((GROUPS, d))[group]
    return rng.standard_normal((pairs, d)).astype(np.float32), Q.astype(np.float32), group


def sums_of(W, Q, group):
    """The sums of one head."""
    return score_sums(W, Q[None], group, GROUPS)


def kept_groups(group):
    """The queries of all groups, then of all without each."""
    return [np.full(len(group), True), *(group != g for g in range(GROUPS))]


def plain_gaussian(W, Q):
    """4Φ(z)(1 − Φ(z)) of every pair, from the mean and variance of its scores."""
    scores = Q.astype(float) @ W.T.astype(float)  # (n, pairs)
    z = scores.mean(axis=0) / scores.std(axis=0, ddof=1)
    return 4 * stats.norm.cdf(z) * stats.norm.sf(z)


def plain_count(W, Q, group):
    """Twice the share of two queries of different groups that disagree; a tie is half of each."""
    found = []
    for scores in (Q.astype(float) @ W.T.astype(float)).T:
        first = np.where(scores == 0, 0.5, scores > 0)
        disagree = [
            first[i] * (1 - first[j]) + first[j] * (1 - first[i])
            for i, j in product(range(len(Q)), repeat=2)
            if group[i] != group[j]
        ]
        found.append(2 * float(np.mean(disagree)))
    return found


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(10, 60),
    d=st.integers(1, 40),
    size=st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_plasticity_is_that_of_the_moments_of_the_kept_queries(seed, n, d, size):
    """Also with fewer queries than dimensions."""
    W, Q, group = sample(seed, n, d)
    Q = Q * np.float32(size)
    [found] = gaussian_plasticity(sums_of(W, Q, group))
    for row, kept in zip(found, kept_groups(group), strict=True):
        if kept.sum() >= 3:  # the variance of two equal queries is a rounding error
            np.testing.assert_allclose(row, plain_gaussian(W, Q[kept]), rtol=1e-3, atol=1e-5)
        elif kept.sum() < 2:
            assert np.isnan(row).all()


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), groups=st.integers(2, 6), ties=st.booleans())
def test_counts_are_those_of_all_queries_of_different_groups(seed, groups, ties):
    rng = np.random.default_rng(seed)
    W, Q, group = sample(seed, 16, 3, 4, groups)
    if ties:  # small integers with mean 0, so that sums are exact
        half = rng.integers(-2, 3, (8, 3))
        W = rng.integers(-2, 3, (4, 3)).astype(np.float32)
        Q = np.concatenate([half, -half]).astype(np.float32)
    [found] = counted_plasticity(sums_of(W, Q, group))
    for row, kept in zip(found, kept_groups(group), strict=True):
        if len(set(group[kept].tolist())) < 2:
            assert np.isnan(row).all()
        else:
            np.testing.assert_allclose(row, plain_count(W, Q[kept], group[kept]), atol=2e-7)


def test_few_queries_have_no_value():
    W, Q, _ = sample(3, 3)
    group = np.array([0, 4, 4])
    [found] = gaussian_plasticity(sums_of(W, Q, group))
    assert np.isnan(found).all(axis=1).nonzero()[0].tolist() == [5]  # one query is left
    [counted] = counted_plasticity(sums_of(W, Q, group))
    assert np.isnan(counted).all(axis=1).nonzero()[0].tolist() == [1, 5]  # one group is left
    assert np.isnan(counted_plasticity(sums_of(W, Q, np.full(3, 7)))).all()


def test_blocks_of_pairs_give_the_whole(monkeypatch):
    W, Q, group = sample(4, pairs=40)
    whole = sums_of(W, Q, group)
    monkeypatch.setattr(score, "_BLOCK", 1)
    for one, other in zip(sums_of(W, Q, group), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("counted", [0, 2, 3])
def test_heads_of_a_stack_have_the_bytes_that_they_have_alone(counted):
    W, Q, group = sample(5, pairs=70)
    stack = np.stack([Q, 2 * Q[::-1] - 1, Q**2])
    together = score_sums(W, stack, group, GROUPS, counted)
    assert len(together.preferred) == counted
    for place in range(3):
        alone = sums_of(W, stack[place], group)
        for name in ("mean", "first", "second", "preferred")[: 4 if place < counted else 3]:
            assert (getattr(together, name)[place] == getattr(alone, name)[0]).all(), name


def test_bins_are_joined_one_after_the_other():
    parts = [sums_of(*sample(seed, n=30 + seed, pairs=5 + seed)) for seed in (6, 7)]
    for plasticity in (gaussian_plasticity, counted_plasticity):
        found = plasticity(joined(parts))
        expected = np.concatenate([plasticity(part) for part in parts], axis=-1)
        np.testing.assert_array_equal(found, expected)


def test_plasticity_falls_to_zero_and_never_below():
    z = np.concatenate([np.linspace(-60, 60, 2401), [np.inf, -np.inf, 1e300, -1e300, 0.0]])
    value = plasticity_of(z)
    assert ((value >= 0) & (value <= 1)).all()
    assert (value[-5:] == [0, 0, 0, 0, 1]).all()
    expected = 4 * stats.norm.cdf(z) * stats.norm.sf(z)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-300)
    assert plasticity_of(np.array([20.0]))[0] > 0  # 1 - p alone would have rounded to 0


def test_the_fast_plasticity_is_that_of_double_precision():
    z = np.concatenate([np.linspace(-8, 8, 4001), [np.inf, -np.inf, 1e30, -1e30, 60.0, 0.0]])
    value = fast_plasticity_of(z.astype(np.float32))
    assert ((value >= 0) & (value <= 1)).all()
    assert (value[-6:] == [0, 0, 0, 0, 0, 1]).all()
    np.testing.assert_allclose(value, plasticity_of(z), rtol=2e-5, atol=3e-7)
    assert fast_plasticity_of(np.full(1, 12.0, np.float32))[0] > 0
    assert np.isnan(fast_plasticity_of(np.full(1, np.nan, np.float32))).all()


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), pairs=st.integers(1, 30), both=st.booleans())
def test_sums_of_cells_equal_loops(seed, pairs, both):
    """A pair is left out with the group of its keys, and with that of the query that sees it."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((2, 1 + GROUPS, pairs)).astype(np.float32)
    cell = np.sort(rng.integers(0, 4, pairs))
    groups = [rng.integers(0, 5, pairs) for _ in range(2 if both else 1)]
    sums = CellSums(cell, GROUPS, *groups)
    found = sums.of(values)
    assert sums.cells.tolist() == sorted(set(cell.tolist()))
    for row, (place, c) in product(range(1 + GROUPS), enumerate(sums.cells)):
        own = [
            pair
            for pair in range(pairs)
            if cell[pair] == c and all(row - 1 != group[pair] for group in groups)
        ]
        assert sums.pairs[row, place] == len(own)
        expected = values[:, row, own].sum(axis=1)
        np.testing.assert_allclose(found[:, row, place], expected, rtol=1e-5, atol=1e-5)


def test_the_mean_score_keeps_its_digits_if_queries_have_a_large_mean():
    """Terms of a product of large vectors cancel; a sum in double precision is the reference."""
    W, Q, group = sample(0, n=400, d=64)
    Q += np.float32(1000)
    sums = sums_of(W, Q, group)
    expected = (Q.astype(float) @ W.T.astype(float)).mean(axis=0)  # (pairs,)
    found = sums.mean[0] + sums.first[0].sum(axis=0) / len(Q)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)
