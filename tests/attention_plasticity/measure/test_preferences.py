"""Plasticity and static error from counts: against lists of queries."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.measure.preferences import pair_plasticity, static_error
from listed_choices import Choices, listed_error, listed_plasticity


def counts(heads: Choices) -> tuple[np.ndarray, np.ndarray]:
    """Twice the numbers that prefer the first key, and numbers, of one pair: (heads, 1, g)."""
    doubled, queries = np.zeros((2, len(heads), 1, 16), np.int64)
    for number, head in enumerate(heads):
        for group, choice in head:
            doubled[number, 0, group] += round(2 * choice)
            queries[number, 0, group] += 1
    return doubled, queries


@pytest.mark.parametrize("number", [1, 2, 3])
def test_scores_against_lists_of_queries(number: int) -> None:
    rng = np.random.default_rng(number)
    for _ in range(60):
        p = rng.random(number)
        heads = [
            [
                (
                    int(rng.integers(4)),
                    float(rng.choice([1.0, 0.0, 0.5], p=[0.9 * q, 0.9 * (1 - q), 0.1])),
                )
                for _ in range(n)
            ]
            for q, n in zip(p, rng.integers(4, 12, number), strict=True)
        ]
        for score, listed in ((pair_plasticity, listed_plasticity), (static_error, listed_error)):
            found = score(*counts(heads))[0]  # (1 + g,)
            for group in (None, 0, 2, 9):
                kept = [[one for one in head if one[0] != group] for head in heads]
                place = 0 if group is None else 1 + group
                assert found[place] == pytest.approx(listed(kept), nan_ok=True), score


def test_queries_of_one_group_give_no_value() -> None:
    queries = np.zeros((1, 2, 16), np.int64)
    queries[:, :, [3, 5]] = 5
    for score in (pair_plasticity, static_error):
        found = score(queries, queries)
        assert np.isnan(found).any(axis=0).nonzero()[0].tolist() == [4, 6]
    queries[:, :, 3] = 0
    for score in (pair_plasticity, static_error):
        assert np.isnan(score(queries, queries)).all()
