"""Drift of heads and their points as the page gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.metrics import DRIFT
from attention_plasticity.page import drift as page_drift
from attention_plasticity.page.content import run_content
from attention_plasticity.page.drift import LARGEST, drift_words
from attention_plasticity.page.payload import pack
from attention_plasticity.tables.finished_run import FinishedRun
from drift_runs import LAST, POINTS_OF_HEAD, add_drift
from report_runs import write_run

T_11 = 2.200985  # of a table of Student's t: 97.5 %, 11 degrees of freedom


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return add_drift(write_run(tmp_path / "run"))


def content(run: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    return run_content(FinishedRun.open(run), "x")


def test_numbers_have_half_widths_where_errors_are_known(run: Path) -> None:
    about, tables = content(run)
    table, columns = pd.read_csv(run / DRIFT.file), tables["drift"]
    np.testing.assert_allclose(columns["k_pc1_r"], table["k_pc1_r"], rtol=1e-6)
    np.testing.assert_allclose(columns["q_drift_r_half_width"], 0.004 * T_11, rtol=1e-6)
    assert "q_pc0_share_half_width" not in columns
    assert about["drift"]["has_intervals"]
    words = drift_words()
    for kind, _ in words["kinds"]:
        for ending, _ in words["frames"]:
            for row in words["rows"]:
                assert f"{kind}_{row['name']}{ending}" in columns
                assert row["beside"] is None or f"{kind}_{row['beside']}{ending}" in columns


def test_points_are_restored_from_two_bytes(run: Path) -> None:
    about, tables = content(run)
    assert about["drift"]["points"] == POINTS_OF_HEAD
    assert about["drift"]["last"] == LAST
    points, scales = (pd.DataFrame(tables[name]) for name in ("points", "scales"))
    header, _ = pack({"points": tables["points"]})
    stored = {name: kind for name, kind, _ in header["points"]["columns"]}
    assert stored["x"] == stored["y"] == stored["position"] == "u2"
    joined = points.merge(scales, on=["layer", "q_head", "kind"])
    assert len(joined) == len(points)
    wanted = FinishedRun.open(run).points
    wanted = wanted.sort_values(["layer", "q_head", "kind"], kind="stable")
    for place, name in (("x", "pc0"), ("y", "pc1")):
        found = joined["scale"] * (2.0 * joined[place] / LARGEST - 1.0)
        np.testing.assert_allclose(found, wanted[name], atol=2e-4)
    assert joined["position"].tolist() == wanted["position"].tolist()
    assert not scales["outside"].any()


def test_many_heads_have_fewer_points(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first points of every head are kept."""
    heads = len(pd.read_csv(run / DRIFT.file))
    monkeypatch.setattr(page_drift, "MOST_POINTS", 2 * heads * 7 + 3)
    points = pd.DataFrame(content(run)[1]["points"])
    assert set(points.groupby(["layer", "q_head", "kind"]).size()) == {7}
    first = FinishedRun.open(run).points.query("layer == 0 and q_head == 0 and kind == 'q'")
    assert points["position"][:7].tolist() == first["position"][:7].tolist()


def test_points_far_from_all_others_are_left_out(run: Path) -> None:
    path = run / "head_points.csv"
    table = pd.read_csv(path)
    own = (table["layer"] == 0) & (table["q_head"] == 1) & (table["kind"] == "k")
    more = pd.concat([table[own]] * 4)
    table = pd.concat([table, more], ignore_index=True)
    table.loc[len(table) - 1, "pc1"] = -5e3
    table.to_csv(path, index=False)
    scales = pd.DataFrame(content(run)[1]["scales"])
    outside = scales.set_index(["layer", "q_head", "kind"])["outside"]
    assert outside.loc[(0, 1, 1)] == 1
    assert outside.sum() == 1
    assert scales["scale"].max() < 100.0


def test_runs_without_points_or_without_drift(tmp_path: Path) -> None:
    about, tables = content(add_drift(write_run(tmp_path / "few"), points=False))
    assert about["drift"]["points"] == 0
    assert "points" not in tables
    about, tables = content(write_run(tmp_path / "none"))
    assert about["drift"] is None
    assert "drift" not in tables
