"""Pairs of any two keys of one text, and who prefers which: against all pairs in plain loops."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure import text_pairs as module
from attention_plasticity.measure.text_pairs import (
    TextPairs,
    count_preferences,
    placed_pairs,
    text_pairs,
)
from plain_visible import Even, sees

TEXT = np.array([7, 3, 3, 3, 7, 7, 3, 9, 7, 11])
POSITION = np.array([5.0, 1.0, 6.0, 4.0, 0.0, 12.0, 17.0, 3.0, 6.0, 2.0])
WEIGHT = np.array([2.0, 1.0, 4.0, 1.0, 3.0, 1.0, 2.0, 5.0, 0.0, 1.0])
TOKENS = np.array([1.0, 2.0, 2.0, 1.0, 1.0, 9.0, 1.0, 3.0, 2.0, 1.0])
VISIBLE = [Visible(), Visible(9), Visible(6), Visible(8, chunked=True)]


class Rows(SimpleNamespace):
    """What is used of the keys or queries of a head."""

    def __len__(self) -> int:
        return len(self.text)


def rows(text: Any, position: Any, weight: Any, after: Any = None) -> Any:
    return Rows(
        text=np.asarray(text),
        position=np.asarray(position, float),
        weight=np.asarray(weight, float),
        after=after,
    )


@pytest.mark.parametrize("visible", VISIBLE)
@pytest.mark.parametrize("most", [3, 100])
def test_texts_by_their_tokens_then_pairs_by_their_weights(visible: Visible, most: int) -> None:
    products: dict[int, dict[frozenset[int], float]] = {}
    for i, j in combinations(np.argsort(POSITION).tolist(), 2):
        value = float(WEIGHT[i] * WEIGHT[j])
        if TEXT[i] == TEXT[j] and value and sees(POSITION[j], POSITION[i], visible):
            products.setdefault(int(TEXT[i]), {})[frozenset((i, j))] = value
    tokens = {text: float(TOKENS[(text == TEXT) & (WEIGHT > 0)].sum()) for text in products}
    found: Counter[frozenset[int]] = Counter()
    for place in (np.arange(400) + 0.5) / 400:
        keys, even = rows(TEXT, POSITION, TOKENS), Even(place)
        pairs = text_pairs(keys, WEIGHT, visible, most, even)  # type: ignore[arg-type]
        assert (np.diff(TEXT[pairs.first]) >= 0).all()
        assert (POSITION[pairs.first] > POSITION[pairs.second]).all()
        found.update(map(frozenset, zip(*(x.tolist() for x in pairs), strict=True)))
    assert set(found) == {pair for own in products.values() for pair in own}
    for text, own in products.items():
        for pair, value in own.items():
            expected = tokens[text] / sum(tokens.values()) * value / sum(own.values())
            assert found[pair] / found.total() == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize("visible", VISIBLE)
def test_tokens_and_the_pairs_that_they_see(visible: Visible) -> None:
    n, weight = len(TEXT), np.array([1.0, 2.0, 2.0, 1.0, 1.0, 4.0, 1.0, 3.0, 0.0, 1.0])
    drawn, expected = np.zeros((n, n, n)), np.zeros((n, n, n))
    for seed in range(300):
        pairs = placed_pairs(rows(TEXT, POSITION, weight), visible, 40, np.random.default_rng(seed))
        for one, other, at in zip(*pairs, strict=True):
            token = np.flatnonzero((TEXT[one] == TEXT) & (at == POSITION))[0]
            drawn[token, one, other] += 1.0
    for token in np.flatnonzero(weight):
        seen = [
            key
            for key in np.flatnonzero((TEXT[token] == TEXT) & (weight > 0))
            if POSITION[key] < POSITION[token] and sees(POSITION[token], POSITION[key], visible)
        ]
        both = {(i, j): weight[i] * weight[j] for i in seen for j in seen if i != j}
        for pair, value in both.items():
            expected[(token, *pair)] = weight[token] * value / sum(both.values())
    assert expected.any()
    np.testing.assert_allclose(drawn / drawn.sum(), expected / expected.sum(), atol=0.015)


def test_no_pairs() -> None:
    rng = np.random.default_rng(0)
    alone, one = rows(np.arange(3), np.zeros(3), np.ones(3)), np.ones(3)
    far = rows(np.zeros(2, int), [0.0, 9.0], np.ones(2))
    none = rows(np.zeros(0, int), np.zeros(0), np.zeros(0))
    for keys, weight, visible in (
        (alone, one, Visible()),
        (alone, 0 * one, Visible()),
        (far, one[:2], Visible(4)),
        (none, np.zeros(0), Visible()),
    ):
        assert not len(text_pairs(keys, weight, visible, 5, rng).first)
        assert not len(placed_pairs(keys, visible, 5, rng).first)


@pytest.mark.parametrize(("block", "queries_of_block"), [(7, 5), (1 << 18, 30), (1 << 18, 512)])
@pytest.mark.parametrize("visible", [Visible(), Visible(12), Visible(16, chunked=True)])
def test_all_later_queries_against_a_loop(
    visible: Visible, block: int, queries_of_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_QUERIES", queries_of_block)
    rng = np.random.default_rng(5)
    places = rng.permutation(5 * 40)
    Q, K = (rng.integers(-3, 4, (n, 3)).astype(np.float32) for n in (90, 40))  # some ties
    queries = rows(places[:90] // 40 * 5, places[:90] % 40.0, np.full(90, 4.0), Q)
    keys = rows(places[90:130] // 40 * 5, places[90:130] % 40.0, np.ones(40), K)
    pairs = text_pairs(keys, np.ones(40), visible, 10**6, rng)
    found = count_preferences(queries, keys, pairs, visible, rng, most=1000)
    ties = 0
    for number, (i, j) in enumerate(zip(pairs.first, pairs.second, strict=True)):
        first = second = seen = 0
        x, y = keys.position[i], keys.position[j]
        for query, t, text in zip(Q, queries.position, queries.text, strict=True):
            if text == keys.text[i] and t > max(x, y) and sees(t, min(x, y), visible):
                seen += 1
                first += float(query @ K[i]) > float(query @ K[j])
                second += float(query @ K[i]) < float(query @ K[j])
        ties += seen - first - second
        assert (found.first[number], found.second[number]) == (first, second)
        assert found.queries[number] == seen
    assert ties > 0
    assert found.queries.sum() > 100


@pytest.mark.parametrize(
    ("weight", "most", "expected"),
    [
        (np.ones(12), 3, np.full(12, 3 / 12)),  # at most three, each equally often
        (np.repeat([1.0, 2.0, 4.0], 4), 64, np.repeat([0.25, 0.5, 1.0], 4)),  # tokens
    ],
)
def test_queries_are_used_at_random(weight: np.ndarray, most: int, expected: np.ndarray) -> None:
    """A pair per query, which all other queries score as a tie."""
    n = len(weight)
    eye = np.eye(n, dtype=np.float32)
    queries = rows(np.zeros(n, int), np.arange(2, 2 + n), weight, eye)
    K = np.concatenate([eye, 0 * eye[:1]])
    keys = rows(np.zeros(n + 1, int), np.r_[np.zeros(n), 1.0], np.ones(n + 1), K)
    pairs, used = TextPairs(np.arange(n), np.full(n, n)), np.zeros(n)
    for seed in range(800):
        rng = np.random.default_rng(seed)
        found = count_preferences(queries, keys, pairs, Visible(), rng, most)
        assert (found.queries <= most).all()
        used += found.first
    np.testing.assert_allclose(used / 800, expected, atol=0.05)
