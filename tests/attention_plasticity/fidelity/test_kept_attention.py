"""Attention that is kept and rank correlations, against plain loops and scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.fidelity.kept_attention import (
    SHARES,
    QueriesOfText,
    ReceivedByKeys,
    kept_shares,
    rank_correlation,
    received_by_keys,
)
from attention_plasticity.fidelity.logits import Logits

N, M, D, SCALE = 60, 50, 4, 0.7


def text(seed: int = 0) -> tuple[list[QueriesOfText], np.ndarray, np.ndarray, np.ndarray]:
    """Two heads with queries of a text, its keys, their positions and weights."""
    rng = np.random.default_rng(seed)
    K, position = rng.standard_normal((N, D)), np.arange(float(N))
    heads = []
    for _ in range(2):
        Q = rng.standard_normal((M, D))
        at = rng.integers(20, N, M).astype(np.float64)
        logits = SCALE * Q @ K.T
        lse = np.array([np.logaddexp.reduce(row[position <= p]) for row, p in zip(logits, at)])  # noqa: B905
        heads.append(QueriesOfText(Q, at, rng.uniform(1, 9, M), lse))
    return heads, K, position, rng.uniform(1, 4, N)


def plain_best(pairs: list[tuple[float, float]], share: float) -> float:
    """Sum over the largest values, with sizes; the last one counts in part."""
    left, kept = share * sum(size for _, size in pairs), 0.0
    for value, size in sorted(pairs, reverse=True):
        used = min(left, size)
        kept += used * value
        left -= used
    return kept


def sees(visible: Visible, p: float, j: int) -> bool:
    """Whether a query at p sees the key at j."""
    if visible.size is None:
        return True
    if visible.chunked:
        return p // visible.size == j // visible.size
    return p - j < visible.size


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("visible", [Visible(), Visible(25), Visible(30, chunked=True)])
def test_received_attention_is_a_sum_over_pairs(visible: Visible, softcap: float | None) -> None:
    heads, K, position, weight = text()
    logits = Logits(SCALE, softcap, visible)
    found = received_by_keys(heads, K, position, weight, logits, near=6)
    assert found is not None
    attention, queries, kept, total = np.zeros(N), np.zeros(N), np.zeros(3), 0.0
    for head in heads:
        for q, p, w, lse in zip(head.vectors, head.position, head.weight, head.lse, strict=True):
            own = []
            for j in range(4, N):
                if p - j >= 6 and sees(visible, p, j):
                    logit = SCALE * (q @ K[j])
                    A = np.exp((softcap * np.tanh(logit / softcap) if softcap else logit) - lse)
                    attention[j] += w * A
                    queries[j] += w
                    own.append((A, weight[j]))
                    total += w * A * weight[j]
            kept += [w * plain_best(own, share) for share in SHARES]
    assert found.attention == pytest.approx(attention)
    assert found.queries == pytest.approx(queries)
    assert found.best_per_query == pytest.approx(kept / total)
    assert found.per_query()[10] == pytest.approx(attention[10] / queries[10])
    assert found.candidates.tolist() == (queries > 0).tolist()


def test_no_ranking_keeps_more_than_the_best_ones() -> None:
    heads, K, position, weight = text()
    found = received_by_keys(heads, K, position, weight, Logits(SCALE), near=6)
    assert isinstance(found, ReceivedByKeys)
    best = kept_shares(found.attention, found.attention, weight)
    rng = np.random.default_rng(1)
    for _ in range(200):
        order = kept_shares(rng.standard_normal(N), found.attention, weight)
        assert (order <= best + 1e-12).all()


def test_the_best_keys_of_each_query_keep_more_if_all_queries_see_the_same_keys() -> None:
    heads, K, position, weight = text()
    last = [replace(head, position=np.full(M, 59.0), lse=np.full(M, 9.0)) for head in heads]
    found = received_by_keys(last, K, position, weight, Logits(SCALE), near=6)
    assert found is not None
    own = found.candidates
    best = kept_shares(found.attention[own], found.attention[own], weight[own])
    assert (best < found.best_per_query).all()


def test_a_logit_above_lse_is_noticed() -> None:
    heads, K, position, weight = text()
    assert received_by_keys(heads, K, position, weight, Logits(20 * SCALE), near=6) is None


def test_kept_share_counts_the_last_key_in_part() -> None:
    score = np.array([3.0, 2.0, 1.0, 0.0])
    found = kept_shares(score, np.array([8.0, 4.0, 2.0, 2.0]), np.ones(4))
    assert found == pytest.approx([12 / 16, 8 / 16, 0.4 * 8 / 16])


def test_keys_of_one_score_are_kept_in_equal_parts() -> None:
    found = kept_shares(np.array([1.0, 1.0, -np.inf, -np.inf]), np.arange(1.0, 5.0), np.ones(4))
    assert found == pytest.approx([3 / 10, 1.5 / 10, 0.6 / 10])
    assert np.isnan(kept_shares(np.arange(3.0), np.zeros(3), np.ones(3))).all()


def test_kept_shares_against_a_loop() -> None:
    rng = np.random.default_rng(2)
    score, attention, weight = rng.standard_normal(40), rng.uniform(0, 1, 40), rng.uniform(1, 5, 40)
    found = kept_shares(score, attention, weight)
    for share, value in zip(SHARES, found, strict=True):
        left, kept = share * weight.sum(), 0.0
        for j in np.argsort(-score):
            used = min(left, weight[j])
            kept += used * attention[j]
            left -= used
        assert value == pytest.approx(kept / (weight @ attention))


def test_spearman_of_equal_weights_is_that_of_scipy() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 9, 50).astype(float), rng.integers(0, 9, 50).astype(float)
    found = rank_correlation(a, b, np.full(50, 3.0))
    assert found == pytest.approx(stats.spearmanr(a, b).statistic)
    assert np.isnan(rank_correlation(a, np.ones(50), np.ones(50)))


def test_weight_two_is_the_key_listed_twice() -> None:
    rng = np.random.default_rng(4)
    a, b, attention = rng.integers(0, 12, (3, 30)).astype(float)
    weight = rng.integers(1, 4, 30)
    rows = np.repeat(np.arange(30), weight)
    ones = np.ones(len(rows))
    listed = rank_correlation(a[rows], b[rows], ones)
    assert rank_correlation(a, b, weight.astype(float)) == pytest.approx(listed)
    found = kept_shares(a, attention, weight.astype(float))
    assert found == pytest.approx(kept_shares(a[rows], attention[rows], ones))


def test_the_best_keys_of_a_query_do_not_depend_on_listing_a_key_twice() -> None:
    heads, K, position, _ = text()
    weight = np.ones(N)
    weight[11] = 2.0
    rows = np.r_[np.arange(N), 11]
    one = received_by_keys(heads, K, position, weight, Logits(SCALE), near=6)
    two = received_by_keys(heads, K[rows], position[rows], np.ones(N + 1), Logits(SCALE), near=6)
    assert one is not None
    assert two is not None
    assert one.best_per_query == pytest.approx(two.best_per_query)
    assert one.attention[rows] == pytest.approx(two.attention)
