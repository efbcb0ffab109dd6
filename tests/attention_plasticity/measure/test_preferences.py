"""Plasticity and static error from counts: against lists of queries."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.measure.key_heads import Asked, pair_plasticity, static_error
from listed_choices import Choices, listed_error, listed_plasticity


def counts(heads: Choices) -> Asked:
    """The choices of one pair; every head is a set of its own."""
    first, queries = np.zeros((2, len(heads), 1, 16))
    for number, head in enumerate(heads):
        for group, choice in head:
            first[number, 0, group] += choice
            queries[number, 0, group] += 1
    return Asked(first, queries, np.ones(len(heads), np.int64))


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
            found = score(counts(heads))[0]  # (1 + g,)
            for group in (None, 0, 2, 9):
                kept = [[one for one in head if one[0] != group] for head in heads]
                place = 0 if group is None else 1 + group
                assert found[place] == pytest.approx(listed(kept), nan_ok=True), score


def test_queries_of_one_group_give_no_value() -> None:
    queries = np.zeros((1, 2, 16))
    queries[:, :, [3, 5]] = 5
    for score in (pair_plasticity, static_error):
        found = score(Asked(queries, queries, np.ones(1, np.int64)))
        assert np.isnan(found).any(axis=0).nonzero()[0].tolist() == [4, 6]
    queries[:, :, 3] = 0
    for score in (pair_plasticity, static_error):
        assert np.isnan(score(Asked(queries, queries, np.ones(1, np.int64)))).all()


def test_heads_at_the_same_places_are_one_set() -> None:
    rng = np.random.default_rng(0)
    queries = np.repeat(rng.integers(0, 4, (1, 5, 16)), 3, axis=0).astype(float)  # (heads, p, g)
    first = rng.integers(0, 2 * queries + 1) / 2
    own = Asked(first, queries, np.ones(3, np.int64))
    joined = Asked(
        np.stack([first[:2].sum(axis=0), first[2]]),
        np.stack([queries[:2].sum(axis=0), queries[2]]),
        np.array([2, 1]),
    )
    for score in (pair_plasticity, static_error):
        np.testing.assert_allclose(score(joined), score(own))
