"""The table of key heads on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import run_tables
from attention_plasticity.page.content import run_content
from attention_plasticity.page.key_heads import key_head_rows
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from commands_here import run_here
from key_head_runs import add_key_heads, name_layout
from report_runs import write_run


def test_rows_have_values_with_half_of_their_intervals(tmp_path: Path) -> None:
    run = FinishedRun.open(add_key_heads(write_run(tmp_path / "run")))
    found = key_head_rows(run)
    assert found is not None
    assert run_content(run, "label")[0]["key_head_rows"] == found
    assert found["headings"][0][0] == "plasticity at one position"
    table = run.table("key_heads")
    assert len(found["rows"]) == len(table)
    first = table.iloc[0]
    row = found["rows"][0]
    assert row[:3] == [first["layer"], first["k_head"], first["n_q_heads"]]
    half = half_width(first["aligned_plasticity_se"], first["n_groups"])
    assert row[3] == f"{first['aligned_plasticity']:.3f} ± {half:.3f}"
    part = key_head_rows(run.select(layers=[1]))
    assert part is not None
    assert {one[0] for one in part["rows"]} == {1}


def test_missing_values(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert key_head_rows(FinishedRun.open(folder)) is None
    nothing = {"received_gini": np.nan, "aligned_plasticity_se": np.nan}
    found = key_head_rows(FinishedRun.open(add_key_heads(folder, nothing)))
    assert found is not None
    assert "Gini of attention" not in [name for name, _ in found["headings"]]
    assert "±" not in found["rows"][0][3]


def test_the_share_that_is_kept_is_that_of_the_exported_budget(tmp_path: Path) -> None:
    values = [0.3, 0.1, 0.2, 0.4, 0.05, 0.35]
    folder = add_key_heads(run_tables.write_run(tmp_path / "run"), {"aligned_plasticity": values})
    heads = len(values) // 3
    run = FinishedRun.open(name_layout(folder, 3, 2 * heads, heads))
    done = run_here("export", folder, tmp_path / "out", "--to", "kvpress-budget")
    assert done.returncode == 0, done.stderr
    kept = pd.read_csv(tmp_path / "out" / "budget.csv")["kept_at_50"]
    found = key_head_rows(run)
    assert found is not None
    assert found["headings"][0][0] == "kept at 50\u00a0%"
    assert [row[3] for row in found["rows"]] == [f"{100 * share:.0f} %" for share in kept]
    part = key_head_rows(run.select(layers=[1]))
    assert part is not None
    assert [row[3] for row in part["rows"]] == [row[3] for row in found["rows"] if row[0] == 1]
    lacking = add_key_heads(folder, {"aligned_plasticity": [0.3, np.nan, 0.2, 0.4, 0.1, 0.2]})
    found = key_head_rows(FinishedRun.open(lacking))
    assert found is not None
    assert found["headings"][0][0] == "plasticity at one position"
