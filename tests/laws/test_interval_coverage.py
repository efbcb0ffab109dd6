"""Intervals contain the truth about as often as they should, on simulated heads."""

from __future__ import annotations

import numpy as np
import pytest

from interval_coverage import Coverage, measure
from simulated_heads import Population

DUMPS, HEADS, ATTENDED_HEADS = 60, 12, 2


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    """Small buckets: 14 queries of 14 texts. Errors of the truth are below 0.002 in a bucket."""
    population = Population(
        width=12, buckets=10, texts=14, queries=1, keys=3, similarity=0.2, seed=0
    )
    settings = {"num_pairs_per_bucket": 24, "normality_max_dims": 1}
    return measure(population, DUMPS, HEADS, ATTENDED_HEADS, true_pairs=50_000, **settings)


QUANTITIES = ["cell", "AP_j", "overall", "drop", "attended", "model mean", "paired"]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_95_percent_intervals_cover_90_to_98_percent(coverage: Coverage, quantity: str) -> None:
    """Shares over 60 dumps have a standard error of 3 %; those over heads and cells, below 2 %."""
    assert 0.90 <= coverage.share(quantity) <= 0.98


def test_means_over_heads_need_the_correction_of_bias(coverage: Coverage) -> None:
    assert coverage.share("mean, not corrected") < 0.5
    assert coverage.bias("plug-in") < -0.02
    assert abs(coverage.bias("corrected")) < 0.003
    assert abs(coverage.bias("counted")) < 0.003
    assert abs(coverage.bias("attended")) < 0.006


def test_gaussian_heads_are_rarely_flagged(coverage: Coverage) -> None:
    assert np.mean(coverage.hits["flagged"]) < 0.05
