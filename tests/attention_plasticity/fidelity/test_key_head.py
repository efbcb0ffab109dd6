"""The fidelity of scores on simulated key heads whose attention is known exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.fidelity.kept_attention import SHARES
from attention_plasticity.fidelity.key_head import NUMBERS, ROWS, Choice, key_head_fidelity
from attention_plasticity.fidelity.logits import Logits
from attention_plasticity.fidelity.rows import GroupRows, TextRows
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.texts import TextGroups
from fidelity_dumps import SCALE, WIDTH, Simulated, chosen_keys, simulate
from qk_toolkit.errors import HeadError

CHOICE = Choice(Bins(16, 96), near=8, first_query=32)


def measured(rows: GroupRows, choice: Choice = CHOICE) -> dict[tuple[str, int], dict[str, Any]]:
    """The numbers of every score, and those of the head under an empty name."""
    found = key_head_fidelity(rows, TextGroups(), {}, choice)
    by_name = {(row["score"], row["value_norm"]): row for row in found.pop("rows")}
    return {**by_name, ("", 0): found}


def value(found: dict[tuple[str, int], dict[str, Any]], score: str, number: str) -> float:
    """A number of a score."""
    return float(found[score, 0][number][0])


def error(row: dict[str, Any], number: str) -> float:
    """The standard error of a number of a score."""
    return math.sqrt(sum(one**2 for one in row[number][1]))


def test_one_gaussian_against_plain_loops() -> None:
    """Leave the group of a text out, fit, score, and count, one pair at a time."""
    own = simulate(texts=4, length=48, record=None)
    choice = Choice(Bins(16, 48), near=5, first_query=20)
    found = measured(own.rows(), choice)
    numbers, static = [], []
    for text in range(4):
        others = [t for t in range(4) if t != text]
        score = np.zeros(48)
        for queries in own.queries:
            Q = queries[others][:, 4:].reshape(-1, WIDTH)
            mean, covariance = Q.mean(axis=0), np.cov(Q.T)
            raw = [
                math.exp(own.scale * (k @ mean) + 0.5 * own.scale**2 * (k @ covariance @ k))
                for k in own.keys[text]
            ]
            score += np.array(raw) / sum(raw) / 2
        got, seen = np.zeros(48), np.zeros(48)
        for queries in own.queries:
            for p in range(20, 48):
                raw = [
                    math.exp(own.scale * (queries[text, p] @ k)) for k in own.keys[text, : p + 1]
                ]
                for j in range(4, p - 5 + 1):
                    got[j] += raw[j] / sum(raw)
                    seen[j] += 1
        keys = np.flatnonzero(seen)
        assert keys.tolist() == list(range(4, 43))
        spearman = stats.spearmanr(score[keys], got[keys] / seen[keys]).statistic
        kept = [_kept(score[keys], got[keys], share) for share in SHARES]
        numbers.append([spearman, *kept])
        static.append([_kept(got[keys], got[keys], share) for share in SHARES])
    for column, name in enumerate(NUMBERS):
        assert value(found, "gaussian", name) == pytest.approx(np.mean(numbers, axis=0)[column])
    for column, name in enumerate(NUMBERS[1:]):
        assert value(found, "best_static", name) == pytest.approx(np.mean(static, axis=0)[column])
    assert found["", 0]["n_keys"] == 4 * 39
    assert found["", 0]["n_queries"] == 4 * 2 * 28


def _kept(score: np.ndarray, got: np.ndarray, share: float) -> float:
    left, kept = share * len(score), 0.0
    for j in np.argsort(-score):
        kept += min(1.0, left) * got[j]
        left = max(0.0, left - 1.0)
    return kept / got.sum()


def test_gaussian_queries_are_predicted_by_the_exact_rotation() -> None:
    found = measured(simulate(texts=8, length=96, heads=3, seed=1).rows())
    best = value(found, "best_static", "kept_25")
    assert value(found, "exact_rotation", "kept_25") > 0.96 * best
    for name, times in ROWS:
        if name != "best_per_query" and not times:
            for number in NUMBERS[1:]:
                assert value(found, name, number) <= value(found, "best_static", number) + 1e-9


def test_constant_queries_make_all_scores_and_limits_agree() -> None:
    """Keys are multiples of the query, and every query sees every key."""
    rng = np.random.default_rng(2)
    query = rng.standard_normal(WIDTH)
    keys = rng.uniform(0.1, 2, (5, 96, 1)) * query
    own = Simulated(np.broadcast_to(query, (2, 5, 96, WIDTH)), keys, np.ones((5, 96)), None)
    rows = own.rows()
    early = np.flatnonzero(rows.keys.position < 64)
    found = measured(chosen_keys(rows, early, np.ones(len(early))), Choice(Bins(16, 96), 8, 72))
    for name, times in ROWS:
        for number in NUMBERS[1:]:
            assert found[name, times][number][0] == pytest.approx(
                value(found, "best_static", number)
            )
        if name != "best_per_query":
            assert found[name, times]["spearman"][0] == pytest.approx(1.0)


def test_scores_of_random_keys_say_nothing() -> None:
    """Queries of a text have a direction of their own, so other texts do not help."""
    rng = np.random.default_rng(3)
    direction = rng.standard_normal((1, 64, 1, WIDTH))
    queries = 2 * direction / np.linalg.norm(direction, axis=3, keepdims=True)
    queries = queries + 0.3 * rng.standard_normal((2, 64, 96, WIDTH))
    keys = rng.standard_normal((64, 96, WIDTH))
    keys /= np.linalg.norm(keys, axis=2, keepdims=True)
    rows = Simulated(queries, keys, np.ones((64, 96)), None, 1.0).rows()
    early = np.flatnonzero(rows.keys.position < 64)
    found = measured(chosen_keys(rows, early, np.ones(len(early))), Choice(Bins(16, 96), 8, 72))
    for name in ("q_filter", "gaussian", "expected_attention", "bucket_gaussian", "exact_rotation"):
        row = found[name, 0]
        assert abs(row["spearman"][0]) < 4 * error(row, "spearman")
        assert abs(row["kept_25"][0] - 0.25) < 4 * error(row, "kept_25")
    assert value(found, "best_static", "kept_25") > 0.3


def test_weight_two_is_the_key_listed_twice() -> None:
    rows = simulate().rows()
    weight = np.random.default_rng(4).integers(1, 3, len(rows.keys.text))
    listed = np.repeat(np.arange(len(weight)), weight)
    one = measured(chosen_keys(rows, np.arange(len(weight)), weight.astype(float)))
    two = measured(chosen_keys(rows, listed, np.ones(len(listed))))
    for name in ROWS:
        for number in NUMBERS:
            assert one[name][number][0] == pytest.approx(two[name][number][0], nan_ok=True)


def test_unequal_inclusion_gives_the_numbers_of_all_keys() -> None:
    """Keys along the mean query, which receive more attention, are kept more often."""
    rows = simulate(texts=48, heads=1, seed=5, record=None, scale=0.8).rows()
    every = measured(rows)
    along = rows.keys.vectors @ rows.queries[0].vectors.mean(axis=0)  # (n,)
    inclusion = np.where(along > np.quantile(along, 0.7), 0.95, 0.35)
    kept = np.flatnonzero(np.random.default_rng(6).random(len(along)) < inclusion)
    some = measured(chosen_keys(rows, kept, 1 / inclusion[kept]))
    wrong = measured(chosen_keys(rows, kept, np.ones(len(kept))))
    for name in ("key_norm", "q_filter", "gaussian", "expected_attention", "exact_rotation"):
        for number in ("spearman", "kept_50", "kept_25"):
            allowed = 4 * error(some[name, 0], number) + 0.004
            assert abs(value(some, name, number) - value(every, name, number)) < allowed
    right, apart = (
        value(one, "gaussian", "kept_25") - value(every, "gaussian", "kept_25")
        for one in (some, wrong)
    )
    assert abs(apart) > 5 * abs(right)


def test_weights_of_queries_count() -> None:
    """A query of weight 2 is a query listed twice, in the fit and in the attention."""
    rows = simulate(texts=3, heads=1).rows()
    (queries,), (lse,) = rows.queries, rows.lse
    weight = np.random.default_rng(7).integers(1, 3, len(lse))
    listed = np.repeat(np.arange(len(weight)), weight)
    one = replace(rows, queries=(replace(queries, weight=weight.astype(float)),))
    twice = TextRows(
        queries.vectors[listed],
        queries.position[listed],
        queries.text[listed],
        np.ones(len(listed)),
    )
    two = replace(rows, queries=(twice,), lse=(lse[listed],))
    first, second = measured(one), measured(two)
    for name in ROWS:  # the divisor of a covariance is N − 1, so the last digits differ
        for number in NUMBERS:
            assert first[name][number][0] == pytest.approx(
                second[name][number][0], abs=3e-3, nan_ok=True
            )


def test_without_lengths_of_values_there_are_no_products() -> None:
    found = measured(replace(simulate().rows(), value_norm=None))
    assert [name for name in found if name[1]] == []


def test_texts_of_one_group_are_refused() -> None:
    with pytest.raises(HeadError, match="fewer than two groups"):
        measured(simulate(texts=1).rows())


def test_no_distant_pair_is_refused() -> None:
    with pytest.raises(HeadError, match="no key from position 4 on"):
        measured(simulate().rows(), Choice(Bins(16, 96), near=128, first_query=0))


def test_only_keys_in_the_window_are_ranked() -> None:
    rows = simulate().rows()
    for size, first in ((20, 13), (9, 24)):  # queries from 32 on see keys from 32 − size + 1 on
        found = measured(replace(rows, logits=Logits(SCALE, visible=Visible(size))))
        assert found["", 0]["n_keys"] == 6 * (88 - first)
        assert (
            0 < value(found, "exact_rotation", "kept_25") <= value(found, "best_static", "kept_25")
        )
    with pytest.raises(HeadError, match="no key from position 4 on"):
        measured(replace(rows, logits=Logits(SCALE, visible=Visible(8))))


def test_a_wrong_scale_is_noticed() -> None:
    rows = simulate().rows()
    with pytest.raises(HeadError, match="larger than lse allows"):
        measured(replace(rows, lse=tuple(one - 20 for one in rows.lse)))
