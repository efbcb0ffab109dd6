"""How unequally keys receive attention: against all pairs of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.numeric.attention_spread import attention_spread


def test_known_cases() -> None:
    attention = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 5.0, 0.0, 0.0, 0.0])
    text = np.array([2, 2, 2, 2, 4, 4, 4, 4, 6])
    found = attention_spread(attention, np.ones(9), text)
    assert found.text.tolist() == [2, 4]  # the key of text 6 receives nothing
    np.testing.assert_allclose(found.gini, [0.0, 0.75])
    np.testing.assert_allclose(found.half, [0.5, 0.125])
    assert found.tokens.tolist() == [4.0, 4.0]
    assert not len(attention_spread(np.zeros(3), np.ones(3), np.zeros(3, np.int64)).text)


def test_a_key_stands_for_several_tokens() -> None:
    rng = np.random.default_rng(0)
    attention, tokens = rng.exponential(size=12), rng.integers(1, 5, 12)
    found = attention_spread(attention, tokens.astype(float), np.zeros(12, np.int64))
    each = np.repeat(attention, tokens)  # every token on its own
    gaps = np.abs(each[:, None] - each[None]).mean()
    assert found.gini[0] == pytest.approx(gaps / (2 * each.mean()))
    taken, left = 0.0, each.sum() / 2
    for value in sorted(each, reverse=True):
        part = min(1.0, left / value)
        taken, left = taken + part, left - part * value
    assert found.half[0] == pytest.approx(taken / len(each))
