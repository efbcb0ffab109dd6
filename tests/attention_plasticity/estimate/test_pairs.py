"""The sampler of key pairs: probabilities against a list of all pairs, and shares of bins."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.estimate.pairs import PairSampler, Seen, dealt, run_starts
from helpers.plain_visible import Even

Law = dict[tuple[int, int], float]
SWEEP = 120
weights = st.floats(0.1, 1000.0) | st.just(0.0) | st.just(1.0)


def draw(sampler, ranges, number, rng, weight=None):
    """The pairs of one row of ranges (ranges, 2), which may have weights (ranges,)."""
    begin, end = ranges.T[:, None]
    weight = None if weight is None else weight[None]
    found = sampler.draw(begin, end, np.array([number]), rng, weight)
    assert not found.row.any()
    return found


def whole(sampler):
    """One range with all keys."""
    return np.array([[0, len(sampler.weight)]])


def normed(law):
    total = sum(law.values())
    return {pair: value / total for pair, value in law.items() if value > 0}


def shares(sampler, ranges, number, weight=None, sweep=SWEEP):
    """The share of the places of all steps at which each pair is drawn; steps are even."""
    found = Counter()
    for place in (np.arange(sweep) + 0.5) / sweep:
        drawn = draw(sampler, ranges, number, Even(place), weight)
        found.update(zip(drawn.later.tolist(), drawn.earlier.tolist(), strict=True))
    total = sum(found.values())
    return {pair: count / total for pair, count in found.items()}


def assert_law(sampler, ranges, law, number, weight=None):
    """Every pair has its probability, up to the two ends of its part of the places."""
    if not law:
        assert not len(draw(sampler, ranges, number, np.random.default_rng(0), weight).later)
        return
    found = shares(sampler, ranges, number, weight)
    possible = sum(one > 0 for one in law.values())
    assert set(found) <= {pair for pair, value in law.items() if value > 0}
    for pair, value in law.items():
        error = 2.0 / (SWEEP * min(number, possible)) + 1e-9
        assert found.get(pair, 0.0) == pytest.approx(value, abs=error)


@st.composite
def cases(draw):
    """Weights and first partners of keys, ranges of later keys, and weights of ranges."""
    n = draw(st.integers(0, 9))
    weight = np.array([draw(weights) for _ in range(n)], float)
    low = np.array([draw(st.integers(0, i)) for i in range(n)], np.int64)
    ends = sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=6)))
    ranges = np.stack([ends[:-1], ends[1:]], axis=1)
    return weight, low, ranges, np.array([draw(weights) for _ in ranges], float)


@settings(max_examples=40)
@given(case=cases(), number=st.integers(1, 12), weighted=st.booleans())
def test_pairs_have_the_product_of_their_weights(case, number, weighted):
    """Ranges have their own weights, or those of all their pairs."""
    weight, low, ranges, of_ranges = case
    law = {}
    for (begin, end), own in zip(ranges.tolist(), of_ranges, strict=True):
        pairs = {(i, j): weight[i] * weight[j] for i in range(begin, end) for j in range(low[i], i)}
        total = sum(pairs.values())
        factor = (own / total if total else 0.0) if weighted else 1.0
        law |= {pair: factor * value for pair, value in pairs.items()}
    if not any(law.values()):
        law = {}
    sampler = PairSampler(weight, low)
    assert_law(sampler, ranges, normed(law), number, of_ranges if weighted else None)


def test_rows_are_drawn_one_after_the_other():
    sampler = PairSampler(np.ones(12), np.repeat([0, 6], 6))
    begin, end = np.array([[0, 6], [3, 6], [0, 6]]), np.array([[6, 6], [3, 12], [6, 12]])
    found = sampler.draw(begin, end, np.array([4, 0, 99]), np.random.default_rng(0))
    assert found.row.tolist() == [0] * 4 + [2] * 30  # all pairs of the last row
    assert found.later[:4].max() < 6
    assert len(set(zip(found.later[4:].tolist(), found.earlier[4:].tolist(), strict=True))) == 30


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    weight=st.sampled_from([1.0, 0.3, 1e-9]),
    windowed=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equal_weights_give_every_pair_once(sizes, weight, windowed, seed):
    n = sum(sizes)
    low = np.repeat(np.cumsum(sizes) - sizes, sizes)
    every = [(i, j) for i in range(n) for j in range(low[i], i)]
    seen = Seen(np.zeros(n), np.full(n, 3.0)) if windowed else None
    sampler, rng = PairSampler(np.full(n, weight), low, seen), np.random.default_rng(seed)
    for number in (len(every), len(every) + 1, 10**9):
        drawn = draw(sampler, whole(sampler), number, rng)
        assert sorted(zip(*(x.tolist() for x in drawn[1:]), strict=True)) == every


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_every_text_has_its_expected_number_of_pairs_up_to_two(seed, number):
    rng = np.random.default_rng(seed)
    text = np.sort(rng.integers(0, 5, 40))
    sampler = PairSampler(rng.uniform(0.1, 5, 40), run_starts(text))
    drawn = draw(sampler, whole(sampler), number, rng)
    expected = np.bincount(text, sampler.chance, 5) / sampler.chance.sum() * number
    found = np.bincount(text[drawn.later], minlength=5)
    assert (np.abs(found - expected) < 2).all()  # one at each end
    assert (np.diff(drawn.later) >= 0).all()  # in the order of texts
    assert (text[drawn.later] == text[drawn.earlier]).all()


def test_one_key_with_almost_all_weight_and_many_other_texts():
    """The partners of a heavy key are drawn by their own small weights."""
    own = np.array([3e-9, 1e-9, 1.0, 0.0, 1.0])
    weight = np.concatenate([np.ones(1000), own])
    low = np.concatenate([np.arange(1000), np.full(5, 1000)])  # the others have no partners
    found = shares(PairSampler(weight, low), np.array([[1002, 1003]]), 2, sweep=1000)
    assert found == pytest.approx({(1002, 1000): 0.75, (1002, 1001): 0.25}, abs=0.003)


@given(
    numbers=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    pairs=st.integers(0, 80),
)
def test_bins_share_the_pairs_of_a_cell(numbers, pairs):
    pairs = min(pairs, sum(numbers))  # a cell never has more
    found = dealt(pairs, np.array(numbers), np.random.default_rng(pairs))
    assert [len(own) for own in found] == [min(number, pairs) for number in numbers]
    for own, number in zip(found, numbers, strict=True):
        assert len(set(own.tolist())) == len(own)
        assert (np.diff(own) > 0).all()
        if len(own):
            assert own[0] >= 0
            assert own[-1] < pairs
            step = pairs / number  # every part of the order has a pair
            gaps = np.diff(own, prepend=-1, append=pairs)
            assert number >= pairs or gaps.max() <= 2 * step + 2 * len(numbers) + 2
    if pairs == sum(numbers):
        assert sorted(np.concatenate(found).tolist()) == list(range(pairs))  # no pair twice
