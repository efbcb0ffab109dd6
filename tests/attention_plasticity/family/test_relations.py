"""Correlations over models, against plain loops and numpy's own correlation."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from attention_plasticity.family.relations import known_points, relation, relation_table
from attention_plasticity.family.relations_figure import point_looks, relations_figure
from attention_plasticity.plots.captions import caption_of
from family_models import small_models

X = np.array([0.10, 0.40, 0.35, 0.80, 0.55, 0.20])
Y = np.array([30.0, 45.0, 52.0, 60.0, 41.0, 33.0])
FAMILIES = ["a", "a", "b", "b", "c", ""]


def plain(x: np.ndarray, y: np.ndarray, ranked: bool = False) -> float:
    if ranked:  # no ties here
        x, y = (np.argsort(np.argsort(part)) for part in (x, y))
    return float(np.corrcoef(x, y)[0, 1])


@pytest.mark.parametrize("ranked", [False, True])
def test_value_and_exact_p_value(ranked: bool) -> None:
    found = relation("ap_aligned", "ruler", X, Y, FAMILIES)
    strength = found.spearman if ranked else found.pearson
    value = plain(X, Y, ranked)
    assert strength.value == pytest.approx(value, abs=1e-12)
    orders = [np.array(order) for order in permutations(range(6))]
    as_large = sum(abs(plain(X, Y[order], ranked)) >= abs(value) - 1e-9 for order in orders)
    assert strength.p_value == pytest.approx(as_large / 720, abs=1e-12)


@pytest.mark.parametrize("ranked", [False, True])
def test_the_range_without_one_family(ranked: bool) -> None:
    found = relation("ap_aligned", "ruler", X, Y, FAMILIES)
    strength = found.spearman if ranked else found.pearson
    left = [[2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 2, 3, 5]]  # without a, b and c
    values = [plain(X[kept], Y[kept], ranked) for kept in left]
    assert strength.family_low == pytest.approx(min(values), abs=1e-12)
    assert strength.family_high == pytest.approx(max(values), abs=1e-12)
    assert (found.models, found.families) == (6, 3)


def test_the_bootstrap_interval_is_that_of_a_plain_loop() -> None:
    found = relation("ap_aligned", "ruler", X, Y, FAMILIES).pearson
    rng, values = np.random.default_rng(123), []  # other draws
    for _ in range(4000):
        chosen = rng.integers(0, 6, 6)
        if len(set(chosen.tolist())) > 1:
            values.append(plain(X[chosen], Y[chosen]))
    low, high = np.quantile(values, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.05)
    assert found.high == pytest.approx(high, abs=0.02)
    assert found.low < found.value < found.high


def test_intervals_contain_the_true_correlation_of_many_models() -> None:
    """A normal sample of 60 models with the correlation 0.5, 30 times."""
    rng, inside = np.random.default_rng(5), 0
    for _ in range(30):
        x = rng.normal(size=60)
        y = 0.5 * x + math.sqrt(0.75) * rng.normal(size=60)
        found = relation("m", "s", x, y, [""] * 60).pearson
        inside += found.low <= 0.5 <= found.high
    assert inside >= 25


def test_random_permutations_of_many_models() -> None:
    rng = np.random.default_rng(1)
    x = np.arange(12.0)
    strong = relation("m", "s", x, x + rng.normal(0, 0.1, 12), [""] * 12)
    assert strong.pearson.p_value == pytest.approx(1 / 10_000)
    p_values = [
        relation("m", "s", x, rng.normal(size=12), [""] * 12).pearson.p_value for _ in range(20)
    ]
    assert 0.25 < np.mean(p_values) < 0.75  # even between 0 and 1 without a relation
    assert math.isnan(strong.pearson.family_low)  # no families
    assert strong.warning == ""


def test_few_models_and_equal_values_are_said_plainly() -> None:
    found = relation("m", "s", X, Y, FAMILIES)
    assert found.warning == "only 6 models: one model can decide this result"
    two = relation("m", "s", X[:2], Y[:2], FAMILIES[:2])
    assert (two.obstacle, math.isnan(two.pearson.value)) == ("2 models, too few", True)
    assert relation("m", "s", X, np.full(6, 3.0), FAMILIES).obstacle == "equal scores"
    assert relation("m", "s", np.full(6, 3.0), Y, FAMILIES).obstacle == "equal values"
    three = relation("m", "s", X[:3], Y[:3], FAMILIES[:3])
    assert math.isnan(three.pearson.low)  # no interval of three models
    unknown = np.where(np.arange(6) == 2, np.nan, Y)
    assert relation("m", "s", X, unknown, FAMILIES).models == 5
    table = relation_table([found, two])
    assert table["warning"].tolist() == [found.warning, two.obstacle]
    assert table.loc[0, "spearman_p_value"] == found.spearman.p_value


def test_the_figure_has_a_panel_per_relation(tmp_path: Path) -> None:
    runs = small_models(tmp_path, 4)
    families = ["a", "b", "a", ""]
    metrics = {"ap_aligned": known_points(X[:4].tolist(), [0.02, 0.03, math.nan, 0.01])}
    scores = {f"score {number}": known_points(Y[:4].tolist(), [1.0] * 4) for number in range(14)}
    found = [
        relation("ap_aligned", name, metrics["ap_aligned"].values, one.values, families)
        for name, one in scores.items()
    ]
    figure = relations_figure(found, metrics, scores, runs, families, width=3.3)
    assert len(figure.axes) == 12
    assert "2 further panels" in figure.get_supxlabel()
    assert figure.axes[0].get_ylabel() == "score 0"
    title = figure.axes[0].get_title(loc="left").splitlines()
    assert title[0].startswith(f"Pearson {plain(X[:4], Y[:4]):.2f}, p ")  # too few for an interval
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["m0", "m1", "m2", "m3"]
    looks = point_looks(families)
    assert looks[0]["color"] == looks[2]["color"] != looks[1]["color"]
    assert looks[0]["marker"] != looks[2]["marker"]
    caption = caption_of(figure)
    assert caption is not None
    assert "Colours are families: a, b." in caption
    assert "only 4 models: one model can decide this result" in caption
