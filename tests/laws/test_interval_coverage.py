"""Intervals contain the truth about as often as they should, on simulated heads."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.intervals import HeadColumn, difference_of_means, mean_half_width
from helpers.interval_coverage import QUANTITIES, measure
from helpers.rope_coverage import COLUMNS, MEAN, POOLED_INSTEAD, measure_rope
from helpers.simulated_heads import Population
from helpers.simulated_rope import RopePopulation


@pytest.fixture(scope="module")
def coverage():
    """Small bins: 14 queries of 14 texts. Errors of the truth are below 0.002 in a bin."""
    population = Population(
        width=12, buckets=10, texts=14, queries=1, keys=3, similarity=0.2, seed=0
    )
    return measure(population, 60, 12, true_pairs=50_000, num_pairs_per_bin=96)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_95_percent_intervals_cover_90_to_98_percent(coverage, quantity):
    """Shares over 60 dumps have a standard error of 3 %; those over heads and bins, below 2 %."""
    assert 0.90 <= coverage.share(quantity) <= 0.98
    assert abs(coverage.bias(quantity)) < 0.004


ROPE = {
    "uniform": RopePopulation(width=8, length=128, bin_size=16),
    "log-uniform": RopePopulation(width=8, length=128, bin_size=16, sampler="log_uniform"),
    "two lengths": RopePopulation(width=8, length=128, bin_size=16, texts=16, reach_end=0.6),
}


LAST = "two lengths"  # has both kinds of queries: of all texts, and of the long ones


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(name, marks=pytest.mark.long) for name in ROPE if name != LAST), LAST],
)
def at_one_position(request):
    """Heads with RoPE, 48 queries of 12 texts in a bin. Errors of the truth are below 0.004."""
    truth, dumps = {"each": 192, "texts": 200}, 120 if request.param == LAST else 240
    return measure_rope(ROPE[request.param], dumps, 3, truth, num_pairs_per_bin=128)


def test_intervals_at_one_position_cover_90_to_98_percent(at_one_position):
    """The truth is counted at one position. Shares have a standard error of 1 to 2 %."""
    for quantity in (*COLUMNS, MEAN):
        assert 0.90 <= at_one_position.share(quantity) <= 0.98, quantity
    for quantity in COLUMNS:
        assert abs(at_one_position.bias(quantity)) < 0.006, quantity
    assert at_one_position.share(POOLED_INSTEAD) < 0.2  # of a bin, not at one position


ELIGIBLE, CHOSEN, TEXT_GROUPS, SAMPLES = 40, 8, 12, 600


def _sampled(truth, chosen, rng):
    """Values of random heads. Every group of texts has an effect on all heads and on each head."""
    size = len(chosen)
    effects = rng.standard_normal((1, TEXT_GROUPS)) + rng.standard_normal((size, TEXT_GROUPS))
    effects *= 0.004  # (heads, groups)
    influences = np.zeros((size, len(GROUP_COLUMNS)))
    centred = effects - effects.mean(axis=1, keepdims=True)
    influences[:, :TEXT_GROUPS] = centred * np.sqrt(TEXT_GROUPS / (TEXT_GROUPS - 1))
    heads = tuple((0, int(head)) for head in chosen)
    values, groups = truth[chosen] + effects.sum(axis=1), np.full(size, float(TEXT_GROUPS))
    return HeadColumn(heads, values, influences, groups, ELIGIBLE)


@pytest.fixture(scope="module")
def of_sampled_heads():
    """Coverage of the mean over 40 heads by 8 random ones, and of differences of two models."""
    hits = defaultdict(list)
    for sample in range(SAMPLES):
        rng = np.random.default_rng([14, sample])
        truths = 0.6 + 0.12 * rng.standard_normal((1, ELIGIBLE))
        truths = truths + 0.05 * rng.standard_normal((2, ELIGIBLE))  # heads of two models
        chosen, others = (rng.choice(ELIGIBLE, CHOSEN, replace=False) for _ in range(2))
        one, same, other = (
            _sampled(truths[model], heads, rng)
            for model, heads in ((0, chosen), (1, chosen), (1, others))
        )
        true_mean, true_difference = truths[0].mean(), truths[0].mean() - truths[1].mean()
        fixed = replace(one, eligible=None)
        for name, mean in (("mean", one.mean), ("mean, texts alone", fixed.mean)):
            hits[name].append(abs(mean.value - true_mean) <= mean_half_width(mean))
        for name, right, same_heads in (("same heads", same, True), ("other heads", other, False)):
            found = difference_of_means(one, right, paired=False, same_heads=same_heads)
            reach = mean_half_width(found)
            hits[name].append(abs(found.value - true_difference) <= reach)
    return {name: float(np.mean(own)) for name, own in hits.items()}


@pytest.mark.parametrize("quantity", ["mean", "same heads", "other heads"])
def test_intervals_of_sampled_heads_cover_the_mean_of_all_heads(of_sampled_heads, quantity):
    """Shares over 600 samples have a standard error of 0.9 %."""
    assert 0.93 <= of_sampled_heads[quantity] <= 0.99


def test_the_variation_over_texts_alone_is_not_enough(of_sampled_heads):
    assert of_sampled_heads["mean, texts alone"] < 0.6
