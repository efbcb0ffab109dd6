"""Pairs that queries see through a window, against a list of all queries and pairs."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from attention_plasticity.numeric.errors.bucket_influences import BucketInfluences
from attention_plasticity.numeric.errors.counting import CountingSums
from attention_plasticity.numeric.errors.influences import GroupedQueries
from attention_plasticity.numeric.key_pairs import KeyIndex, KeyPairs
from attention_plasticity.numeric.pair_pool import WeightedKeys
from attention_plasticity.numeric.pair_samples import KeyVectors, PairSample
from attention_plasticity.numeric.query_model import QueryModel, bucket_gaussians, bucket_moments
from attention_plasticity.numeric.scoring import (
    QuerySample,
    TextSample,
    score_models,
)
from attention_plasticity.numeric.visible_pairs import (
    BinQueries,
    SeenPairs,
    Visible,
    VisibleDraw,
    VisibleKeys,
)
from attention_plasticity.numeric.windows import Window

SIZE = 4  # of a bin of keys


def sees(t: int, x: int, window: Window) -> bool:
    """Whether a query at t sees a key at x."""
    if window.chunked:
        return x <= t and x // window.size == t // window.size
    return t - window.size < x <= t


class Case:
    """Few keys and queries, and the probabilities of all queries and pairs."""

    def __init__(
        self,
        keys: list[tuple[int, int, float]],  # text, position, weight
        queries: list[tuple[int, float]],  # position, weight
        window: Window,
        sampling: Any,
        reach: float,
    ) -> None:
        text, position, weight = (np.array(column) for column in zip(*keys, strict=True))
        index = KeyIndex(position, position // SIZE, text)
        weighted = WeightedKeys(index, weight.astype(float))
        self.keys = VisibleKeys(weighted, position.astype(float), window, sampling, reach)
        at, value = (np.array(column) for column in zip(*queries, strict=True))
        self.queries = BinQueries.of(np.arange(len(at)), at.astype(float), value.astype(float))
        self.law = law_of(keys, queries, window, sampling, reach)

    def draw(self, number: int, seed: int) -> SeenPairs:
        eligible = Visible.of(self.keys, self.queries).key_bins
        draw = VisibleDraw(self.keys, [self.queries], number, np.random.default_rng(seed))
        return draw.draw(eligible)


def law_of(
    keys: list[tuple[int, int, float]],
    queries: list[tuple[int, float]],
    window: Window,
    sampling: str,
    reach: float,
) -> dict[tuple[int, int, int], float]:
    """The probability of each (query, key, key), from plain loops."""
    law: dict[tuple[int, int, int], float] = {}
    for number, (t, weight) in enumerate(queries):
        for text in {key[0] for key in keys}:
            rows = [row for row, key in enumerate(keys) if key[0] == text]
            rows.sort(key=lambda row: keys[row][1])
            rank = {row: place for place, row in enumerate(rows)}
            most = max(1, int(reach * len(rows)))
            visible = [row for row in rows if sees(t, keys[row][1], window)]
            for x, y in combinations(visible, 2):
                pair = min(x, y), max(x, y)
                value = keys[x][2] * keys[y][2]
                if sampling == "bucket" and keys[x][1] // SIZE != keys[y][1] // SIZE:
                    continue
                if sampling == "local":
                    if abs(rank[x] - rank[y]) > most:
                        continue
                    near = {
                        row: sum(
                            keys[o][2]
                            for o in visible
                            if o != row and abs(rank[o] - rank[row]) <= most
                        )
                        for row in pair
                    }
                    value = value / near[x] + value / near[y]
                law[(number, *pair)] = law.get((number, *pair), 0.0) + weight * value
    total = sum(law.values())
    return {name: value / total for name, value in law.items()}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    weights = st.floats(1.0, 1000.0)
    places = draw(
        st.sets(st.tuples(st.integers(0, 2), st.integers(0, 15)), min_size=2, max_size=12)
    )
    keys = [(*place, draw(weights)) for place in draw(st.permutations(sorted(places)))]
    queries = draw(st.lists(st.tuples(st.integers(0, 16), weights), min_size=1, max_size=5))
    window = Window(draw(st.integers(1, 20)), draw(st.booleans()))
    sampling = draw(st.sampled_from(["bucket", "local", "context"]))
    return Case(keys, queries, window, sampling, draw(st.sampled_from([0.05, 0.3, 1.0])))


@settings(max_examples=150, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_queries_and_pairs_have_the_probabilities_of_their_weights(case: Case, seed: int) -> None:
    visible = Visible.of(case.keys, case.queries)
    assert visible.pairs == len({pair[1:] for pair in case.law})
    drawn = case.draw(2000, seed)
    if not case.law:
        assert len(drawn) == visible.texts == 0
        return
    assert len(drawn) == 2000 * visible.key_bins.sum()
    counts = dict.fromkeys(case.law, 0)
    for query, first, second in zip(drawn.query, drawn.first, drawn.second, strict=True):
        counts[int(query), min(int(first), int(second)), max(int(first), int(second))] += 1
    observed = np.array([counts[name] for name in case.law])
    expected = len(drawn) * np.array([case.law[name] for name in case.law])
    often = expected > 8
    observed = np.append(observed[often], observed[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    used = expected > 1e-9 * len(drawn)
    statistic = ((observed[used] - expected[used]) ** 2 / expected[used]).sum()
    assert statistic < chi2.isf(1e-9, used.sum()) + 10


@pytest.mark.parametrize("sampling", ["bucket", "local", "context"])
def test_pairs_do_not_depend_on_the_size_of_blocks(
    monkeypatch: pytest.MonkeyPatch, sampling: str
) -> None:
    keys = [(text, position, 1.0) for text in range(3) for position in range(16)]
    queries = [(position, 1.0) for position in range(8, 16)]
    case = Case(keys, queries, Window(6), sampling, 0.2)
    monkeypatch.setattr("attention_plasticity.numeric.visible_pairs._MOST_RANGES", 6)
    drawn = case.draw(8000, 0)
    counts = np.bincount(drawn.query, minlength=8) / len(drawn)
    expected = np.zeros(8)
    for (query, _, _), value in case.law.items():
        expected[query] += value
    assert np.abs(counts - expected).max() < 0.01


def test_the_owner_is_the_bin_of_the_later_key_and_either_key_comes_first() -> None:
    keys = [(0, position, 1.0) for position in range(12)]
    drawn = Case(keys, [(11, 1.0)], Window(12), "context", 0.05).draw(100, 0)
    later = np.maximum(drawn.first, drawn.second)
    assert (drawn.owner == later // SIZE).all()
    assert (drawn.other == np.minimum(drawn.first, drawn.second) // SIZE).all()
    assert 0.4 < (drawn.first == later).mean() < 0.6
    assert (np.diff(drawn.owner) >= 0).all()


def test_the_queries_drawn_with_pairs_have_an_influence_through_their_groups() -> None:
    rng = np.random.default_rng(0)
    n, d, texts = 240, 3, 6
    position, text = np.tile(np.arange(40.0), 6), np.repeat(np.arange(texts), 40)
    order = np.argsort(position // 20, kind="stable")
    q = (rng.standard_normal((n, d)) + 0.5)[order]
    position_q, group = position[order], text[order]
    bins = (position_q // 20).astype(np.int64)
    moments = bucket_moments(position_q, bins, q, with_first=True)
    model = QueryModel(moments, bucket_gaussians("full", moments, *[np.empty(0)] * 3))
    keys = VisibleKeys(
        WeightedKeys(KeyIndex(position, position // 20, text), np.ones(n)),
        position,
        Window(30),
        "context",
        0.05,
    )
    queries = [
        BinQueries.of(rows, position_q[rows], np.ones(len(rows)))
        for rows in (np.flatnonzero(bins == code) for code in range(2))
    ]
    X_k = rng.standard_normal((n, d))
    grouped = GroupedQueries("full", group, q)
    found = {}
    drawn: list[SeenPairs] = []

    class Recorded(VisibleDraw):
        """Keeps the pairs, and can hide their queries."""

        with_query = True

        def draw(self, eligible: Any) -> Any:
            pairs = super().draw(eligible)
            drawn.append(pairs)
            plain = {f.name: getattr(pairs, f.name) for f in fields(KeyPairs)}
            return pairs if self.with_query else KeyPairs(**plain)

    for with_query in (True, False):
        draw = Recorded(keys, queries, 100, np.random.default_rng(1))
        draw.with_query = with_query
        counting = CountingSums(grouped, 0.0, 2, 2)
        influences = BucketInfluences(grouped, [slice(0, 120), slice(120, 240)], moments)
        sample = TextSample(grouped, influences, text, counting)
        eligible = np.array([[True, False], [True, True]])
        pairs = PairSample(KeyVectors(X_k), draw, np.arange(2), eligible)
        found[with_query] = score_models([QuerySample(model, sample)], pairs, of_cells=False)[0]
    for code, pairs in enumerate(drawn[:2]):
        w = X_k[pairs.first] - X_k[pairs.second]
        z = w @ moments.mean[code]
        z /= np.sqrt(np.einsum("pi,ij,pj->p", w, moments.covariance[code], w))
        f = 4 * norm.cdf(z) * norm.sf(z)
        expected = np.bincount(group[pairs.query], f - f.mean(), 16) / len(f) * np.sqrt(6 / 5)
        both, plain = (found[one].uncertainty for one in (True, False))
        assert both is not None
        assert plain is not None
        added = both.profile_influences[code] - plain.profile_influences[code]
        assert found[True].profile[code] == pytest.approx(f.mean(), abs=1e-6)
        assert added == pytest.approx(expected, abs=1e-6)
    one, other = (found[name].counted for name in (True, False))
    assert one is not None
    assert other is not None
    assert one.counted.value == other.counted.value
    assert np.abs(one.counted.influences - other.counted.influences).max() > 1e-4


def test_texts_can_have_weights_of_their_own() -> None:
    """Within a text the law stays; keys of weight 0 and texts with one key are left out."""
    keys = [(text, position, 1.0 + position % 3) for text in (2, 5, 7) for position in range(10)]
    keys += [(3, 4, 1.0), (7, 10, 0.0)]
    queries, window = [(6, 1.0), (9, 2.0), (11, 1.0)], Window(5)
    case = Case(keys, queries, window, "context", 1.0)
    assert case.keys.text_codes.tolist() == [0, 2, 3]  # among texts 2, 3, 5 and 7
    weight = np.array([[1.0, 3.0, 0.0]])
    rng = np.random.default_rng(0)
    drawn = VisibleDraw(case.keys, [case.queries], 40_000, rng, weight).draw(np.array([True]))
    of_text = dict(zip((2, 5, 7), weight[0] / weight.sum(), strict=True))
    parts = dict.fromkeys(of_text, 0.0)
    for (_, first, _), chance in case.law.items():
        parts[keys[first][0]] += chance
    law = {
        name: chance * of_text[keys[name[1]][0]] / parts[keys[name[1]][0]]
        for name, chance in case.law.items()
        if of_text[keys[name[1]][0]] > 0 and keys[name[1]][2] * keys[name[2]][2] > 0
    }
    low, high = np.minimum(drawn.first, drawn.second), np.maximum(drawn.first, drawn.second)
    found = dict.fromkeys(law, 0)
    for name in zip(drawn.query.tolist(), low.tolist(), high.tolist(), strict=True):
        found[name] += 1
    expected = 40_000 * np.array(list(law.values()))
    square = ((np.array(list(found.values())) - expected) ** 2 / expected).sum()
    assert chi2.sf(square, len(law) - 1) > 1e-4
