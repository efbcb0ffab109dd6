"""Attention that is kept and rank correlations, against plain loops and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.kept_attention import (
    SHARES,
    kept_shares,
    rank_correlation,
    received_by_keys,
)
from attention_plasticity.measure.later_queries import LaterQueries, TextRows
from plain_visible import sees

N, M, D, SCALE = 60, 50, 4, 0.7
LATER = LaterQueries(first=20, end=N, near=6)
Head = tuple[TextRows, np.ndarray]


def text(seed: int = 0) -> tuple[list[Head], TextRows]:
    """Queries of two heads in a text with their log-sum-exp, and all keys of the text."""
    rng = np.random.default_rng(seed)
    K, position = rng.standard_normal((N, D)), np.arange(float(N))
    heads = []
    for _ in range(2):
        Q = rng.standard_normal((M, D))
        at = rng.integers(20, N, M).astype(np.float64)
        logits = np.where(position <= at[:, None], SCALE * Q @ K.T, -np.inf)
        lse = np.logaddexp.reduce(logits, axis=1)
        heads.append((TextRows(Q, at, rng.uniform(1, 9, M)), lse))
    return heads, TextRows(K, position, rng.uniform(1, 4, N))


def plain_kept(pairs: list[tuple[float, float, float]], share: float) -> float:
    """Sum over keys with the largest scores; of a key: score, amount and size."""
    left, kept = share * sum(size for _, _, size in pairs), 0.0
    for _, amount, size in sorted(pairs, reverse=True):
        used = min(left, size)
        kept += used * amount
        left -= used
    return kept


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("visible", [Visible(), Visible(25), Visible(30, chunked=True)])
def test_received_attention_is_a_sum_over_pairs(visible: Visible, softcap: float | None) -> None:
    heads, keys = text()
    later = LaterQueries(20, N, 6, visible)
    found = received_by_keys(heads, keys, later, SCALE, softcap)
    assert found is not None
    attention, queries, kept, total = np.zeros(N), np.zeros(N), np.zeros(3), 0.0
    for rows, of_head in heads:
        for q, p, w, lse in zip(*rows, of_head, strict=True):
            own = []
            for j in range(4, N):
                if p - j >= 6 and sees(p, j, visible):
                    logit = SCALE * (q @ keys.vectors[j])
                    A = np.exp((softcap * np.tanh(logit / softcap) if softcap else logit) - lse)
                    attention[j] += w * A
                    queries[j] += w
                    own.append((A, A, keys.weight[j]))
                    total += w * A * keys.weight[j]
            kept += [w * plain_kept(own, share) for share in SHARES]
    assert found.attention == pytest.approx(attention)
    assert found.queries == pytest.approx(queries)
    assert found.best_per_query == pytest.approx(kept / total)


def test_a_logit_above_lse_is_noticed() -> None:
    assert received_by_keys(*text(), LATER, 20 * SCALE) is None


def test_keys_of_one_score_are_kept_in_equal_parts_and_the_last_key_in_part() -> None:
    score = np.array([3.0, 2.0, 1.0, 0.0])
    found = kept_shares(score, np.array([8.0, 4.0, 2.0, 2.0]), np.ones(4))
    assert found == pytest.approx([12 / 16, 8 / 16, 0.4 * 8 / 16])
    found = kept_shares(np.array([1.0, 1.0, -np.inf, -np.inf]), np.arange(1.0, 5.0), np.ones(4))
    assert found == pytest.approx([3 / 10, 1.5 / 10, 0.6 / 10])
    assert np.isnan(kept_shares(np.arange(3.0), np.zeros(3), np.ones(3))).all()


def test_kept_shares_against_a_loop() -> None:
    rng = np.random.default_rng(2)
    score, attention, weight = rng.standard_normal(40), rng.uniform(0, 1, 40), rng.uniform(1, 5, 40)
    pairs = list(zip(score, attention, weight, strict=True))
    expected = [plain_kept(pairs, share) / (weight @ attention) for share in SHARES]
    assert kept_shares(score, attention, weight) == pytest.approx(expected)


def test_spearman_of_whole_weights_is_that_of_scipy_with_rows_listed_as_often() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 9, (2, 50)).astype(float)
    weight = rng.integers(1, 4, 50)
    rows = np.repeat(np.arange(50), weight)
    expected = stats.spearmanr(a[rows], b[rows]).statistic
    assert rank_correlation(a, b, weight.astype(float)) == pytest.approx(expected)
    assert np.isnan(rank_correlation(a, np.ones(50), np.ones(50)))
