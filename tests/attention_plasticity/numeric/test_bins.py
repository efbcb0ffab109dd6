"""Bins of positions, and pairs in proportion to weights."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from attention_plasticity.numeric.bins import Bins, BinWeights, ExpectedQueries, bin_size, texts_at
from attention_plasticity.numeric.key_pairs import KeyIndex
from attention_plasticity.numeric.pair_pool import WeightedKeys


@pytest.mark.parametrize(
    ("context", "per_token", "size"),
    [
        (8192, 1.0, 512),
        (8192, 32 / 512, 512),
        (8192, 31 / 512, 1024),
        (8192, 0.001, 1024),  # at most an eighth
        (1000, 1.0, 64),  # nearest by ratio to 62.5
        (1500, 1.0, 128),  # 93.75 is above 90.5, the middle of 64 and 128
        (3, 100.0, 1),
    ],
)
def test_the_size_of_bins(context: int, per_token: float, size: int) -> None:
    positions = np.arange(context, dtype=float)
    expected = ExpectedQueries(positions, np.full(context, per_token))
    assert bin_size(context, expected) == size


def test_texts_that_have_a_position() -> None:
    assert texts_at(np.array([3, 1, 5]), np.array([0, 1, 2, 3, 4, 5])).tolist() == [
        3,
        2,
        2,
        1,
        1,
        0,
    ]


def test_a_bin_can_be_in_two_fifths() -> None:
    bins = Bins(4, 10)
    position = np.arange(10.0)
    assert bins.of(position).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert bins.fifths(position).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    code = bins.of(position) - 1  # bin 0 is not used
    weights = BinWeights.of(
        np.array([1, 2]), code, bins.fifths(position), np.zeros(10, np.int64), np.full(10, 2.0)
    )
    assert weights.everywhere[:, 0].tolist() == [8.0, 4.0]
    assert weights.sums[:, :, 0].tolist() == [[0, 0], [0, 0], [4, 0], [4, 0], [0, 4]]


@pytest.mark.parametrize("sampling", ["bucket", "context", "local"])
def test_pairs_are_drawn_by_the_product_of_weights(sampling: str) -> None:
    position = np.array([0, 1, 2, 8, 9, 0, 1, 9])
    text = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    weight = np.array([1.0, 2.0, 4.0, 1.0, 3.0, 5.0, 1.0, 2.0])
    keys = WeightedKeys(KeyIndex(position, position // 8, text), weight)
    rng = np.random.default_rng(0)
    if sampling == "bucket":
        drawn = keys.bucket_pairs(20_000, rng)
        pools = [[(0, 1), (0, 2), (1, 2), (5, 6)], [(3, 4)]]
    elif sampling == "local":
        drawn = keys.local_pairs(10_000, 1.0, rng)  # any two keys of a text
        pools = []
    else:
        drawn = keys.context_pairs(np.array([True, True]), 10_000, rng)
        pairs = [(i, j) for i in range(8) for j in range(i + 1, 8) if text[i] == text[j]]
        pools = [pairs]
    counts = Counter(
        (min(i, j), max(i, j))
        for i, j in zip(drawn.first.tolist(), drawn.second.tolist(), strict=True)
    )
    assert (np.diff(drawn.owner) >= 0).all()
    if sampling == "local":
        pools = [list(counts)]
    for pool in pools:
        total = sum(counts[pair] for pair in pool)
        if sampling == "local":  # an anchor by weight, then another key of its text by weight
            sums = {0: 11.0, 1: 8.0}
            chance = {
                (i, j): weight[i] * weight[j] * sum(1 / (sums[text[i]] - weight[k]) for k in (i, j))
                for i, j in pool
            }
        else:
            chance = {(i, j): weight[i] * weight[j] for i, j in pool}
        for pair in pool:
            expected = chance[pair] / sum(chance.values())
            assert counts[pair] / total == pytest.approx(expected, abs=0.015), pair
