"""Means of the fidelity of scores over key heads."""

from __future__ import annotations

import math
from typing import Any

import pytest

from attention_plasticity.metrics import FIDELITY
from attention_plasticity.tables.fidelity import means_of_key_heads

UNKNOWN = [math.nan, [math.nan] * 16, 0]


def content(score: str, value: float, groups: int, **others: Any) -> dict[str, Any]:
    """A key head with one score, whose numbers are `value`."""
    influences = [value / 10] * groups + [0.0] * (16 - groups)
    numbers = {name: [value, influences, groups] for name in FIDELITY.with_error}
    return {"rows": [{"score": score, "value_norm": 0, **numbers, **others}]}


def test_influences_of_the_same_texts_are_averaged() -> None:
    found = means_of_key_heads([content("q_filter", 0.2, 6), content("q_filter", 0.4, 5)])
    mean = found["q_filter", 0]["kept_25"]
    assert mean.value == pytest.approx(0.3)
    assert mean.standard_error == pytest.approx(math.sqrt(5 * 0.03**2 + 0.01**2))
    assert (mean.heads, mean.groups) == (2, 5)


def test_scores_are_in_the_order_of_the_table_and_nan_has_no_head() -> None:
    heads = [
        content("best_per_query", 0.9, 6, spearman=UNKNOWN),
        content("gaussian", 0.5, 6, value_norm=1),
        content("gaussian", 0.5, 6),
    ]
    found = means_of_key_heads(heads)
    assert list(found) == [("gaussian", 0), ("gaussian", 1), ("best_per_query", 0)]
    assert found["best_per_query", 0]["spearman"].heads == 0
    assert means_of_key_heads([]) == {}
