"""Drift of heads as the page gets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.metrics import DRIFT
from attention_plasticity.page.content import run_content
from attention_plasticity.page.drift import drift_words
from attention_plasticity.tables.finished_run import FinishedRun
from drift_runs import add_drift
from report_runs import write_run

T_11 = 2.200985  # of a table of Student's t: 97.5 %, 11 degrees of freedom


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return add_drift(write_run(tmp_path / "run"))


def tables_of(run: Path) -> dict[str, dict[str, Any]]:
    return run_content(FinishedRun.open(run), "x")[1]


def test_numbers_have_half_widths_where_errors_are_known(run: Path) -> None:
    table, columns = pd.read_csv(run / DRIFT.file), tables_of(run)["drift"]
    np.testing.assert_allclose(columns["k_pc1_r"], table["k_pc1_r"], rtol=1e-6)
    np.testing.assert_allclose(columns["q_drift_r_half_width"], 0.004 * T_11, rtol=1e-6)
    assert "q_pc0_share_half_width" not in columns
    words = drift_words()
    for kind, _ in words["kinds"]:
        for ending, _ in words["frames"]:
            for row in words["rows"]:
                assert f"{kind}_{row['name']}{ending}" in columns


def test_columns_without_a_value_are_left_out(run: Path) -> None:
    table = pd.read_csv(run / DRIFT.file)
    before = [name for name in table if "_unrotated" in name]
    table.assign(**dict.fromkeys(before, np.nan), n_groups=np.nan).to_csv(
        run / DRIFT.file, index=False, na_rep="nan"
    )
    columns = tables_of(run)["drift"]
    assert not set(before) & set(columns)
    assert "q_drift_r" in columns
    assert not any(name.endswith("_half_width") for name in columns)


def test_a_run_without_drift_has_no_table_of_it(tmp_path: Path) -> None:
    assert "drift" not in tables_of(write_run(tmp_path / "run"))
