"""Attention by distance as the page gets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.page.attention import SCALE, UNKNOWN
from attention_plasticity.page.content import run_content
from attention_plasticity.page.payload import pack
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from attention_runs import BINS, DISTANT, MASSES, add_attention
from qk_toolkit.errors import ConfigError
from report_runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return add_attention(write_run(tmp_path / "run", position=True))


def test_masses_and_intervals_are_rounded_to_four_digits(run: Path) -> None:
    table = pd.read_csv(run / "head_attention.csv")
    table.loc[5, ["mass_1", "mass_1_se"]] = np.nan
    table.iloc[::-1].to_csv(run / "head_attention.csv", index=False)
    about, tables = run_content(FinishedRun.open(run), "x")
    columns = tables["attention"]
    used = [first for first in BINS if first <= table["q_position"].max()]
    assert [name for name in columns if name.startswith("mass_")] == [f"mass_{n}" for n in used]
    for first in used:
        masses, errors = table[f"mass_{first}"], table[f"mass_{first}_se"]
        for name, values in (
            (f"mass_{first}", masses.to_numpy()),
            (f"half_{first}", half_width(errors, table["n_groups"])),
        ):
            known = ~np.isnan(values)
            assert (columns[name][~known] == UNKNOWN).all()
            np.testing.assert_allclose(columns[name][known] / SCALE, values[known], atol=5.1e-5)
    for name in ("n_queries", "n_tokens"):
        np.testing.assert_array_equal(columns[name], table[name])
    kinds = {name: kind for name, kind, _ in pack(tables)[0]["attention"]["columns"]}
    assert {kinds[name] for name in kinds if name.startswith(("mass_", "half_"))} <= {"u1", "u2"}
    assert about["distant_from"] == DISTANT
    estimates = tables["estimates"]
    assert {"ap_attended_half_width", "attn_sink_mass_half_width"} <= set(estimates)


def test_runs_without_attention_have_no_table_of_it(tmp_path: Path) -> None:
    about, tables = run_content(FinishedRun.open(write_run(tmp_path / "run")), "x")
    assert "attention" not in tables
    assert about["distant_from"] is None


def test_a_table_without_masses_is_left_out_and_rows_are_single(run: Path) -> None:
    table = pd.read_csv(run / "head_attention.csv")
    pd.concat([table, table.head(1)]).to_csv(run / "head_attention.csv", index=False)
    with pytest.raises(ConfigError, match=r"head_attention\.csv: holds two rows for layer 0"):
        run_content(FinishedRun.open(run), "x")
    table.assign(**dict.fromkeys(MASSES, 0.0)).to_csv(run / "head_attention.csv", index=False)
    assert "attention" not in run_content(FinishedRun.open(run), "x")[1]
