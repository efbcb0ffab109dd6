"""Attended pairs: their probabilities, against enumeration, and their effective number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attention_plasticity.numeric.attended_pairs import AttendedKeys
from attention_plasticity.numeric.attention_received import Received
from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs
from reference_attention import pair_probabilities

TEXT = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 4, 4])
BUCKET = np.array([0, 0, 1, 2, 0, 1, 1, 0, 0, 1, 1, 2, 0, 1, 2])
QUERIES = np.arange(15)


def keys_with(attention: Any) -> AttendedKeys:
    index = KeyIndex(np.arange(15.0), BUCKET, TEXT)
    return AttendedKeys(index, Received(np.asarray(attention, float), QUERIES))


def counts_of(drawn: KeyPairs) -> dict[tuple[int, int], int]:
    low, high = np.minimum(drawn.first, drawn.second), np.maximum(drawn.first, drawn.second)
    pairs, counts = np.unique(np.stack([low, high]), axis=1, return_counts=True)
    return {(int(a), int(b)): int(n) for (a, b), n in zip(pairs.T, counts, strict=True)}


ATTENTION = {
    "equal": np.ones(15),
    "spread": np.random.default_rng(0).exponential(size=15) ** 2,
    "one key has nearly all": np.where(np.arange(15) % 4 == 1, 1.0, 1e-25 * (1 + np.arange(15))),
    "some without": np.where(np.arange(15) % 3 == 0, 0.0, 1.0 + np.arange(15)),
    "very different texts": 10.0 ** (-8 * TEXT) * (1 + np.arange(15)),
}


@pytest.mark.parametrize("attention", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("eligible", [(True, True, False), (True, True, True)])
def test_draws_follow_the_enumerated_probabilities(
    attention: np.ndarray, eligible: tuple[bool, ...]
) -> None:
    pool = keys_with(attention).pool(np.array(eligible))
    drawn = pool.draw(40_000, np.random.default_rng(1))
    inside = [i for i in range(15) if eligible[BUCKET[i]]]
    chances = pair_probabilities(attention.tolist(), TEXT, inside)
    found = counts_of(drawn)
    assert set(found) <= set(chances)
    frequent = [pair for pair, chance in chances.items() if chance > 1e-4]
    expected = np.array([40_000 * chances[pair] for pair in frequent])
    observed = np.array([found.get(pair, 0) for pair in frequent])
    expected *= observed.sum() / expected.sum()
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    assert pool.effective_pairs == pytest.approx(1 / sum(p**2 for p in chances.values()), rel=1e-9)
    later = sum(p * (QUERIES[a] + QUERIES[b]) / 2 for (a, b), p in chances.items())
    assert pool.later_queries == pytest.approx(later, rel=1e-9)
    in_order = np.mean(drawn.first < drawn.second)
    assert abs(in_order - 0.5) < 0.02


def test_owner_is_the_bucket_of_the_later_key() -> None:
    drawn = keys_with(np.ones(15)).pool(np.array([True] * 3)).draw(500, np.random.default_rng(0))
    both = np.stack([BUCKET[drawn.first], BUCKET[drawn.second]])
    assert (drawn.owner == both.max(axis=0)).all()
    assert (drawn.other == both.min(axis=0)).all()
    assert (np.diff(drawn.owner) >= 0).all()
    assert set(drawn.with_single_bucket().owner) == {0}


def test_equal_attention_is_uniform_like_context_pairs() -> None:
    """Equal attention: every possible pair is as probable as a context pair."""
    index = KeyIndex(np.arange(15.0), BUCKET, TEXT)
    eligible = np.array([True, True, True])
    pool = keys_with(np.full(15, 0.3)).pool(eligible)
    assert pool.effective_pairs == pytest.approx(index.context_available(eligible), rel=1e-12)
    every = counts_of(index.context_pairs(eligible, 1000, np.random.default_rng(0)))
    assert set(counts_of(pool.draw(5000, np.random.default_rng(0)))) == set(every)


def test_without_two_keys_there_is_no_pair() -> None:
    one = np.zeros(15)
    one[[0, 4]] = 1.0  # one key in each of two texts
    for attention in (np.zeros(15), one):
        pool = keys_with(attention).pool(np.array([True] * 3))
        assert len(pool.draw(100, np.random.default_rng(0))) == 0
        assert math.isnan(pool.effective_pairs)
        assert math.isnan(pool.later_queries)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    powers=st.lists(st.floats(-140, 10), min_size=2, max_size=30),
    texts=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_attention_gives_pairs_of_different_keys_of_one_text(
    powers: list[float], texts: int, seed: int
) -> None:
    n = len(powers)
    text = np.arange(n) % texts
    index = KeyIndex(np.arange(float(n)), np.zeros(n, int), text)
    keys = AttendedKeys(index, Received(np.exp2(powers), np.ones(n, int)))
    pool = keys.pool(np.array([True]))
    drawn = pool.draw(200, np.random.default_rng(seed))
    possible = index.context_available(np.array([True]))
    assert len(drawn) == (200 if possible else 0)
    assert (drawn.first != drawn.second).all()
    assert (text[drawn.first] == text[drawn.second]).all()
    if possible:
        assert 1 - 1e-9 <= pool.effective_pairs <= possible * (1 + 1e-9)
