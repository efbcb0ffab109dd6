"""Plasticity by counting: unbiased, with ties, and with a sample of the queries."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from attention_plasticity.numeric.errors import counting
from attention_plasticity.numeric.errors.counting import between_groups, sum_by_group
from attention_plasticity.numeric.errors.influences import CentredQueries
from simulated_heads import Population, analyse, draw_head


def centred(vectors: np.ndarray, counts: np.ndarray) -> CentredQueries:
    """Queries (n, d), sorted by group."""
    mean = vectors.mean(axis=0)
    rows = np.arange(len(vectors))
    return CentredQueries(rows, counts, 1.0, mean, (vectors - mean).astype(np.float32), None)


@pytest.mark.parametrize("similarity", [0.0, 0.3, 0.9])
def test_counting_between_groups_has_no_bias(similarity: float) -> None:
    """6 texts of 20 queries: the usual factor n/(n−1) is not enough if queries are alike."""
    rng = np.random.default_rng(0)
    draws, texts, size = 40_000, 6, 20
    of_text = np.sqrt(similarity) * rng.standard_normal((draws, texts, 1))
    scores = of_text + np.sqrt(1 - similarity) * rng.standard_normal((draws, texts, size)) + 0.4
    preferred = np.zeros((draws, 16))
    preferred[:, :texts] = (scores > 0).sum(axis=2)
    counts = np.zeros(16, np.int64)
    counts[:texts] = size
    p = 0.6554217416103242  # Φ(0.4)
    found = between_groups(preferred, counts).value
    error = found.std() / np.sqrt(draws)
    assert abs(found.mean() - 4 * p * (1 - p)) < 4 * error
    n = texts * size
    share = preferred.sum(axis=1) / n
    usual = (4 * share * (1 - share)).mean() * n / (n - 1)
    assert (usual - 4 * p * (1 - p) < -0.01) == (similarity > 0)


def test_pairs_of_queries_of_different_groups_are_compared() -> None:
    counts = np.zeros(16, np.int64)
    counts[[0, 3, 15]] = 2, 1, 3
    group = np.repeat(np.arange(16), counts)
    for wins in product([0, 1], repeat=6):
        preferred = np.bincount(group, wins, 16)[None]
        compared = [
            wins[i] != wins[j] for i, j in product(range(6), repeat=2) if group[i] != group[j]
        ]
        assert between_groups(preferred, counts).value[0] == pytest.approx(2 * np.mean(compared))


def test_influences_are_derivatives_with_respect_to_the_weight_of_a_group() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 9, 16)
    preferred = rng.binomial(counts, 0.4, (5, 16)).astype(float)
    found = between_groups(preferred, counts).influences
    assert found.sum() == pytest.approx(0.0, abs=1e-12)
    step = 1e-6
    for group in range(16):
        values = []
        for by in (-step, step):
            weight = 1 + by * (np.arange(16) == group)
            values.append(between_groups(preferred * weight, counts * weight).value.sum())
        assert found[group] == pytest.approx((values[1] - values[0]) / (2 * step), abs=1e-6)


def test_queries_of_one_group_have_no_count() -> None:
    counts = 7 * (np.arange(16) == 5)
    assert np.isnan(between_groups(np.zeros((1, 16)), counts).value).all()


def test_ties_count_half() -> None:
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [2.0, 4.0], [-2.0, -4.0]])
    counts = np.array([1, 3, *[0] * 14])
    W = np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]], np.float32)
    sums = sum_by_group(centred(vectors, counts), W, W @ vectors.mean(axis=0))
    expected = [[0.5, 0.5 + 1 + 0], [0.5, 1.5], [1.0, 1.0]]
    assert sums.preferred[:, :2].tolist() == expected
    assert not sums.preferred[:, 2:].any()
    np.testing.assert_allclose(sums.squares.sum(axis=1), ((vectors @ W.T) ** 2).sum(axis=0))


def test_identical_keys_count_as_ties() -> None:
    queries, keys = draw_head(Population(), np.random.default_rng(2))
    keys.rows.vectors[...] = keys.rows.vectors[0]
    result = analyse(queries, keys)
    assert set(result.buckets["plasticity"]) == {1.0}
    assert set(result.buckets["plasticity_bias"]) == {0.0}
    assert result.metrics["ap_overall_se"] == 0.0
    np.testing.assert_allclose(result.buckets["plasticity_counted"], 1.0, rtol=1e-12)
    assert result.metrics["ap_gaussian_gap"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("query_model", ["positional", "full", "diagonal"])
def test_a_sample_of_all_queries_is_the_whole(
    query_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of the sample's Gaussian are computed in another way, but agree."""
    heads = draw_head(Population(), np.random.default_rng(3))
    whole = analyse(*heads, query_model=query_model)
    monkeypatch.setattr(CentredQueries, "sample", lambda self, most: self._replace(unit=self.unit))
    again = analyse(*heads, query_model=query_model)
    for name in ("ap_counted", "ap_counted_se", "ap_gaussian_gap", "ap_gaussian_gap_se"):
        assert again.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("query_model", ["positional", "full"])
def test_gaussian_queries_have_no_gap(query_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_QUERIES", 30)  # of 48 in a bucket
    rng = np.random.default_rng(4)
    found = [analyse(*draw_head(Population(), rng), query_model=query_model) for _ in range(40)]
    gaps = np.array([result.metrics["ap_gaussian_gap"] for result in found])
    errors = np.array([result.metrics["ap_gaussian_gap_se"] for result in found])
    assert abs(gaps.mean()) < 3 * gaps.std(ddof=1) / np.sqrt(len(gaps)) + 0.003
    assert 0.6 < np.sqrt((errors**2).mean()) / gaps.std(ddof=1) < 1.7


def test_pairs_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = draw_head(Population(), np.random.default_rng(5))
    whole = analyse(*heads)
    monkeypatch.setattr(counting, "_MOST_SCORES", 1)
    assert analyse(*heads).buckets["plasticity_counted"] == whole.buckets["plasticity_counted"]


def test_a_bucket_of_one_group_is_left_out_of_the_mean() -> None:
    population = Population(texts=6, reach_end=0.1)  # one text reaches the last half
    result = analyse(*draw_head(population, np.random.default_rng(6)))
    late = np.array(result.buckets["q_bucket"]) >= population.buckets // 2
    np.testing.assert_array_equal(np.isnan(result.buckets["plasticity_counted"]), late)
    assert np.isfinite([result.metrics["ap_counted"], result.metrics["ap_gaussian_gap"]]).all()
    early = np.array(result.buckets["plasticity_counted"])[~late]
    assert early.min() <= result.metrics["ap_counted"] <= early.max()
