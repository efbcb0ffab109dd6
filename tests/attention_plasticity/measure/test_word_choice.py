"""Which queries are shown as example words."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.measure.roles import strongest_queries, typical_queries


def test_a_pair_of_tokens_and_a_key_are_shown_once_and_the_first_token_never():
    top = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    pairs = np.array([[1, 2], [3, 2], [1, 2], [5, 6], [7, 8], [1, 9]])
    keys = np.array([[0, 4], [0, 4], [0, 7], [0, 0], [1, 4], [0, 9]])  # text, position
    # 1 has the key of 0, 2 has its tokens, and the key of 3 is at position 0
    assert strongest_queries(top, pairs, keys).tolist() == [0, 4, 5]
    none = strongest_queries(np.zeros(0), np.zeros((0, 2), int), np.zeros((0, 2), int))
    assert len(none) == 0


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_the_strongest_queries_are_those_that_no_stronger_one_excludes(seed, n):
    rng = np.random.default_rng(seed)
    top, pairs, keys = rng.random(n), rng.integers(0, 4, (n, 2)), rng.integers(0, 5, (n, 2))
    found = strongest_queries(top, pairs, keys).tolist()
    assert len(found) <= 8
    assert (np.diff(top[found]) < 0).all()
    for one, other in product(found, found):
        if one != other:
            assert (pairs[one] != pairs[other]).any()
            assert (keys[one] != keys[other]).any()
    weakest = top[found[-1]] if len(found) == 8 else -1.0
    for query in set(range(n)) - set(found):
        same_key = [i for i in range(n) if (keys[i] == keys[query]).all() and top[i] > top[query]]
        same_pair = [i for i in found if (pairs[i] == pairs[query]).all() and top[i] > top[query]]
        assert keys[query, 1] == 0 or same_key or same_pair or top[query] < weakest


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_typical_queries_are_quantiles_over_tokens(seed, n):
    rng = np.random.default_rng(seed)
    top, tokens = rng.permutation(n) / n, rng.integers(1, 6, n)
    tokens[0] += 1 - tokens.sum() % 2  # an odd number, so that no quantile is between two tokens
    each = np.sort(np.repeat(top, tokens))  # every token on its own
    places = [int(q * len(each)) for q in (0.1, 0.3, 0.5, 0.7, 0.9)]
    expected = list(dict.fromkeys(float(each[place]) for place in places))
    for factor in (1.0, 1e-3, 8.0):
        assert top[typical_queries(top, factor * tokens)].tolist() == expected
    assert len(typical_queries(np.zeros(0), np.zeros(0))) == 0
