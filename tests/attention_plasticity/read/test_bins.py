"""Bins of positions: their size, and the fifths that they are in."""

import numpy as np
import pytest

from attention_plasticity.read.bins import Bins, ExpectedQueries, bin_size, grid


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
def test_the_size_of_bins(context, per_token, size):
    positions = np.arange(context, dtype=float)
    expected = ExpectedQueries(positions, np.full(context, per_token))
    assert bin_size(context, expected) == size


def test_a_bin_can_be_in_two_fifths():
    bins = Bins(4, 10)
    position = np.arange(10.0)
    assert bins.of(position).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert bins.fifths(position).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert bins.starts(np.array([0, 2])).tolist() == [0, 8]
    assert bins.ends(np.array([0, 2])).tolist() == [3, 11]
    assert bins.fifths(np.array([10.0, 99.0])).tolist() == [4, 4]  # beyond the longest text


@pytest.mark.parametrize("context", [1, 7, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_a_grid_of_positions_covers_the_context(context):
    positions, step = grid(context)
    assert len(positions) <= 1 << 20
    assert positions.tolist()[:2] == [0, step][: len(positions)]
    assert context - step <= positions[-1] < context
