"""Pairs of a query and an earlier key: which pairs there are, their weights, and the draw."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.distance_pairs import PlacedRows, distance_pairs
from helpers.plain_visible import sees

MANY = 1 << 20
RNG = np.random.default_rng(0)


def placed(rng, n, texts=3):
    """Rows at random places, in random order, with unequal weights."""
    places = rng.choice(texts * 60, n, replace=False)
    text, position = np.divmod(places, 60)
    return PlacedRows(position.astype(float), text * 7 + 2, rng.uniform(0.5, 4.0, n))


def all_pairs(queries, keys, visible):
    """Every pair that a query sees, with its weight, by looking at all of them."""
    found = {}
    for i, j in product(range(len(queries.text)), range(len(keys.text))):
        t, s = queries.position[i], keys.position[j]
        if queries.text[i] == keys.text[j] and s < t and sees(t, s, visible):
            found[i, j] = queries.weight[i] * keys.weight[j]
    return found


def as_dict(pairs):
    places = zip(pairs.query.tolist(), pairs.key.tolist(), strict=True)
    return dict(zip(places, pairs.weight.tolist(), strict=True))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    visible=st.sampled_from([Visible(), Visible(5), Visible(16), Visible(8, chunked=True)]),
)
def test_small_samples_have_every_pair_once(seed, visible):
    rng = np.random.default_rng(seed)
    queries, keys = placed(rng, 40), placed(rng, 30, texts=4)
    pairs = distance_pairs(queries, keys, visible, rng, MANY, 0)
    expected = all_pairs(queries, keys, visible)
    assert len(pairs.query) == len(expected)
    assert as_dict(pairs) == pytest.approx(expected)
    distance = queries.position[pairs.query] - keys.position[pairs.key]
    assert pairs.distance.tolist() == distance.tolist()
    assert (pairs.first[pairs.bin] <= distance).all()
    assert (distance < pairs.end[pairs.bin]).all()
    assert (np.diff(pairs.bin) >= 0).all()
    assert (pairs.counts > 0).all()


@pytest.mark.parametrize("visible", [Visible(), Visible(20), Visible(32, chunked=True)])
def test_a_draw_stands_for_all_pairs(visible):
    rng = np.random.default_rng(3)
    queries, keys = placed(rng, 150), placed(rng, 150)
    expected = all_pairs(queries, keys, visible)
    value = rng.standard_normal((150, 150))
    full = distance_pairs(queries, keys, visible, RNG, MANY, 0)
    sums = []
    for seed in range(60):
        pairs = distance_pairs(queries, keys, visible, np.random.default_rng(seed), 20, 200)
        assert set(as_dict(pairs)) <= set(expected)
        own = [full.weight[full.bin == b].sum() for b in range(len(full.first))]
        assert np.bincount(pairs.bin, pairs.weight) == pytest.approx(own)  # of every bin
        sums.append(pairs.weight @ value[pairs.query, pairs.key])
    right = sum(weight * value[pair] for pair, weight in expected.items())
    assert abs(np.mean(sums) - right) < 4 * np.std(sums, ddof=1) / np.sqrt(len(sums))


def test_without_pairs():
    rows = PlacedRows(np.zeros(3), np.array([0, 1, 2]), np.ones(3))
    pairs = distance_pairs(rows, rows, Visible(), RNG)
    assert len(pairs.query) == len(pairs.first) == 0
    other = rows._replace(text=np.array([5, 6, 7]), position=np.full(3, 9.0))
    assert len(distance_pairs(other, rows, Visible(), RNG).query) == 0
