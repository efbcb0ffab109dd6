"""Standard errors and bias: against leaving out groups, in float64, and with few groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import GROUP_COLUMNS, MEAN_COLUMNS
from attention_plasticity.numeric.errors import uncertainty
from attention_plasticity.numeric.errors.uncertainty import bias_terms, mean_error, variance_error
from attention_plasticity.numeric.scores import score_margins
from exact_jackknife import exact_jackknife
from simulated_heads import Population, analyse, draw_head

MODELS = ("positional", "full", "diagonal")
SMALL = Population(buckets=10)
MANY = Population(texts=64, queries=8, keys=6, buckets=10, similarity=0.2, width=6)


def influences(result: HeadResult, quantity: str) -> np.ndarray:
    """(rows, 16) influences on a quantity."""
    table = np.array([result.influences[name] for name in GROUP_COLUMNS]).T
    return table[np.array(result.influences["quantity"]) == quantity]


@pytest.mark.parametrize("query_model", MODELS)
def test_influences_are_those_of_leaving_out_groups(query_model: str) -> None:
    how: dict[str, Any] = {"num_pairs_per_bucket": 200, "query_model": query_model}
    queries, keys = draw_head(MANY, np.random.default_rng(1))
    result = analyse(queries, keys, **how)
    exact = exact_jackknife(queries, keys, RunnerConfig(**how), 16)
    for name in ("ap_overall", "ap_last20", "ap_drop", "ap_bucket"):
        found = influences(result, name)  # (rows, g)
        expected = exact.influences(name).reshape(16, -1).T
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999
        ratio = np.sqrt((found**2).sum(axis=1)) / exact.standard_error(name)
        assert ratio.mean() == pytest.approx(1.0, abs=0.02)
    ratio = result.buckets["plasticity_se"] / exact.standard_error("plasticity")
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("query_model", MODELS)
def test_standard_errors_are_roots_of_summed_squares(query_model: str) -> None:
    result = analyse(*draw_head(SMALL, np.random.default_rng(2)), query_model=query_model)
    for name in (*MEAN_COLUMNS, "ap_counted", "ap_gaussian_gap"):
        (found,) = influences(result, name)
        assert result.metrics[f"{name}_se"] == pytest.approx(np.linalg.norm(found), rel=1e-12)
        assert not found[12:].any()  # there are 12 texts
    first, last, drop = (influences(result, f"ap_{n}") for n in ("first20", "last20", "drop"))
    np.testing.assert_allclose(drop, first - last, rtol=1e-12)


@pytest.mark.parametrize("query_model", MODELS)
def test_float32_products_are_accurate_enough(
    query_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative errors of standard errors are about 1e-7."""
    heads = draw_head(replace(SMALL, width=32), np.random.default_rng(3))
    how: dict[str, Any] = {"query_model": query_model, "counting": False}
    single = analyse(*heads, **how)
    monkeypatch.setattr(np, "float32", np.float64)
    double = analyse(*heads, **how)
    for name in MEAN_COLUMNS:
        for column in (f"{name}_se", f"{name}_bias"):
            assert single.metrics[column] == pytest.approx(double.metrics[column], abs=1e-6)
            assert single.metrics[column] == pytest.approx(double.metrics[column], rel=1e-5)
    assert single.metrics["ap_overall_se"] != double.metrics["ap_overall_se"]
    np.testing.assert_allclose(
        single.buckets["plasticity_se"], double.buckets["plasticity_se"], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("query_model", MODELS)
def test_the_bias_of_few_queries_is_removed(query_model: str) -> None:
    """Plasticity of few queries of many texts is too low; the corrected values are not."""
    population = Population(texts=24, queries=1, keys=4, similarity=0.0, width=4)
    truth = np.mean(list(population.true_profile().values()))
    rng = np.random.default_rng(4)
    found = [analyse(*draw_head(population, rng), query_model=query_model) for _ in range(40)]
    values = np.array([result.metrics["ap_overall"] for result in found])
    biases = np.array([result.metrics["ap_overall_bias"] for result in found])
    error = (values - biases).std(ddof=1) / np.sqrt(len(found))
    assert abs((values - biases).mean() - truth) < 3 * error + 0.003
    assert biases.mean() < -0.005


@pytest.mark.parametrize(("texts", "known"), [(3, False), (4, True)])
def test_heads_of_three_groups_have_a_bias_but_no_standard_error(texts: int, known: bool) -> None:
    result = analyse(*draw_head(replace(SMALL, texts=texts), np.random.default_rng(5)))
    for name in (*MEAN_COLUMNS, "ap_counted", "ap_gaussian_gap"):
        assert np.isfinite(result.metrics[f"{name}_se"]) == known
    assert np.isfinite([result.metrics[f"{name}_bias"] for name in MEAN_COLUMNS]).all()
    assert result.metrics["n_text_groups"] == texts
    assert np.isfinite(result.metrics["ap_counted"])
    assert np.isfinite(result.buckets["plasticity_se"]).all()
    assert np.isfinite(influences(result, "ap_bucket")).all()


def test_buckets_of_two_groups_have_no_standard_error() -> None:
    population = Population(texts=6, reach_end=0.3)  # two texts reach the last half
    result = analyse(*draw_head(population, np.random.default_rng(6)))
    late = np.array(result.buckets["q_bucket"]) >= population.buckets // 2
    assert late.any()
    np.testing.assert_array_equal(np.isnan(result.buckets["plasticity_se"]), late)
    assert np.isfinite(result.buckets["plasticity_bias"]).all()
    buckets = np.array(result.influences["q_bucket"])[-population.buckets + 1 :]
    unknown = np.isnan(influences(result, "ap_bucket")).all(axis=1)
    np.testing.assert_array_equal(unknown, buckets >= population.buckets // 2)
    assert np.isfinite(result.metrics["ap_overall_se"])
    assert np.isnan(result.metrics["ap_last20_se"])  # two texts are too few
    assert np.isnan(result.metrics["ap_drop_se"])
    groups = np.array(result.influences["n_groups"])[-population.buckets + 1 :]
    np.testing.assert_array_equal(groups, np.where(buckets >= population.buckets // 2, 2, 6))


def test_the_numbers_of_groups_do_not_matter() -> None:
    """Other ids of the same texts permute the influences."""
    before, after = (draw_head(SMALL, np.random.default_rng(7)) for _ in range(2))
    for rows in (after[0], after[1].rows):
        assert rows.example_id is not None
        rows.example_id[...] += 5
    one, two = analyse(*before), analyse(*after)
    shifted = np.roll(influences(one, "ap_overall"), 5, axis=1)
    np.testing.assert_allclose(influences(two, "ap_overall"), shifted, rtol=1e-5, atol=1e-8)
    for name in ("ap_overall_se", "ap_drop_se", "ap_counted_se", "ap_gaussian_gap_se"):
        assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-6)


def test_kappa_of_independent_queries_is_one_over_n() -> None:
    rng = np.random.default_rng(8)
    counts = np.full(16, 40)
    y = rng.standard_normal((2000, 640))  # (pairs, n) independent queries with variance 1
    y -= y.mean(axis=1, keepdims=True)
    shifts = y.reshape(2000, 16, 40).sum(axis=2) / 640
    kappa = mean_error(shifts, counts)
    assert kappa.mean() == pytest.approx(1 / 640, rel=0.05)
    shared = variance_error(np.array([1 / 640, 1 / 16, 0.5, 0.0]), np.tile(counts, (4, 1)))
    np.testing.assert_allclose(shared, [1 / 640, 1 / 16, 1 / 16, 1 / 640])


def test_kappa_of_one_group_is_one_over_n() -> None:
    counts = np.zeros(16, np.int64)
    counts[3] = 25
    assert mean_error(np.zeros((2, 16)), counts).tolist() == [1 / 25, 1 / 25]
    np.testing.assert_allclose(variance_error(np.array([1 / 25]), counts[None]), 1 / 25)


def test_bias_is_the_mean_error_of_plug_in_plasticity() -> None:
    rng = np.random.default_rng(9)
    n, z = 60, np.array([0.0, 0.5, 1.0, 2.0])
    mean = z[:, None] + rng.standard_normal((4, 400_000)) / np.sqrt(n)
    variance = rng.chisquare(n - 1, (4, 400_000)) / (n - 1)
    plug_in = score_margins(mean.ravel(), np.sqrt(variance).ravel()).value.reshape(4, -1)
    scores = score_margins(z, np.ones(4))
    without, factor = bias_terms(scores, np.full(4, 1 / n), n)
    found = without + factor / n
    np.testing.assert_allclose(found, plug_in.mean(axis=1) - scores.value, atol=6e-4)


def test_derivatives_of_plasticity() -> None:
    z, step = np.linspace(-4, 4, 33), 1e-4
    below, at, above = (score_margins(z + by, np.ones(33)) for by in (-step, 0.0, step))
    np.testing.assert_allclose(at.first, (above.value - below.value) / (2 * step), atol=1e-7)
    np.testing.assert_allclose(at.second, (above.first - below.first) / (2 * step), atol=1e-7)
    wider = score_margins(z, np.full(33, np.sqrt(1 + step)))
    np.testing.assert_allclose(at.width_slope, (wider.value - at.value) / step, atol=1e-4)


def test_without_variance_nothing_has_an_influence() -> None:
    scores = score_margins(np.array([1.0, -1.0, 0.0]), np.zeros(3))
    assert scores.value.tolist() == [0.0, 0.0, 1.0]
    for values in (scores.first, scores.second, scores.width_slope):
        assert not values.any()


@pytest.mark.parametrize("query_model", MODELS)
def test_parts_of_products_give_the_whole(
    query_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = draw_head(Population(), np.random.default_rng(10))
    whole = analyse(*heads, query_model=query_model)
    monkeypatch.setattr(uncertainty, "_MOST_PRODUCTS", 1)
    np.testing.assert_allclose(
        analyse(*heads, query_model=query_model).buckets["plasticity_se"],
        whole.buckets["plasticity_se"],
        rtol=1e-6,
    )
