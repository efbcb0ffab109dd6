"""Which of two keys later queries prefer: against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.numeric import pair_preferences
from attention_plasticity.numeric.pair_preferences import (
    PlacedKeys,
    PlacedQueries,
    count_in_groups,
    count_preferences,
)
from attention_plasticity.numeric.text_pairs import TextKeys, TextPairs
from attention_plasticity.numeric.windows import Window


def sample(weighted: bool = False) -> tuple[PlacedQueries, PlacedKeys]:
    rng = np.random.default_rng(5)
    weight = 2.0 ** rng.integers(0, 3, 90) if weighted else np.full(90, 4.0)
    queries = PlacedQueries(
        rng.integers(-3, 4, (90, 3)).astype(np.float32),  # small integers: some ties
        rng.integers(0, 40, 90).astype(np.float64),
        rng.integers(0, 4, 90) * 5,
        weight,
    )
    keys = PlacedKeys(
        rng.integers(-2, 3, (40, 3)).astype(np.float32),
        rng.integers(0, 40, 40).astype(np.float64),
        rng.integers(0, 5, 40) * 5,
    )
    return queries, keys


def all_pairs(keys: PlacedKeys, window: Window | None) -> TextPairs:
    ones = np.ones(len(keys.text))
    own = TextKeys.of(keys.text, keys.position, ones, ones, window)
    return own.draw(10**6, np.random.default_rng(0))


@pytest.mark.parametrize("block", [7, 1 << 18])
@pytest.mark.parametrize("window", [None, Window(12), Window(16, chunked=True)])
def test_all_later_queries_against_a_loop(
    window: Window | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_preferences, "_BLOCK", block)
    queries, keys = sample()
    pairs = all_pairs(keys, window)
    rng = np.random.default_rng(1)
    found = count_preferences(queries, keys, pairs, window, rng, most=1000)
    ties = 0
    for number, (i, j) in enumerate(zip(pairs.first, pairs.second, strict=True)):
        first = second = seen = 0
        for query, t, text in zip(queries.vectors, queries.position, queries.text, strict=True):
            x, y = keys.position[i], keys.position[j]
            if text != keys.text[i] or t <= max(x, y):
                continue
            if window is not None and not window.chunked and t - min(x, y) >= window.size:
                continue
            if (
                window is not None
                and window.chunked
                and t // window.size != min(x, y) // window.size
            ):
                continue
            seen += 1
            one, other = float(query @ keys.vectors[i]), float(query @ keys.vectors[j])
            first += one > other
            second += one < other
        ties += seen - first - second
        assert (found.first[number], found.second[number]) == (first, second)
        assert found.queries[number] == seen
    assert ties > 0
    assert found.queries.sum() > 100


def test_at_most_so_many_queries_at_random() -> None:
    """Each of the later queries is used equally often."""
    n = 12
    queries = PlacedQueries(
        np.eye(n, dtype=np.float32), np.arange(2.0, 2.0 + n), np.zeros(n, np.int64), np.ones(n)
    )
    used = np.zeros(n)
    for query in range(n):  # a pair that only this query does not score as a tie
        K = np.zeros((2, n), np.float32)
        K[0, query] = 1.0
        keys = PlacedKeys(K, np.array([0.0, 1.0]), np.zeros(2, np.int64))
        pairs = TextPairs(*(np.array([i]) for i in (0, 1, 0)), np.ones(1))
        for seed in range(600):
            found = count_preferences(
                queries, keys, pairs, None, np.random.default_rng(seed), most=3
            )
            assert found.queries[0] == 3
            used[query] += found.first[0]
    np.testing.assert_allclose(used / 600, 3 / n, atol=0.07)


def test_queries_stand_for_tokens() -> None:
    """A query with weight 4 is used four times as often as one with weight 1."""
    n = 8
    weight = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0])
    queries = PlacedQueries(
        np.eye(n, dtype=np.float32), np.arange(2.0, 2.0 + n), np.zeros(n, np.int64), weight
    )
    K = np.eye(n, dtype=np.float32)
    used = np.zeros(n)
    for seed in range(1500):
        for query in range(n):
            keys = PlacedKeys(
                np.stack([K[query], 0 * K[0]]), np.array([0.0, 1.0]), np.zeros(2, np.int64)
            )
            pairs = TextPairs(*(np.array([i]) for i in (0, 1, 0)), np.ones(1))
            rng = np.random.default_rng(seed)
            used[query] += count_preferences(queries, keys, pairs, None, rng).first[0]
    np.testing.assert_allclose(used / 1500, weight / 4.0, atol=0.05)


def test_counts_in_groups_against_a_loop() -> None:
    rng = np.random.default_rng(2)
    Q = rng.integers(-3, 4, (50, 4)).astype(np.float32)
    W = rng.integers(-2, 3, (9, 4)).astype(np.float64)
    group = rng.integers(0, 16, 50)
    expected = np.zeros((9, 16), np.int64)
    for query, g in zip(Q, group, strict=True):
        for pair, w in enumerate(W):
            score = float(query @ w)
            expected[pair, g] += 2 if score > 0 else int(score == 0)
    np.testing.assert_array_equal(count_in_groups(Q, group, W), expected)
