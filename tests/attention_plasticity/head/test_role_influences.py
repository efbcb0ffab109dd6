"""Influences of texts on the scores that decide roles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_plasticity import analyze_head, make_config, open_sample
from attention_plasticity.head.role_columns import DECIDING
from attention_plasticity.metrics import GROUP_COLUMNS
from qk_dump.layout import HeadId
from qk_dump.reader import read_head


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, float]]:
    table = analyze_head(14, 2, dump=open_sample()).influences
    places = range(len(table["quantity"]))
    found = [{name: table[name][place] for name in table} for place in places]
    return {row["quantity"]: row for row in found if row["quantity"] in DECIDING}


def test_they_have_the_values_and_errors_of_the_table_of_roles(
    rows: dict[str, dict[str, float]],
) -> None:
    roles = analyze_head(14, 2, dump=open_sample()).roles
    assert rows.keys() == set(DECIDING)
    for name, row in rows.items():
        assert math.isnan(row["q_bucket"])
        assert row["value"] == roles[name][0]
        error = math.sqrt(sum(row[group] ** 2 for group in GROUP_COLUMNS))
        assert error == pytest.approx(roles[f"{name}_se"][0], rel=1e-12)
        assert row["n_groups"] == roles["n_groups"][0]


def test_an_influence_is_the_change_without_a_text(rows: dict[str, dict[str, float]]) -> None:
    """Attention on the own token, from the rows of the dump; all have the same probability."""
    dump = open_sample()
    head = read_head(
        dump.require_files(HeadId(14, 2, "q")),
        max_rows=10**6,
        seed=0,
        with_examples=True,
        with_attention=True,
    )
    assert head.attention is not None
    assert head.example_id is not None
    own = head.attention.mass_by_distance[:, 0].astype(np.float64)  # (n,)
    row, texts = rows["self_mass"], np.unique(head.example_id)
    assert row["value"] == pytest.approx(own.mean(), rel=1e-6)
    for place, text in enumerate(texts):
        kept = head.example_id != text
        change = own.mean() - own[kept].mean()
        assert row[GROUP_COLUMNS[place]] == pytest.approx(change, rel=0.2, abs=2e-4)


def test_without_errors_there_are_none() -> None:
    result = analyze_head(14, 2, dump=open_sample(), config=make_config(error_bars=False))
    assert not set(result.influences["quantity"]) & set(DECIDING)
