"""Attended pairs: their probabilities, against enumeration, and their effective number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attention_plasticity.numeric.attended_pairs import (
    AttendedKeys,
    AttendedPool,
    KeyAttention,
    text_weights,
)
from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs
from reference_attention import pair_probabilities

TEXT = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 4, 4])
BUCKET = np.array([0, 0, 1, 2, 0, 1, 1, 0, 0, 1, 1, 2, 0, 1, 2])
QUERIES = np.arange(15)
BY_QUERIES = np.array([2.0, 1.0, 3.5, 9.0, 0.5])  # weights of the queries of the texts
EVERYWHERE = np.array([True] * 3)


def pool_of(attention: Any, eligible: Any = EVERYWHERE, weight: Any = BY_QUERIES) -> AttendedPool:
    index = KeyIndex(np.arange(15.0), BUCKET, TEXT)
    keys = AttendedKeys(index, KeyAttention(np.asarray(attention, float), QUERIES))
    return keys.pool(np.asarray(eligible), np.asarray(weight, float))


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
    pool = pool_of(attention, eligible)
    drawn = pool.draw(40_000, np.random.default_rng(1))
    inside = [i for i in range(15) if eligible[BUCKET[i]]]
    chances = pair_probabilities(attention.tolist(), TEXT, inside, dict(enumerate(BY_QUERIES)))
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
    drawn = pool_of(np.ones(15)).draw(500, np.random.default_rng(0))
    both = np.stack([BUCKET[drawn.first], BUCKET[drawn.second]])
    assert (drawn.owner == both.max(axis=0)).all()
    assert (drawn.other == both.min(axis=0)).all()
    assert (np.diff(drawn.owner) >= 0).all()
    assert set(drawn.with_single_bucket().owner) == {0}


def test_equal_attention_is_uniform_like_context_pairs() -> None:
    """With equal attention, and texts by their numbers of pairs, all pairs are as probable."""
    index = KeyIndex(np.arange(15.0), BUCKET, TEXT)
    pool = pool_of(np.full(15, 0.3), weight=[6, 3, 10, 0, 1])
    possible = index.context_available(EVERYWHERE)
    assert pool.effective_pairs == pytest.approx(possible, rel=1e-12)
    every = counts_of(index.context_pairs(EVERYWHERE, 1000, np.random.default_rng(0)))
    assert set(counts_of(pool.draw(5000, np.random.default_rng(0)))) == set(every)


def test_texts_without_queries_have_no_pairs() -> None:
    drawn = pool_of(np.ones(15), weight=[0, 1, 0, 1, 2]).draw(300, np.random.default_rng(0))
    assert (np.bincount(TEXT[drawn.first], minlength=5) == [0, 100, 0, 0, 200]).all()
    assert len(pool_of(np.ones(15), weight=np.zeros(5)).draw(9, np.random.default_rng(0))) == 0


def test_weights_of_texts_are_sums_over_the_queries_of_a_bucket() -> None:
    code, text = np.array([0, 0, 1, -1, 1, 1]), np.array([7, 7, 3, 3, 7, 5])
    found = text_weights(code, 2, text, np.array([1.0, 2, 4, 8, 16, 32]), np.array([9, 7, 3, 7]))
    assert found.tolist() == [[0, 3, 0], [4, 16, 0]]


def test_first_tokens_and_keys_without_attention_have_no_weight() -> None:
    attention = np.array([0.5, 0.5, 0.25, 0.0, 1e-50])
    found = KeyAttention.of(attention, np.full(5, 4.0), np.array([3.0, 4.0, 9.0, 9.0, 9.0]))
    assert found.weight.tolist() == [0, 2, 1, 0, 0]


def test_without_two_keys_there_is_no_pair() -> None:
    one = np.zeros(15)
    one[[0, 4]] = 1.0  # one key in each of two texts
    for attention in (np.zeros(15), one):
        pool = pool_of(attention)
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
    pool = AttendedKeys(index, KeyAttention(np.exp2(powers))).pool(
        np.array([True]), np.ones(len(np.unique(text)))
    )
    drawn = pool.draw(200, np.random.default_rng(seed))
    possible = index.context_available(np.array([True]))
    assert len(drawn) == (200 if possible else 0)
    assert (drawn.first != drawn.second).all()
    assert (text[drawn.first] == text[drawn.second]).all()
    if possible:
        assert 1 - 1e-9 <= pool.effective_pairs <= possible * (1 + 1e-9)
