"""Predictions and advice against the real errors of larger samples of the same heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_plasticity import make_config
from attention_plasticity.head.plasticity import variance_parts
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.power.prediction import Change, RowCounts, typical_error
from attention_plasticity.power.text import advice
from simulated_heads import Population, draw_head
from thinned_heads import SIZES, ThinnedHeads, sample_heads, tiny_heads

WITHIN = 1.5  # factor between a prediction and the real error


@pytest.fixture(scope="module", params=["sample", "tiny model"])
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ThinnedHeads:
    """Heads without effects of texts, and heads whose error comes from the texts."""
    if request.param == "sample":
        return sample_heads()
    return tiny_heads(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("size", SIZES)
def test_advice_is_right_from_7_to_2500_rows_per_head(heads: ThinnedHeads, size: int) -> None:
    """Few rows: no prediction, and more rows reduce the error.

    More rows: predictions hold, and the better change is predicted to be the better one.
    """
    if size / heads.texts > 0.9 * heads.most:
        size = round(0.9 * heads.most * heads.texts)  # the sample has 832 rows of 6 texts
    found = heads.compare(size)
    if found.few:
        assert size <= 100
        assert found.more_rows < (math.inf if math.isnan(found.now) else found.now)
        return
    assert 1 / WITHIN < found.predicted_rows / found.more_rows < WITHIN
    assert 1 / WITHIN < found.predicted_texts / found.more_texts < WITHIN
    rows_are_better = found.more_rows < found.more_texts
    assert (found.predicted_rows < found.predicted_texts) == rows_are_better


def test_few_rows_give_the_advice_in_words(heads: ThinnedHeads) -> None:
    parts = heads.parts(60 / heads.texts)
    rows = RowCounts.of(parts, heads.texts, 512)
    for wanted in (None, 0.01):
        text = advice(parts, rows, wanted)
        assert text.startswith("There are too few rows to predict other errors")
        assert "First capture more rows of the same texts" in text
        assert "capture.sampler.type auto" in text
    parts = heads.parts(600 / heads.texts)
    text = advice(parts, RowCounts.of(parts, heads.texts, 512), None)
    assert text.startswith(("Without more texts, four times the", "Only more texts help"))


@pytest.mark.parametrize("similarity", [0.0, 0.6])
def test_texts_with_one_query_and_one_pair_are_not_taken_for_different_texts(
    similarity: float,
) -> None:
    """The part of the texts comes from products of different rows, so one row gives none."""
    population = Population(
        buckets=2, texts=400, queries=1, keys=2, similarity=similarity, key_direction=0.0
    )
    queries, keys = draw_head(population, np.random.default_rng(0))
    rotated = RotatedQueries.of(queries, keys.signs)
    parts = variance_parts(rotated, keys, None, make_config(num_pairs_per_bucket=400), 0)
    assert parts is not None
    assert abs(parts.texts) < 0.1 * (parts.queries + parts.pairs)
    assert parts.keys == pytest.approx(0.0, abs=1e-12)  # no two pairs have a common key
    more = typical_error([parts], Change(queries=4, keys=4, pairs=16))
    assert more < 0.6 * typical_error([parts], Change())
