"""Laws of plasticity at one position: bins, and the order and the names of texts and rows."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.measure.plasticity import COLUMNS
from attention_plasticity.metrics import ALIGNED, ALIGNED_LAST, ATTENDED, PHASE, POOLED
from attention_plasticity.read.pool import KeyPool
from helpers.simulated_rope import RopeHead, RopePopulation, draw_rope_head

ALL_PAIRS = 10**5


def _head(population, seed, *, attended=True):
    rng = np.random.default_rng([seed, 5])
    effects = rng.standard_normal((2, population.texts, population.width))
    return draw_rope_head(population, rng, effects, attended=attended)


@pytest.mark.parametrize("seed", [0, 2])
def test_bins_of_three_sizes_agree_within_errors_for_context_pairs(seed):
    """The same rows of one head. Its queries do not drift, so early queries are like late ones."""
    population = RopePopulation(
        length=4096, rate=1 / 16, texts=16, similarity=0.2, drift=0.0, pairs="context", seed=seed
    )
    rows = []
    for size in (64, 256, 1024):
        head = _head(replace(population, bin_size=size), seed, attended=False)
        how = {"pair_sampling": "context", "num_pairs_per_bin": 2 * size}
        rows.append(head.analyse(**how).metrics)
    for name in (ALIGNED, ALIGNED_LAST):
        for one, other in combinations(rows, 2):
            error = np.hypot(one[f"{name}_se"], other[f"{name}_se"])
            assert abs(one[name] - other[name]) <= 2 * error
    pooled = [row[POOLED] for row in rows]
    assert sorted(pooled) == pooled  # a wider bin has more rotation
    assert pooled[0] - rows[0][ALIGNED] > 5 * rows[0][f"{PHASE}_se"]


def _moved(rows, order, names):
    """The rows in another order, with other names of the texts."""
    assert rows.example_id is not None
    return rows[order].with_columns({"example_id": names[rows.example_id[order]]})


def _moved_keys(keys, order, names):
    rows = _moved(keys.rows, order, names)
    assert rows.example_id is not None
    group = keys.texts.group_of(rows.example_id)
    weight = keys.weight[order]
    return replace(keys, rows=rows, weight=weight, text=rows.example_id, group=group)


def _shuffled(head, rng, names):
    """The head with its rows in random orders, and other names of its texts."""
    order = rng.permutation(len(head.queries))
    keys = _moved_keys(head.keys, rng.permutation(len(head.keys)), names)
    pool = head.pool
    if pool is not None:
        of_pool = rng.permutation(len(pool.received))
        pool = KeyPool(_moved_keys(pool.keys, of_pool, names), pool.received[of_pool])
    return RopeHead(_moved(head.queries, order, names), head.weight[order], keys, pool)


@pytest.mark.parametrize("pairs", ["bucket", "context"])
@settings(deadline=None, max_examples=4, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_rows_and_the_names_of_texts_change_nothing(pairs, seed):
    """Every possible pair is used: keys have equal weights, queries have those of their sampler.

    Each of 12 texts is a group, whatever its name is.
    """
    population = RopePopulation(
        width=8, length=128, bin_size=16, rate=0.15, sampler="log_uniform", seed=seed % 5
    )
    rng, head = np.random.default_rng(seed), _head(population, seed, attended=False)
    head = replace(head, keys=replace(head.keys, weight=np.ones(len(head.keys))))
    other = _shuffled(head, rng, rng.permutation(population.texts))
    how = {"pair_sampling": pairs, "num_pairs_per_bin": ALL_PAIRS}
    before, after = head.analyse(**how), other.analyse(**how)
    for name in COLUMNS:
        for column in (name, f"{name}_se"):
            found, expected = after.metrics[column], before.metrics[column]
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), column
    one, two = before.tables["bins"], after.tables["bins"]
    for name in (
        "n_pairs",
        "q_position",
        "n_queries",
        "q_weight",
        "n_texts",
        "plasticity",
        "pooled",
    ):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("sampler", ["uniform", "log_uniform"])
@settings(deadline=None, max_examples=4, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_they_change_only_the_draws_of_pairs(sampler, seed):
    """Attended pairs, and pairs of keys with weights, are drawn: other pairs, the same law."""
    population = RopePopulation(width=8, length=128, bin_size=16, sampler=sampler, seed=seed % 5)
    rng, head = np.random.default_rng(seed), _head(population, seed)
    other = _shuffled(head, rng, rng.permutation(population.texts))
    how = {"num_pairs_per_bin": 800}
    before, after = (one.analyse(**how).metrics for one in (head, other))
    for name in (*COLUMNS, ATTENDED):
        assert after[name] == pytest.approx(before[name], abs=before[f"{name}_se"]), name
        assert after[f"{name}_se"] == pytest.approx(before[f"{name}_se"], rel=0.5), name
