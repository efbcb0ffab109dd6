"""Columns of a head from its estimates: names, order, and values that agree between tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import BUCKET_QUANTITY, DRIFT_COLUMNS, MEAN_COLUMNS
from simulated_heads import Population, analyse, draw_head


@pytest.fixture(scope="module")
def result() -> HeadResult:
    return analyse(*draw_head(Population(buckets=10), np.random.default_rng(0)))


def test_influences_have_a_row_per_mean_and_per_query_bucket(result: HeadResult) -> None:
    table = result.influences
    means = [*MEAN_COLUMNS, "ap_counted", "ap_gaussian_gap", *DRIFT_COLUMNS]
    assert table["quantity"] == means + 9 * [BUCKET_QUANTITY]
    assert all(math.isnan(bucket) for bucket in table["q_bucket"][: len(means)])
    assert table["q_bucket"][len(means) :] == list(range(1, 10))
    for name, value, bias in zip(means, table["value"], table["bias"], strict=False):
        assert value == pytest.approx(result.metrics[name], rel=1e-12)
        assert bias == result.metrics.get(f"{name}_bias", 0.0)  # counts have no bias


def test_values_of_query_buckets_are_means_of_their_cells(result: HeadResult) -> None:
    cells = result.bucket_plasticity
    rows = [i for i, name in enumerate(result.influences["quantity"]) if name == BUCKET_QUANTITY]
    for row in rows:
        inside = cells[cells["q_bucket"] == result.influences["q_bucket"][row]]
        for column, name in (("plasticity", "value"), ("plasticity_bias", "bias")):
            mean = np.average(inside[column], weights=inside["n_pairs"])
            assert result.influences[name][row] == pytest.approx(mean, rel=1e-9)


def test_the_drop_is_a_difference(result: HeadResult) -> None:
    metrics = result.metrics
    difference = metrics["ap_first20_bias"] - metrics["ap_last20_bias"]
    assert metrics["ap_drop_bias"] == pytest.approx(difference, rel=1e-12)
