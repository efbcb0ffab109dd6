"""Plasticity and static error from counts: against lists of queries, and the jackknife."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from attention_plasticity.numeric.pair_preferences import Preferences
from attention_plasticity.numeric.preference_scores import (
    grouped_mean,
    grouped_plasticity,
    pair_plasticity,
    static_error,
)
from listed_choices import Choices, listed_error, listed_plasticity


def counts(heads: Choices) -> Preferences:
    return Preferences(
        np.array([[head.count(1.0)] for head in heads]),
        np.array([[head.count(0.0)] for head in heads]),
        np.array([[len(head)] for head in heads]),
    )


@pytest.mark.parametrize("number", [1, 2, 3])
def test_scores_against_lists_of_queries(number: int) -> None:
    rng = np.random.default_rng(number)
    for _ in range(60):
        p = rng.random(number)
        heads = [
            [float(rng.choice([1.0, 0.0, 0.5], p=[0.9 * q, 0.9 * (1 - q), 0.1])) for _ in range(n)]
            for q, n in zip(p, rng.integers(2, 9, number), strict=True)
        ]
        assert pair_plasticity(counts(heads))[0] == pytest.approx(listed_plasticity(heads))
        assert static_error(counts(heads))[0] == pytest.approx(listed_error(heads))


def test_one_head_has_the_known_formula() -> None:
    k, n = np.arange(11), np.full(11, 10)
    found = pair_plasticity(Preferences(k[None], (n - k)[None], n[None]))
    np.testing.assert_allclose(found, 4 * k * (n - k) / (n * (n - 1)))


def test_opposed_heads() -> None:
    """Each head always prefers one key: no error alone, one half together."""
    for n in (2, 5, 64):
        heads: Choices = [[1.0] * n, [0.0] * n]
        assert static_error(counts(heads))[0] == 0.5
        assert pair_plasticity(counts(heads))[0] == pytest.approx(1.0)
        for head in heads:
            assert static_error(counts([head]))[0] == 0.0
            assert pair_plasticity(counts([head]))[0] == 0.0
    ties: Choices = [[0.5] * 4, [0.5] * 3]  # two equal keys
    assert static_error(counts(ties))[0] == 0.5
    assert pair_plasticity(counts(ties))[0] == pytest.approx(1.0)


def test_plasticity_is_unbiased_and_the_error_is_that_of_the_others() -> None:
    """Means over many samples of queries with known probabilities."""
    rng = np.random.default_rng(0)
    p, n, samples = np.array([0.9, 0.4]), np.array([4, 6]), 40_000
    first = rng.binomial(n[:, None], p[:, None], (2, samples))
    queries = np.repeat(n[:, None], samples, axis=1)
    found = Preferences(first, queries - first, queries)
    assert pair_plasticity(found).mean() == pytest.approx(4 * 0.65 * 0.35, abs=0.005)
    assert 0.35 <= static_error(found).mean() < 0.45


def groups_sample() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    queries = rng.integers(1, 6, (2, 1, 16)).repeat(40, axis=1)  # (heads, p, g)
    doubled = rng.integers(0, 2 * queries + 1)
    return doubled, queries, rng.integers(0, 16, 40)


def test_grouped_plasticity_against_pairs_of_queries() -> None:
    doubled, queries, _ = groups_sample()
    doubled -= doubled % 2  # without ties
    found = grouped_plasticity(doubled, queries)
    for pair in range(3):
        listed = [
            [
                (g, choice)
                for g in range(16)
                for choice in [1] * (doubled[head, pair, g] // 2)
                + [0] * (queries[head, pair, g] - doubled[head, pair, g] // 2)
            ]
            for head in range(2)
        ]
        total = 0.0
        for one, other in product(listed, listed):
            found_in = [a != b for (g, a), (h, b) in product(one, other) if g != h]
            total += sum(found_in) / len(found_in)
        assert found[pair] == pytest.approx(2.0 * total / 4)


def test_the_error_is_that_of_the_jackknife() -> None:
    doubled, queries, group = groups_sample()
    estimate = grouped_mean(doubled, queries, group)
    left = []
    for g in range(16):
        kept = group != g
        d, q = doubled[:, kept].copy(), queries[:, kept].copy()
        d[:, :, g] = q[:, :, g] = 0
        left.append(grouped_plasticity(d, q).mean())
    assert estimate.value == pytest.approx(grouped_plasticity(doubled, queries).mean())
    spread = np.array(left) - estimate.value
    assert estimate.standard_error == pytest.approx(np.sqrt(15 / 16 * (spread**2).sum()))
    assert estimate.groups == 16
    without = grouped_mean(doubled, queries, group, errors=False)
    assert without.value == estimate.value
    assert np.isnan(without.standard_error)


def test_queries_of_one_group_give_no_value() -> None:
    queries = np.zeros((1, 2, 16), np.int64)
    queries[:, :, 3] = 5
    found = grouped_mean(queries, queries, np.zeros(2, np.int64))
    assert np.isnan(found.value)
    assert found.groups == 0
