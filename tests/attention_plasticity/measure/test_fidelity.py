"""The fidelity of scores on simulated key heads whose attention is known exactly, and in dumps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import attention_plasticity as ap
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.fidelity import (
    NUMBERS,
    ROWS,
    Fidelity,
    fidelity_of,
    fidelity_of_rows,
    fidelity_rows,
)
from attention_plasticity.measure.kept_attention import SHARES
from attention_plasticity.measure.later_queries import TextRows
from attention_plasticity.metrics import FIDELITY
from attention_plasticity.read.run_texts import run_texts
from fidelity_dumps import WIDTH, KeyHead, chosen, make_fidelity_dump, simulate
from qk_toolkit.errors import HeadError

Scores = dict[tuple[str, int], dict[str, Any]]


def by_name(found: Fidelity) -> Scores:
    """The numbers of every score, and those of the head under an empty name."""
    rows = {(row["score"], row["value_norm"]): row for row in found["rows"]}
    return {**rows, ("", 0): found}


def measured(rows: KeyHead, near: int = 8, first: int = 32) -> Scores:
    """The fidelity of rows."""
    return by_name(fidelity_of_rows(*rows, {}, ap.make_config(near=near, first_query=first)))


def value(found: Scores, score: str, number: str) -> float:
    """A number of a score."""
    return float(found[score, 0][number][0])


def test_one_gaussian_against_plain_loops() -> None:
    """Leave the group of a text out, fit, score, and count, one pair at a time."""
    own = simulate(texts=4, length=48, record=None)
    found = measured(own.read(), near=5, first=20)
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


def test_the_sign_of_the_key_norm_is_that_of_other_texts() -> None:
    """Here long keys receive more attention in every text."""
    assert value(measured(simulate().read()), "key_norm", "spearman") > 0.2


@pytest.mark.parametrize("kind", ["keys", "queries"])
def test_a_row_of_weight_two_is_a_row_listed_twice(kind: str) -> None:
    """Keys in all numbers, queries in the fit and in the attention; bins hold enough of them."""
    keys, heads = simulate(texts=8, heads=1).read()
    rows = keys if kind == "keys" else heads[0]
    weight = np.random.default_rng(4).integers(1, 3, len(rows))
    listed = np.repeat(np.arange(len(rows)), weight)
    once = chosen(rows, np.arange(len(rows)), weight.astype(float))
    twice = chosen(rows, listed, np.ones(len(listed)))
    one, two = (
        measured((own, heads) if kind == "keys" else (keys, [own])) for own in (once, twice)
    )
    allowed = 1e-9 if kind == "keys" else 3e-3  # the divisor of a covariance is N − 1
    for name in ROWS:
        for number in NUMBERS:
            expected = pytest.approx(two[name][number][0], abs=allowed, nan_ok=True)
            assert one[name][number][0] == expected


def test_rows_are_in_their_own_scale() -> None:
    """A power of two by which vectors were divided changes no bit."""
    keys, _ = simulate(texts=3).read()
    rows = keys.rows.with_columns({"vector": keys.rows.vectors / 8})
    small, some = replace(keys, rows=rows, exponent=3), np.arange(50)
    assert np.array_equal(TextRows.of(small, some).vectors, TextRows.of(keys, some).vectors)


def test_only_keys_in_the_window_are_ranked() -> None:
    keys, heads = simulate().read()
    for size, first in ((20, 13), (9, 24)):  # queries from 32 on see keys from 32 − size + 1 on
        seen = [replace(queries, visible=Visible(size)) for queries in heads]
        found = measured((keys, seen))
        assert found["", 0]["n_keys"] == 6 * (88 - first)
        assert (
            0 < value(found, "exact_rotation", "kept_25") <= value(found, "best_static", "kept_25")
        )
    with pytest.raises(HeadError, match="no key from position 4 on"):
        measured((keys, [replace(queries, visible=Visible(8)) for queries in heads]))


def test_heads_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(HeadError, match="fewer than two groups"):
        measured(simulate(texts=1).read())
    with pytest.raises(HeadError, match="no key from position 4 on"):
        measured(simulate().read(), near=128)
    keys, heads = simulate(texts=2).read()
    few = []
    for queries in heads:  # one text, and one query at position 4 of the other
        kept = np.flatnonzero((queries.text == 0) | (queries.position < 5))
        few.append(chosen(queries, kept, np.ones(len(kept))))
    with pytest.raises(HeadError, match="fewer than two queries at position 4 or later"):
        measured((keys, few))


def of_dump(root: Path, **settings: Any) -> Fidelity:
    """The fidelity of the first key head of a dump, with both of its query heads."""
    dump, config = ap.open_dump(root), ap.make_config(near=8, **settings)
    return fidelity_of(dump, 0, 0, (0, 1), config, run_texts(dump, [0], config))


def test_a_dump_gives_the_same_numbers_before_and_after_rope(tmp_path: Path) -> None:
    after = of_dump(make_fidelity_dump(tmp_path / "after", k_heads=1))
    before = by_name(of_dump(make_fidelity_dump(tmp_path / "before", k_heads=1, pre_rope=True)))
    for name, row in by_name(after).items():
        for number in NUMBERS if name[0] else ():
            expected = pytest.approx(row[number][0], abs=2e-4, nan_ok=True)
            assert before[name][number][0] == expected, name


def test_the_table_of_a_dump_without_drawn_keys(tmp_path: Path) -> None:
    content = of_dump(make_fidelity_dump(tmp_path, drawn=False, k_heads=1))
    rows = [dict(zip(FIDELITY.names, row, strict=True)) for row in fidelity_rows(3, 1, content)]
    assert [(row["score"], row["value_norm"]) for row in rows] == list(ROWS)
    assert tuple(FIDELITY.with_error) == NUMBERS
    for row in rows:
        names = ("layer", "k_head", "layer_type", "n_q_heads", "n_texts", "n_groups")
        assert [row[name] for name in names] == [3, 1, "full_attention", 2, 6, 6]
        assert 0 < row["kept_10"] < row["kept_25"] < row["kept_50"] <= 1
        assert all(row[f"{name}_se"] > 0 for name in NUMBERS[1:])
        assert math.isnan(row["spearman"]) == (row["score"] == "best_per_query")


def test_a_dump_whose_attention_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match=r"l00h00k: .*no attention columns \(lse\).*attention"):
        of_dump(make_fidelity_dump(tmp_path / "no", k_heads=1, attention=False))
    one = make_fidelity_dump(tmp_path / "one", k_heads=1, texts=1)
    with pytest.raises(HeadError, match="single_example is set"):
        of_dump(one, single_example=True)
    with pytest.raises(HeadError, match="fewer than two groups"):
        of_dump(one)
