"""How unequally keys receive attention: against all pairs of tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.measure.key_heads import attention_spread


def test_known_cases():
    attention = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 5.0, 0.0, 0.0, 0.0])
    text = np.array([2, 2, 2, 2, 4, 4, 4, 4, 6])
    found, tokens, gini, half = attention_spread(attention, np.ones(9), text)
    assert found.tolist() == [2, 4]  # the key of text 6 receives nothing
    assert tokens.tolist() == [4.0, 4.0]
    np.testing.assert_allclose(gini, [0.0, 0.75])
    np.testing.assert_allclose(half, [0.5, 0.125])
    for n in (3, 0):
        assert not len(attention_spread(np.zeros(n), np.ones(n), np.zeros(n, np.int64))[0])


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_a_key_stands_for_several_tokens(seed):
    rng = np.random.default_rng(seed)
    attention, tokens = np.round(rng.exponential(size=12), 1) + 0.01, rng.integers(1, 5, 12)
    text = rng.permutation(np.repeat([4, 9, 2], 4))
    found = attention_spread(attention, tokens.astype(float), text)
    assert found[0].tolist() == [2, 4, 9]
    for one, all_tokens, gini, half in zip(*found, strict=True):
        each = np.repeat(attention[text == one], tokens[text == one])  # every token on its own
        assert all_tokens == len(each)
        gaps = np.abs(each[:, None] - each[None]).mean()
        assert gini == pytest.approx(gaps / (2 * each.mean()))
        taken, left = 0.0, each.sum() / 2
        for value in sorted(each, reverse=True):
            part = min(1.0, left / value)
            taken, left = taken + part, left - part * value
        assert half == pytest.approx(taken / len(each))
