"""Which pairs of keys are drawn and how often: against enumeration and exact distributions."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from attention_plasticity import sample_key_pairs
from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs

SURE = 1e-4  # a fixed seed whose p-value lies below this is no accident


def keys(n: int, buckets: int, examples: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "p_k": rng.permutation(n),
        "b_k": 3 * rng.integers(0, buckets, n),
        "example_ids_k": 100 - rng.integers(0, examples, n),
    }


def draw(rows: dict[str, np.ndarray], sampling: str, most: int, seed: int = 0, reach=0.05):
    return KeyIndex(**rows).draw(sampling, most, reach, np.random.default_rng(seed))


def unordered(pairs: KeyPairs) -> list[tuple[int, int]]:
    return [tuple(sorted(pair)) for pair in zip(pairs.first, pairs.second, strict=True)]


def all_pairs(rows: dict[str, np.ndarray]) -> dict[int, set[tuple[int, int]]]:
    """Pairs of rows of one bucket and example, by bucket."""
    b, e = rows["b_k"], rows["example_ids_k"]
    found: dict[int, set[tuple[int, int]]] = {int(c): set() for c in np.unique(b)}
    for i, j in combinations(range(len(b)), 2):
        if b[i] == b[j] and e[i] == e[j]:
            found[int(b[i])].add((i, j))
    return found


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = counts.sum() * probabilities / probabilities.sum()
    assert expected.min() > 5
    return float(stats.chisquare(counts, expected).pvalue)


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_bucket_pairs_are_distinct_pairs_of_one_bucket_and_example(most: int, seed: int) -> None:
    rows = keys(200, buckets=5, examples=3, seed=seed)
    pairs = draw(rows, "bucket", most, seed)
    admissible = all_pairs(rows)
    buckets = np.unique(rows["b_k"])
    drawn = unordered(pairs)
    assert len(set(drawn)) == len(drawn) == len(pairs)
    for code, bucket in enumerate(buckets):
        mine = [pair for pair, owner in zip(drawn, pairs.owner, strict=True) if owner == code]
        assert len(mine) == min(most, len(admissible[bucket]))
        assert set(mine) <= admissible[bucket]


def test_few_pairs_are_all_taken_once() -> None:
    rows = keys(60, buckets=4, examples=3, seed=2)
    admissible = all_pairs(rows)
    every = set().union(*admissible.values())
    largest = max(map(len, admissible.values()))
    for most in (largest, largest + 1, 10**9):
        assert Counter(unordered(draw(rows, "bucket", most))) == Counter(every)
    assert len(draw(rows, "bucket", largest - 1)) < len(every)


def test_buckets_without_a_pair_yield_none() -> None:
    lonely = {"p_k": np.arange(6), "b_k": np.arange(6), "example_ids_k": np.zeros(6, int)}
    strangers = {"p_k": np.arange(6), "b_k": np.zeros(6, int), "example_ids_k": np.arange(6)}
    one = {"p_k": [5], "b_k": [2], "example_ids_k": [9]}
    for rows in (lonely, strangers, one):
        assert len(draw(rows, "bucket", 256)) == 0
    for rows in (strangers, one):
        assert len(draw(rows, "local", 256)) == 0
    assert len(draw(lonely, "local", 256)) == 6 * 256  # one example, so neighbours exist


@pytest.mark.parametrize("sampling", ["bucket", "local"])
def test_the_order_of_a_pair_is_a_fair_coin(sampling: str) -> None:
    rows = {"p_k": np.arange(400), "b_k": np.arange(400) // 200, "example_ids_k": np.zeros(400)}
    pairs = draw(rows, sampling, 10_000)
    forward = int((pairs.first < pairs.second).sum())
    assert stats.binomtest(forward, len(pairs)).pvalue > SURE


def test_order_is_random_even_when_all_pairs_are_taken() -> None:
    rows = {"p_k": np.arange(150), "b_k": np.zeros(150), "example_ids_k": np.zeros(150)}
    pairs = draw(rows, "bucket", 10**6)
    forward = int((pairs.first < pairs.second).sum())
    assert stats.binomtest(forward, 150 * 149 // 2).pvalue > SURE


@pytest.mark.parametrize("most", [1, 4, 13])
def test_bucket_pairs_are_uniform_over_all_pairs(most: int) -> None:
    copies, sizes = 3000, (2, 3, 5)  # every bucket holds examples of 2, 3 and 5 keys: 14 pairs
    example = np.repeat(np.arange(3), sizes)
    rows = {
        "p_k": np.tile(np.arange(10), copies),
        "b_k": np.repeat(np.arange(copies), 10),
        "example_ids_k": np.tile(example, copies),
    }
    pairs = draw(rows, "bucket", most, seed=3)
    found = Counter((i % 10, j % 10) for i, j in unordered(pairs))
    counts = np.array([found[pair] for pair in combinations(range(10), 2)])
    counts = counts[counts > 0]
    assert len(counts) == 14
    assert counts.sum() == most * copies
    # without replacement the counts vary less: the statistic shrinks by (14 - most) / 13
    statistic = stats.chisquare(counts).statistic * 13 / (14 - most)
    assert stats.chi2.sf(statistic, 13) > SURE
    assert stats.chi2.cdf(statistic, 13) > SURE


def test_uniform_over_pairs_of_a_large_bucket() -> None:
    rows = {"p_k": np.arange(3000), "b_k": np.zeros(3000), "example_ids_k": np.arange(3000) // 1500}
    pairs = draw(rows, "bucket", 20_000, seed=4)
    low, high = np.sort([pairs.first, pairs.second], axis=0)
    assert (low // 1500 == high // 1500).all()
    example, low, high = low // 1500, low % 1500, high % 1500
    cell = np.ravel_multi_index((example, low // 250, high // 250), (2, 6, 6))
    index = np.arange(1500)
    a, b = np.nonzero(index[:, None] < index[None, :])
    size = np.bincount(a // 250 * 6 + b // 250, minlength=36).astype(float)
    possible = np.tile(size, 2) > 0
    counts = np.bincount(cell, minlength=72)
    assert counts[~possible].sum() == 0
    assert chi_square_p(counts[possible], np.tile(size, 2)[possible]) > SURE


def test_a_million_keys_of_one_example_give_proper_pairs() -> None:
    n = 1_000_000
    rows = {"p_k": np.arange(n), "b_k": np.zeros(n, int), "example_ids_k": np.zeros(n, int)}
    pairs = draw(rows, "bucket", 5000)
    low, high = np.sort([pairs.first, pairs.second], axis=0)
    assert (low < high).all()
    assert low.min() >= 0
    assert high.max() < n
    assert len(set(unordered(pairs))) == 5000
    # the larger of a uniform pair has CDF (x/n)²
    assert stats.kstest((high / n) ** 2, "uniform").pvalue > SURE


def test_triangular_unranking_is_exact_at_large_numbers() -> None:
    from attention_plasticity.numeric.key_pairs import _unrank_pairs

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


def exact_local_distribution(lengths: list[int], max_rel_dist: float) -> dict[tuple, float]:
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
def test_local_pairs_follow_the_exact_distribution(lengths: list[int]) -> None:
    for max_rel_dist in (0.0, 0.05, 0.3, 1.0):
        drawn = sample_key_pairs(lengths, 100_000, max_rel_dist, np.random.default_rng(5))
        chance = exact_local_distribution(lengths, max_rel_dist)
        ordered = {  # either key of the pair may have been the anchor
            (b, i, j): (p + chance[b, j, i]) / 2 for (b, i, j), p in chance.items()
        }
        found = Counter(map(tuple, drawn.tolist()))
        assert set(found) <= set(ordered)
        counts = np.array([found[triple] for triple in ordered])
        assert chi_square_p(counts, np.array(list(ordered.values()))) > SURE


def test_local_pairs_of_a_head_follow_ranks_and_belong_to_the_anchor() -> None:
    lengths = [9, 1, 4]
    example = np.repeat([70, 3, 50], lengths)  # ids in no order
    rng = np.random.default_rng(6)
    position = np.concatenate([np.sort(rng.choice(900, n, replace=False)) for n in lengths])
    rank = np.concatenate([np.arange(n) for n in lengths])
    order = rng.permutation(14)
    position, example, rank = position[order], example[order], rank[order]
    bucket = position // 300
    rows = {"p_k": position, "b_k": bucket, "example_ids_k": example}
    buckets = len(np.unique(bucket))
    pairs = draw(rows, "local", 40_000, seed=7, reach=0.3)
    assert len(pairs) == 40_000 * buckets
    assert (np.diff(pairs.owner) >= 0).all()

    row_of = {(e, r): i for i, (e, r) in enumerate(zip(example, rank, strict=True))}
    codes = np.unique(bucket, return_inverse=True)[1]
    expected: Counter[tuple[int, int, int]] = Counter()
    for (b, i, j), p in exact_local_distribution(lengths, 0.3).items():
        anchor, near = (row_of[[70, 3, 50][b], r] for r in (i, j))
        for first, second in ((anchor, near), (near, anchor)):
            expected[first, second, int(codes[anchor])] += p / 2
    found = Counter(
        zip(*(x.tolist() for x in (pairs.first, pairs.second, pairs.owner)), strict=True)
    )
    assert set(found) <= set(expected)
    counts = np.array([found[triple] for triple in expected])
    assert chi_square_p(counts, np.array(list(expected.values()))) > SURE
    other = np.where(codes[pairs.first] == pairs.owner, codes[pairs.second], codes[pairs.first])
    assert (pairs.other == other).all()


@pytest.mark.parametrize("sampling", ["bucket", "local"])
def test_pairs_depend_on_the_seed_alone(sampling: str) -> None:
    rows = keys(200, buckets=3, examples=2, seed=8)
    one, again, another = (draw(rows, sampling, 50, seed) for seed in (1, 1, 2))
    assert (one.first == again.first).all()
    assert (one.second == again.second).all()
    assert unordered(one) != unordered(another)


def test_an_index_can_be_drawn_from_many_times() -> None:
    rows = keys(100, buckets=3, examples=2, seed=9)
    index = KeyIndex(**rows)
    for sampling in ("bucket", "local", "bucket"):
        again = index.draw(sampling, 20, 0.05, np.random.default_rng(0))
        assert unordered(again) == unordered(draw(rows, sampling, 20))


@pytest.mark.parametrize("lengths", [[], [0], [1], [1, 0, 1, 1]])
def test_sampling_without_two_keys_in_any_example_raises(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="no example has two keys"):
        sample_key_pairs(np.array(lengths, int), 3)


def test_examples_too_short_for_a_pair_are_never_drawn() -> None:
    drawn = sample_key_pairs([0, 1, 2, 0, 3, 1], 5000, rng=np.random.default_rng(0))
    assert set(drawn[:, 0].tolist()) == {2, 4}


@pytest.mark.parametrize(
    ("lengths", "num_pairs", "max_rel_dist"),
    [
        ([5, -1], 3, 0.05),
        ([5, 5], -1, 0.05),
        ([5, 5], 3, -0.1),
        ([5.5, 2.0], 3, 0.05),
        ([[5]], 3, 0),
    ],
)
def test_impossible_arguments_are_refused(
    lengths: list[int], num_pairs: int, max_rel_dist: float
) -> None:
    with pytest.raises(ValueError, match=r"negative|one-dimensional"):
        sample_key_pairs(lengths, num_pairs, max_rel_dist)


@pytest.mark.parametrize("num_pairs", [0, 1, 17])
def test_sampled_pairs_come_as_rows_of_three_integers(num_pairs: int) -> None:
    drawn = sample_key_pairs([4, 9], num_pairs)
    assert drawn.shape == (num_pairs, 3)
    assert np.issubdtype(drawn.dtype, np.integer)


def test_sampled_pairs_depend_on_the_generator_alone() -> None:
    one, again, another = (
        sample_key_pairs([40, 90], 100, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert (one == again).all()
    assert (one != another).any()


def test_context_pairs_are_any_two_eligible_keys_of_one_example() -> None:
    rows = keys(60, buckets=4, examples=3, seed=0)
    index = KeyIndex(**rows)
    eligible = np.array([True, True, False, True])
    inside = eligible[np.searchsorted(index.buckets, rows["b_k"])]
    possible = {
        (i, j)
        for i, j in combinations(range(60), 2)
        if inside[i] and inside[j] and rows["example_ids_k"][i] == rows["example_ids_k"][j]
    }
    every = index.context_pairs(eligible, 10_000, np.random.default_rng(0))
    assert set(unordered(every)) == possible
    assert len(every) == len(possible)
    some = index.context_pairs(eligible, 10, np.random.default_rng(0))
    assert len(set(unordered(some))) == len(some) == 30
    buckets = np.searchsorted(index.buckets, rows["b_k"])
    for pairs in (every, some):
        codes = np.sort(np.stack([buckets[pairs.first], buckets[pairs.second]]), axis=0)
        np.testing.assert_array_equal(pairs.other, codes[0])
        np.testing.assert_array_equal(pairs.owner, codes[1])
        assert (np.diff(pairs.owner) >= 0).all()


def test_context_pairs_are_uniform_and_their_order_is_random() -> None:
    rows = {"p_k": np.arange(9), "b_k": np.arange(9) // 3, "example_ids_k": np.arange(9) % 2}
    index, rng = KeyIndex(**rows), np.random.default_rng(0)
    drawn = [index.context_pairs(np.ones(3, bool), 1, rng) for _ in range(4000)]
    counts = Counter(pair for pairs in drawn for pair in unordered(pairs))
    assert len(counts) == 16  # pairs of 5 and of 4 keys
    assert chi_square_p(np.array(list(counts.values())), np.ones(16)) > SURE
    ordered = sum(int((pairs.first < pairs.second).sum()) for pairs in drawn)
    assert stats.binomtest(ordered, 12_000).pvalue > SURE


def test_context_pairs_of_examples_with_one_key_are_none() -> None:
    index = KeyIndex(np.arange(4), np.arange(4), np.arange(4))
    assert len(index.context_pairs(np.ones(4, bool), 5, np.random.default_rng(0))) == 0
