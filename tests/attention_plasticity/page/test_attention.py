"""Attention by distance as the page gets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.page.attention import SCALE, UNKNOWN
from attention_plasticity.page.content import run_content
from attention_plasticity.page.payload import pack
from attention_plasticity.tables.attention_masses import row_masses_without_sinks
from attention_plasticity.tables.finished_run import FinishedRun
from attention_runs import BINS, DISTANT, MASSES, add_attention
from qk_toolkit.errors import ConfigError
from report_runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return add_attention(write_run(tmp_path / "run", position=True))


def test_masses_without_sinks_are_rounded_to_four_digits(run: Path) -> None:
    table = pd.read_csv(run / "head_attention.csv")
    table.loc[5, ["mass_1", "mass_1_se"]] = np.nan
    table.iloc[::-1].to_csv(run / "head_attention.csv", index=False)
    opened = FinishedRun.open(run)
    about, tables = run_content(opened, "x")
    columns = tables["attention"]
    used = [first for first in BINS if first <= table["q_position"].max()]
    names = ["sinks", *map(str, used)]
    assert [name for name in columns if name.startswith("mass_")] == [f"mass_{n}" for n in names]
    masses, half = row_masses_without_sinks(table, used, opened.geometry)
    for place, first in enumerate(names):
        for name, values in ((f"mass_{first}", masses), (f"half_{first}", half)):
            known = ~np.isnan(values[:, place])
            assert (columns[name][~known] == UNKNOWN).all()
            shown = columns[name][known] / SCALE
            np.testing.assert_allclose(shown, values[known, place], atol=5.1e-5)
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
