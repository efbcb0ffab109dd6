"""Drift of heads and their points as the page gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.metrics import DRIFT, POINTS
from attention_plasticity.page import drift as page_drift
from attention_plasticity.page.content import run_content
from attention_plasticity.page.drift import LARGEST, NOT_DRAWN, drift_words
from attention_plasticity.page.payload import pack
from attention_plasticity.tables.finished_run import FinishedRun
from drift_runs import LAST, POINTS_OF_HEAD, add_drift, change_points
from report_runs import write_run

COLUMNS = {"before": ("pc0", "pc1"), "after": ("pc0_rotated", "pc1_rotated")}
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
    assert {stored[f"{frame}_{name}"] for frame in COLUMNS for name in "xy"} == {"u2"}
    assert stored["position"] == "u2"
    joined = points.merge(scales, on=["layer", "q_head", "kind"])
    assert len(joined) == len(points)
    wanted = FinishedRun.open(run).points
    wanted = wanted.sort_values(["layer", "q_head", "kind"], kind="stable")
    for frame, names in COLUMNS.items():
        for place, name in zip("xy", names, strict=True):
            found = joined[f"{frame}_scale"] * (2.0 * joined[f"{frame}_{place}"] / LARGEST - 1.0)
            np.testing.assert_allclose(found, wanted[name], atol=2e-4)
        assert not scales[f"{frame}_outside"].any()
    assert joined["position"].tolist() == wanted["position"].tolist()


def test_a_frame_that_is_not_known_has_no_scale(run: Path) -> None:
    """Here the points of one head before RoPE, those of another after RoPE, and all of a third."""
    change_points(run, 0, 0, pc0=np.nan, pc1=np.nan)
    change_points(run, 0, 1, pc1_rotated=np.nan)
    change_points(run, 1, 0, pc0=np.nan, pc1_rotated=np.nan)
    tables = content(run)[1]
    points, scales = (
        pd.DataFrame(tables[name]).set_index(["layer", "q_head"]) for name in ("points", "scales")
    )
    assert (points.loc[(0, 0), ["before_x", "before_y"]] == NOT_DRAWN).all(axis=None)
    assert (points.loc[(0, 0), ["after_x", "after_y"]] < NOT_DRAWN).all(axis=None)
    assert (points.loc[(0, 1), ["after_x", "after_y"]] == NOT_DRAWN).all(axis=None)
    found = scales[["before_scale", "after_scale"]].notna()
    assert found.loc[(0, 0)].to_numpy().tolist() == [[False, True]] * 2
    assert found.loc[(0, 1)].to_numpy().tolist() == [[True, False]] * 2
    assert (1, 0) not in points.index
    assert (1, 0) not in scales.index


def test_a_table_of_an_earlier_version_has_points_before_rope(run: Path) -> None:
    path = run / POINTS.file
    pd.read_csv(path).drop(columns=["pc0_rotated", "pc1_rotated"]).to_csv(path, index=False)
    about, tables = content(run)
    assert about["drift"]["points"] == POINTS_OF_HEAD
    assert np.isfinite(tables["scales"]["before_scale"]).all()
    assert np.isnan(tables["scales"]["after_scale"]).all()
    pd.read_csv(path).assign(pc0=np.nan).to_csv(path, index=False, na_rep="nan")
    about, tables = content(run)
    assert about["drift"]["points"] == 0
    assert "points" not in tables


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
    table.loc[len(table) - 1, "pc1"] = table.loc[len(table) - 2, "pc0_rotated"] = -5e3
    table.loc[len(table) - 3, ["pc1", "pc1_rotated"]] = 5e3
    table.to_csv(path, index=False)
    tables = content(run)[1]
    scales = pd.DataFrame(tables["scales"]).set_index(["layer", "q_head", "kind"])
    points = pd.DataFrame(tables["points"]).set_index(["layer", "q_head", "kind"])
    assert len(points.loc[(0, 1, 1)]) == 5 * POINTS_OF_HEAD - 1  # one is outside in both frames
    for frame in COLUMNS:
        assert scales[f"{frame}_outside"].loc[(0, 1, 1)] == 2
        assert scales[f"{frame}_outside"].sum() == 2
        assert scales[f"{frame}_scale"].max() < 100.0
        assert (points[f"{frame}_x"] == NOT_DRAWN).sum() == 1


def test_runs_without_points_or_without_drift(tmp_path: Path) -> None:
    about, tables = content(add_drift(write_run(tmp_path / "few"), points=False))
    assert about["drift"]["points"] == 0
    assert "points" not in tables
    about, tables = content(write_run(tmp_path / "none"))
    assert about["drift"] is None
    assert "drift" not in tables
