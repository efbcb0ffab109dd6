"""The table of key heads on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attention_plasticity.page.content import run_content
from attention_plasticity.page.key_heads import key_head_rows
from attention_plasticity.tables.finished_run import FinishedRun
from key_head_runs import add_key_heads
from report_runs import write_run


def test_rows_have_values_with_errors(tmp_path: Path) -> None:
    run = FinishedRun.open(add_key_heads(write_run(tmp_path / "run")))
    found = key_head_rows(run)
    assert found is not None
    assert run_content(run, "label")[0]["key_head_rows"] == found
    assert found["headings"][0][0] == "static error"
    table = run.key_heads
    assert len(found["rows"]) == len(table)
    first = table.iloc[0]
    row = found["rows"][0]
    assert row[:3] == [first["layer"], first["k_head"], first["n_q_heads"]]
    assert row[3] == f"{first['static_error']:.3f} ± 0.004"
    part = key_head_rows(run.select(layers=[1]))
    assert part is not None
    assert {one[0] for one in part["rows"]} == {1}


def test_missing_values(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert key_head_rows(FinishedRun.open(folder)) is None
    nothing = {"received_gini": np.nan, "static_error_se": np.nan}
    found = key_head_rows(FinishedRun.open(add_key_heads(folder, nothing)))
    assert found is not None
    assert "Gini of attention" not in [name for name, _ in found["headings"]]
    assert "±" not in found["rows"][0][3]
