"""Runs on dumps with attention columns: tables, resume, warnings and comparison."""

import numpy as np
import pytest

from attention_plasticity import open_run
from helpers.attention_dumps import Layer, make_attention_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from runs_here import analyse


def test_heads_without_columns_have_no_rows(tmp_path):
    manifest = {"layers": [{**Layer().entry(0), "rope": False}]}
    how = {"q_heads": 3, "received": True, "manifest": manifest}
    outcome = analyse(make_attention_dump(tmp_path / "dump", without=(1,), **how), tmp_path / "out")
    found = open_run(outcome.place.folder)
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
