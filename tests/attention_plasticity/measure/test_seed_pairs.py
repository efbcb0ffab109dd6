"""Key pairs of the seeds' columns: against enumeration and exact distributions."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from attention_plasticity import sample_key_pairs
from attention_plasticity.measure.seed_pairs import KeyIndex, _unrank_pairs

SURE = 1e-4  # a fixed seed whose p-value lies below this is no accident
Pair = tuple[int, int]


def keys(n, buckets, examples, seed):
    rng = np.random.default_rng(seed)
    return {
        "p_k": rng.permutation(n),
        "b_k": 3 * rng.integers(0, buckets, n),
        "example_ids_k": 100 - rng.integers(0, examples, n),
    }


def draw(rows, sampling, most, seed=0, reach=0.05):
    return KeyIndex(**rows).draw(sampling, most, reach, np.random.default_rng(seed))


def unordered(pairs):
    both = np.sort([pairs.first, pairs.second], axis=0)
    return [(int(i), int(j)) for i, j in both.T]


def all_pairs(rows):
    """Pairs of rows of one bucket and example, by bucket."""
    b, e = rows["b_k"], rows["example_ids_k"]
    found = {int(c): set() for c in np.unique(b)}
    for i, j in combinations(range(len(b)), 2):
        if b[i] == b[j] and e[i] == e[j]:
            found[int(b[i])].add((i, j))
    return found


def assert_follows(found, chance):
    """A chi-square test of counts against probabilities."""
    assert set(found) <= set(chance)
    expected = np.array(list(chance.values())) / sum(chance.values()) * sum(found.values())
    assert expected.min() > 5
    assert stats.chisquare([found[name] for name in chance], expected).pvalue > SURE


@pytest.mark.parametrize("most", [1, 7, 100, 10**9])
def test_bucket_pairs_are_distinct_pairs_of_one_bucket_and_example(most):
    rows = keys(200, buckets=5, examples=3, seed=1)
    pairs, admissible = draw(rows, "bucket", most), all_pairs(rows)
    drawn = unordered(pairs)
    assert len(set(drawn)) == len(drawn)
    for code, bucket in enumerate(np.unique(rows["b_k"])):
        mine = [pair for pair, owner in zip(drawn, pairs.owner, strict=True) if owner == code]
        assert len(mine) == min(most, len(admissible[bucket]))
        assert set(mine) <= admissible[bucket]


@pytest.mark.parametrize(
    ("sampling", "most"), [("bucket", 10_000), ("bucket", 10**6), ("local", 9)]
)
def test_the_order_of_a_pair_is_a_fair_coin(sampling, most):
    """Also if all pairs are taken."""
    rows = {"p_k": np.arange(400), "b_k": np.arange(400) // 200, "example_ids_k": np.zeros(400)}
    pairs = draw(rows, sampling, most)
    forward = int((pairs.first < pairs.second).sum())
    assert stats.binomtest(forward, len(pairs.first)).pvalue > SURE


@pytest.mark.parametrize("most", [1, 4, 13])
def test_bucket_pairs_are_uniform_over_all_pairs(most):
    copies, sizes = 3000, (2, 3, 5)  # every bucket holds examples of 2, 3 and 5 keys: 14 pairs
    rows = {
        "p_k": np.tile(np.arange(10), copies),
        "b_k": np.repeat(np.arange(copies), 10),
        "example_ids_k": np.tile(np.repeat(np.arange(3), sizes), copies),
    }
    found = Counter((i % 10, j % 10) for i, j in unordered(draw(rows, "bucket", most, seed=3)))
    assert len(found) == 14
    assert sum(found.values()) == most * copies
    # without replacement the counts vary less: the statistic shrinks by (14 - most) / 13
    statistic = stats.chisquare(list(found.values())).statistic * 13 / (14 - most)
    assert SURE < stats.chi2.sf(statistic, 13) < 1 - SURE


def test_triangular_unranking_is_exact_at_large_numbers():
    small = np.arange(5000)
    expected = [(low, high) for high in range(101) for low in range(high)][:5000]
    assert list(zip(*(x.tolist() for x in _unrank_pairs(small)), strict=True)) == expected
    roots = [2**k + delta for k in range(3, 30) for delta in (-1, 0, 1)]
    for high in [*roots, 94_906_266, 94_906_267, 1_000_000_007]:
        first = high * (high - 1) // 2
        numbers = np.array([first - 1, first, first + 1, first + high - 1, first + high])
        low, top = _unrank_pairs(numbers)
        assert top.tolist() == [high - 1, high, high, high, high + 1]
        assert low.tolist() == [high - 2, 0, 1, high - 1, 0]


def exact_local_distribution(lengths, max_rel_dist):
    """Probability of every (example, anchor, neighbour), enumerated."""
    usable = sum(length for length in lengths if length >= 2)
    chance = {}
    for b, length in enumerate(lengths):
        reach = max(1, math.floor(max_rel_dist * length))
        for i in range(length if length >= 2 else 0):
            near = [j for j in range(length) if j != i and abs(i - j) <= reach]
            for j in near:
                chance[b, i, j] = 1 / usable / len(near)
    assert sum(chance.values()) == pytest.approx(1.0)
    return chance


@pytest.mark.parametrize("lengths", [[2], [5, 3], [0, 2, 1, 7, 0, 4, 1], [41, 2]])
def test_sampled_pairs_follow_the_exact_distribution(lengths):
    for max_rel_dist in (0.0, 0.05, 0.3, 1.0):
        drawn = sample_key_pairs(lengths, 40_000, max_rel_dist, np.random.default_rng(5))
        chance = exact_local_distribution(lengths, max_rel_dist)
        ordered = {  # either key of the pair may have been the anchor
            (b, i, j): (p + chance[b, j, i]) / 2 for (b, i, j), p in chance.items()
        }
        assert_follows(Counter(map(tuple, drawn.tolist())), ordered)


def test_local_pairs_of_a_head_follow_ranks_and_belong_to_the_anchor():
    lengths = [9, 1, 4]
    example = np.repeat([70, 3, 50], lengths)  # ids in no order
    rng = np.random.default_rng(6)
    position = np.concatenate([np.sort(rng.choice(900, n, replace=False)) for n in lengths])
    rank = np.concatenate([np.arange(n) for n in lengths])
    order = rng.permutation(14)
    position, example, rank = position[order], example[order], rank[order]
    codes = np.unique(position // 300, return_inverse=True)[1]
    rows = {"p_k": position, "b_k": position // 300, "example_ids_k": example}
    pairs = draw(rows, "local", 40_000, seed=7, reach=0.3)
    assert len(pairs.first) == 40_000 * (codes.max() + 1)
    assert (np.diff(pairs.owner) >= 0).all()
    row_of = {(e, r): i for i, (e, r) in enumerate(zip(example, rank, strict=True))}
    expected = Counter()
    for (b, i, j), p in exact_local_distribution(lengths, 0.3).items():
        anchor, near = (row_of[[70, 3, 50][b], r] for r in (i, j))
        for first, second in ((anchor, near), (near, anchor)):
            expected[first, second, int(codes[anchor])] += p / 2
    columns = (x.tolist() for x in (pairs.first, pairs.second, pairs.owner))
    assert_follows(Counter(zip(*columns, strict=True)), expected)
    other = np.where(codes[pairs.first] == pairs.owner, codes[pairs.second], codes[pairs.first])
    assert (pairs.other == other).all()


@pytest.mark.parametrize("lengths", [[], [0], [1], [1, 0, 1, 1]])
def test_sampling_without_two_keys_in_any_example_raises(lengths):
    with pytest.raises(ValueError, match="no example has two keys"):
        sample_key_pairs(np.array(lengths, int), 3)


@pytest.mark.parametrize(
    ("lengths", "num_pairs", "max_rel_dist"),
    [([5, -1], 3, 0.05), ([5], -1, 0.05), ([5], 3, -0.1), ([5.5, 2.0], 3, 0.05), ([[5]], 3, 0)],
)
def test_impossible_arguments_are_refused(lengths, num_pairs, max_rel_dist):
    with pytest.raises(ValueError, match=r"negative|one-dimensional"):
        sample_key_pairs(lengths, num_pairs, max_rel_dist)


def test_context_pairs_are_any_two_eligible_keys_of_one_example():
    rows = keys(60, buckets=4, examples=3, seed=0)
    index = KeyIndex(**rows)
    eligible = np.array([True, True, False, True])
    buckets, example = np.searchsorted(index.buckets, rows["b_k"]), rows["example_ids_k"]
    possible = {
        (i, j)
        for i, j in combinations(range(60), 2)
        if eligible[buckets[[i, j]]].all() and example[i] == example[j]
    }
    every = index.context_pairs(eligible, 10_000, np.random.default_rng(0))
    assert sorted(unordered(every)) == sorted(possible)
    some = index.context_pairs(eligible, 10, np.random.default_rng(0))
    assert len(set(unordered(some))) == len(some.first) == 30
    for pairs in (every, some):
        codes = np.sort(np.stack([buckets[pairs.first], buckets[pairs.second]]), axis=0)
        np.testing.assert_array_equal(pairs.other, codes[0])
        np.testing.assert_array_equal(pairs.owner, codes[1])
        assert (np.diff(pairs.owner) >= 0).all()


def test_context_pairs_are_uniform_and_their_order_is_random():
    rows = {"p_k": np.arange(9), "b_k": np.arange(9) // 3, "example_ids_k": np.arange(9) % 2}
    index, rng = KeyIndex(**rows), np.random.default_rng(0)
    drawn = [index.context_pairs(np.ones(3, bool), 1, rng) for _ in range(800)]
    counts = Counter(pair for pairs in drawn for pair in unordered(pairs))
    assert len(counts) == 16  # pairs of 5 and of 4 keys
    assert stats.chisquare(list(counts.values())).pvalue > SURE
    ordered = sum(int((pairs.first < pairs.second).sum()) for pairs in drawn)
    assert stats.binomtest(ordered, 2400).pvalue > SURE
