"""Pairs of any two keys of one text: against all pairs, listed in plain loops."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from attention_plasticity.numeric.text_pairs import TextKeys
from attention_plasticity.numeric.windows import Window

Floats = npt.NDArray[np.float64]

TEXT = np.array([7, 3, 3, 3, 7, 7, 3, 9, 7, 11])
POSITION = np.array([5.0, 1.0, 6.0, 4.0, 0.0, 12.0, 17.0, 3.0, 6.0, 2.0])
WEIGHT = np.array([2.0, 1.0, 4.0, 1.0, 3.0, 1.0, 2.0, 5.0, 0.0, 1.0])
TOKENS = np.array([1.0, 2.0, 2.0, 1.0, 1.0, 4.0, 1.0, 3.0, 2.0, 1.0])
WINDOWS = [None, Window(9), Window(6), Window(8, chunked=True)]


def sees_both(one: float, other: float, window: Window | None) -> bool:
    """Whether a query at the position of the later key sees both."""
    if window is None:
        return True
    if window.chunked:
        return one // window.size == other // window.size
    return abs(one - other) < window.size


def probabilities(window: Window | None) -> dict[frozenset[int], float]:
    """The probability of every pair: texts by tokens, then pairs by the product of weights."""
    products: dict[int, dict[frozenset[int], float]] = {}
    for i, j in combinations(range(len(TEXT)), 2):
        product = float(WEIGHT[i] * WEIGHT[j])
        if TEXT[i] == TEXT[j] and product and sees_both(POSITION[i], POSITION[j], window):
            products.setdefault(int(TEXT[i]), {})[frozenset((i, j))] = product
    tokens = {text: float(TOKENS[(text == TEXT) & (WEIGHT > 0)].sum()) for text in products}
    return {
        pair: tokens[text] / sum(tokens.values()) * product / sum(own.values())
        for text, own in products.items()
        for pair, product in own.items()
    }


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("most", [3, 100])
def test_pairs_have_their_probabilities(window: Window | None, most: int) -> None:
    expected = probabilities(window)
    keys = TextKeys.of(TEXT, POSITION, WEIGHT, TOKENS, window)
    found: dict[frozenset[int], float] = {}
    rounds = 1 if most >= len(expected) else 4000
    total = 0.0
    for seed in range(rounds):
        pairs = keys.draw(most, np.random.default_rng(seed))
        assert (np.diff(pairs.text) >= 0).all()
        for i, j, weight in zip(
            pairs.first.tolist(), pairs.second.tolist(), pairs.weight.tolist(), strict=True
        ):
            pair = frozenset((i, j))
            found[pair] = found.get(pair, 0.0) + weight
            total += weight
    assert found.keys() == expected.keys()
    for pair, probability in expected.items():
        tolerance = 1e-12 if rounds == 1 else 0.02
        assert found[pair] / total == pytest.approx(probability, abs=tolerance)


@pytest.mark.parametrize("window", WINDOWS)
def test_tokens_and_the_pairs_that_they_see(window: Window | None) -> None:
    keys = TextKeys.of(TEXT, POSITION, WEIGHT, TOKENS, window)
    drawn = np.zeros((len(TEXT), len(TEXT), len(TEXT)))
    for seed in range(400):
        pairs = keys.draw_placed(40, np.random.default_rng(seed))
        text = TEXT[pairs.first]
        token = [
            int(np.flatnonzero((t == TEXT) & (at == POSITION))[0])
            for t, at in zip(text, pairs.position, strict=True)
        ]
        for one in zip(token, pairs.first, pairs.second, strict=True):
            drawn[one] += 1.0
    expected = np.zeros_like(drawn)
    for token in np.flatnonzero(WEIGHT):
        seen = [
            key
            for key in np.flatnonzero((TEXT[token] == TEXT) & (WEIGHT > 0))
            if POSITION[key] < POSITION[token] and sees_both(POSITION[key], POSITION[token], window)
        ]
        pairs = [(i, j) for i in seen for j in seen if i != j]
        total = sum(WEIGHT[i] * WEIGHT[j] for i, j in pairs)
        for i, j in pairs:
            expected[token, i, j] = TOKENS[token] * WEIGHT[i] * WEIGHT[j] / total
    assert expected.any()
    np.testing.assert_allclose(drawn / drawn.sum(), expected / expected.sum(), atol=0.012)


def test_no_pairs() -> None:
    rng = np.random.default_rng(0)
    alone = TextKeys.of(np.arange(3), np.zeros(3), np.ones(3), np.ones(3), None)
    assert len(alone.draw(5, rng)) == 0
    assert len(alone.draw_placed(5, rng).first) == 0
    empty = TextKeys.of(np.arange(3), np.zeros(3), np.zeros(3), np.ones(3), None)
    assert len(empty.draw(5, rng)) == 0
    assert len(empty.draw_placed(5, rng).first) == 0
    far = TextKeys.of(
        np.zeros(2, np.int64), np.array([0.0, 9.0]), np.ones(2), np.ones(2), Window(4)
    )
    assert len(far.draw(5, rng)) == 0


def test_one_key_with_almost_all_weight() -> None:
    """Its partners are drawn by their own small weights."""
    weight = np.array([1.0, 3e-9, 1e-9, 0.0])
    text, position = np.zeros(4, np.int64), np.arange(4.0)
    keys = TextKeys.of(text, position, weight, np.ones(4), None)
    pairs = keys.draw(2, np.random.default_rng(0))
    counts = np.zeros(4)
    for seed in range(2000):
        pairs = keys.draw(2, np.random.default_rng(seed))
        np.add.at(counts, [*pairs.first.tolist(), *pairs.second.tolist()], 1.0)
    np.testing.assert_allclose(counts / counts.sum(), [0.5, 0.375, 0.125, 0.0], atol=0.02)
