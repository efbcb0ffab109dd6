"""Runs on dumps with attention columns: tables, resume, warnings and comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_dumps import Layer, make_attention_dump
from attention_plasticity import open_run
from attention_plasticity.run.write import Outcome
from lasting_workers import workers as workers  # a fixture of all tests here
from runs_here import analyse

WITHOUT_ROPE = {"layers": [{**Layer().entry(0), "rope": False}]}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dumps")
    how: dict[str, Any] = {"q_heads": 3, "received": True, "manifest": WITHOUT_ROPE}
    return {
        "some": make_attention_dump(root / "some", without=(1,), **how),
        "none": make_attention_dump(root / "none", q_heads=3, without=(0, 1, 2)),
    }


@pytest.fixture(scope="module")
def outcomes(dumps: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("runs")
    return {name: analyse(dump, root / name) for name, dump in dumps.items()}


def test_heads_without_columns_have_no_rows(outcomes: dict[str, Outcome]) -> None:
    found = open_run(outcomes["some"].place.folder)
    assert found.has("attention")
    table = found.table("attention")
    assert sorted(set(table["q_head"])) == [0, 2]
    assert table["q_bucket"].tolist() == 2 * [0, 1, 2, 3, 4, 5]
    masses = [name for name in map(str, table) if name.startswith("mass") and "_se" not in name]
    np.testing.assert_allclose(table[masses].sum(axis=1), 1.0, rtol=1e-5)
    metrics = found.head_metrics.set_index("q_head")
    assert metrics["attn_entropy"].notna().tolist() == [True, False, True]
    assert metrics["ap_attended"].notna().all()  # from the attention that keys receive
    weights = table["n_tokens"]
    for name in ("entropy", "sink_mass", "max_logit"):
        of_head = table["q_head"] == 0
        mean = np.average(table[name][of_head], weights=weights[of_head])
        assert metrics.loc[0, f"attn_{name}"] == pytest.approx(mean, rel=1e-9)
