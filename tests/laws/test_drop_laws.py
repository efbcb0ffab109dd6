"""The parts of the drop find what they should, on simulated heads with a known cause."""

import numpy as np
import pytest

from helpers.rope_coverage import FALLS, PARTS, measure_parts
from helpers.simulated_rope import equal_cells, split

POSITION, DISTANCE, DROP = PARTS


@pytest.fixture(scope="module", params=["position alone", "distance alone", "both"])
def parts(request):
    """Coverage and true values of 180 heads, 12 texts each."""
    coverage, truth = measure_parts(FALLS[request.param], 60, 3, num_pairs_per_bin=128)
    return request.param, coverage, truth


def test_each_part_finds_its_own(parts):
    """The truth is counted without a Gaussian; a share has a standard error below 2 %."""
    name, coverage, truth = parts
    assert truth[DROP] > 0.05
    if name != "both":
        own, other = (POSITION, DISTANCE) if name.startswith("position") else (DISTANCE, POSITION)
        assert truth[own] == pytest.approx(truth[DROP], abs=0.006)
        assert truth[other] == pytest.approx(0.0, abs=0.006)
    else:
        assert min(truth[POSITION], truth[DISTANCE]) > 0.02
    for quantity in (POSITION, DISTANCE):
        assert coverage.share(f"{quantity} known") == 1.0
        assert 0.90 <= coverage.share(quantity) <= 0.98, quantity
        assert abs(coverage.bias(quantity)) < 0.01, quantity


def test_the_split_of_cells_that_are_known():
    """A table that falls with the query bin alone, and one that falls with the distance alone."""
    query, key = np.indices((20, 20)).astype(float)
    ranges = range(1, 4), range(16, 20)
    of_position = split(equal_cells(1.0 - 0.01 * query), *ranges)
    last = 4 / sum(1 / number for number in range(16, 20))  # a cell weighs 1/q in its bin
    assert of_position[POSITION] == pytest.approx(0.01 * (last - 2.0))
    assert of_position[DROP] == pytest.approx(0.01 * (17.5 - 2.0))
    of_distance = split(equal_cells(1.0 - 0.01 * (query - key)), *ranges)
    assert of_distance[POSITION] == pytest.approx(0.0)
    assert of_distance[DISTANCE] == pytest.approx(0.01 * (9.25 - 1.5))
