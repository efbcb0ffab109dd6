"""Plasticity and static error from counts: against lists of queries."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.measure.preferences import (
    grouped_plasticity,
    pair_plasticity,
    static_error,
)
from attention_plasticity.measure.text_pairs import Preferences
from listed_choices import Choices, listed_error, listed_plasticity


def counts(heads: Choices) -> Preferences:
    return Preferences(
        np.array([[head.count(1.0)] for head in heads]),
        np.array([[head.count(0.0)] for head in heads]),
        np.array([[len(head)] for head in heads]),
    )


@pytest.mark.parametrize("number", [1, 2, 3])
def test_scores_against_lists_of_queries(number: int) -> None:
    rng = np.random.default_rng(number)
    for _ in range(60):
        p = rng.random(number)
        heads = [
            [float(rng.choice([1.0, 0.0, 0.5], p=[0.9 * q, 0.9 * (1 - q), 0.1])) for _ in range(n)]
            for q, n in zip(p, rng.integers(2, 9, number), strict=True)
        ]
        assert pair_plasticity(counts(heads))[0] == pytest.approx(listed_plasticity(heads))
        assert static_error(counts(heads))[0] == pytest.approx(listed_error(heads))


def test_queries_of_one_group_give_no_value() -> None:
    queries = np.zeros((1, 2, 16), np.int64)
    queries[:, :, [3, 5]] = 5
    found = grouped_plasticity(queries, queries)
    assert np.isnan(found).any(axis=0).nonzero()[0].tolist() == [4, 6]
    queries[:, :, 3] = 0
    assert np.isnan(grouped_plasticity(queries, queries)).all()
