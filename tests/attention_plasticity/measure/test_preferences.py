"""Plasticity and static error from counts: against lists of queries."""

from __future__ import annotations

from itertools import product

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


def test_grouped_plasticity_against_pairs_of_queries_of_other_groups() -> None:
    """All groups, and without each of them. A query without preference is half of each."""
    rng = np.random.default_rng(8)
    queries = np.zeros((2, 4, 16), np.int64)  # (heads, p, g)
    queries[:, :, [0, 3, 4, 15]] = rng.integers(1, 4, (2, 1, 4))
    doubled = rng.integers(0, 2 * queries + 1)
    found = grouped_plasticity(doubled, queries)
    assert found.shape == (4, 17)
    for pair, without in product(range(4), (-1, 0, 1, 3, 15)):
        listed = [
            [
                (g, min(max(int(doubled[head, pair, g]) - 2 * i, 0), 2) / 2)
                for g in range(16)
                for i in range(queries[head, pair, g])
                if g != without
            ]
            for head in range(2)
        ]
        total = 0.0
        for one, other in product(listed, listed):
            disagree = [
                a * (1 - b) + b * (1 - a) for (g, a), (h, b) in product(one, other) if g != h
            ]
            total += sum(disagree) / len(disagree)
        assert found[pair, 1 + without] == pytest.approx(2.0 * total / 4)


def test_queries_of_one_group_give_no_value() -> None:
    queries = np.zeros((1, 2, 16), np.int64)
    queries[:, :, [3, 5]] = 5
    found = grouped_plasticity(queries, queries)
    assert np.isnan(found).any(axis=0).nonzero()[0].tolist() == [4, 6]
    queries[:, :, 3] = 0
    assert np.isnan(grouped_plasticity(queries, queries)).all()
