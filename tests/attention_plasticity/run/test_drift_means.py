"""The tables of drift and of points of a run, the means over heads, and the reasons of NaN."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.head.layout import head_layout
from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.metrics import DRIFT, POINTS
from attention_plasticity.run.drift_means import AVERAGED_DRIFT
from attention_plasticity.run.records import read_sealed, sealed
from attention_plasticity.run.run_info import run_settings
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.source import open_dump

TEXTS = 12


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layer 0 has a rotary record, layer 1 has none."""
    folder = tmp_path_factory.mktemp("dump")
    made = make_dump(folder, layers=2, q_heads=4, k_heads=2, n=240, examples=TEXTS)
    return add_rotary(made, layers=1)


@pytest.fixture(scope="module")
def run(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> ap.Run:
    out = tmp_path_factory.mktemp("run")
    return ap.analyze_dump(dump, output_dir=out, points_per_head=25, max_workers=1)


def test_tables_have_the_rows_of_their_heads(run: ap.Run, dump: Path) -> None:
    assert tuple(run.drift.columns) == DRIFT.names
    assert len(run.drift) == 8
    assert tuple(run.points.columns) == POINTS.names
    sizes = run.points.groupby(["layer", "q_head", "kind"]).size()
    assert set(sizes) == {25}
    assert set(run.points["layer"]) == {0, 1}
    of_layers = run.points.set_index("layer")[["pc0", "pc1"]].notna()
    assert of_layers.loc[0].all(axis=None)
    assert not of_layers.loc[1].any(axis=None)  # RoPE of layer 1 cannot be undone
    assert run.points[["pc0_rotated", "pc1_rotated"]].notna().all(axis=None)
    own = analyze_head(0, 3, dump=dump, config=ap.make_config(points_per_head=25))
    row = run.drift.query("layer == 0 and q_head == 3").iloc[0]
    for name, (value,) in own.drift.items():
        assert row[name] == value, name
    keys = run.points.query("layer == 0 and kind == 'k'")
    first, second = (keys.query(f"q_head == {head}")["pc0"].tolist() for head in (2, 3))
    assert first == second  # both use key head 1


def test_means_over_heads_and_their_errors(run: ap.Run, dump: Path) -> None:
    """The error of a mean: leave a group out of every head, and average."""
    means = json.loads((run.folder / "run.json").read_text())["drift_means"]
    assert set(means) == set(AVERAGED_DRIFT)
    for name in AVERAGED_DRIFT:
        column = run.drift[name].dropna()
        assert means[name]["value"] == pytest.approx(column.mean())
        assert means[name]["heads"] == len(column)
        assert not means[name]["corrected"]
    name = "k_drift_r"
    heads = run.drift[["layer", "q_head"]].to_numpy().tolist()
    results = [analyze_head(layer, head, dump=dump) for layer, head in heads]
    influences = np.mean([one.drift_influences[name] for one in results], axis=0)  # (groups,)
    error = math.sqrt(float((influences**2).sum()))
    assert means[name]["standard_error"] == pytest.approx(error)
    assert means[name]["groups"] == TEXTS


def test_every_nan_has_a_reason(run: ap.Run) -> None:
    missing = [one for one in run.info["missing"] if one["table"] == "drift"]
    found = {
        (int(layer), name)
        for one in missing
        for layer in one["where"]
        for name in one["columns"]
        if one["reason"]
    }
    numbers = run.drift[list(DRIFT.names[3:])]
    expected = {
        (int(run.drift["layer"].iloc[row]), name)
        for name in numbers
        for row in np.flatnonzero(numbers[name].isna())
    }
    assert found == expected
    assert {layer for layer, _ in found} == {1}
    assert all("_unrotated" in name for _, name in found)


def test_points_of_an_unknown_frame_have_a_reason(run: ap.Run) -> None:
    (found,) = [one for one in run.info["missing"] if one["table"] == "points"]
    assert found["columns"] == ["pc0", "pc1"]
    assert found["where"] == {"1": "0-3"}
    assert found["values"] == 4 * 2 * 25
    assert "rotary record" in found["reason"]


def test_two_workers_and_records_of_earlier_versions_give_the_same_tables(
    run: ap.Run, dump: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"output_dir": tmp_path, "points_per_head": 25}
    ap.analyze_dump(dump, max_workers=2, **settings)
    names = (POINTS.file, DRIFT.file)
    assert [(tmp_path / name).read_bytes() for name in names] == [
        (run.folder / name).read_bytes() for name in names
    ]
    files = sorted((tmp_path / ".heads").glob("l00h*.json"))
    for number, file in enumerate(files):
        record = read_sealed(file)
        assert record is not None
        if number % 2:  # as of a version with points in one frame
            del record["points"]["pc0_rotated"], record["points"]["pc1_rotated"]
        else:  # as of a version without influences on shares of bands
            table = record["influences"]
            kept = [place for place, name in enumerate(table["quantity"]) if name != "band_share"]
            assert len(kept) < len(table["quantity"])
            record["influences"] = {
                name: [column[place] for place in kept] for name, column in table.items()
            }
        file.write_text(sealed(record))
    again = ap.analyze_dump(dump, max_workers=1, **settings)
    for name in ("points", "influences"):
        assert again.path(name).read_bytes() == run.path(name).read_bytes()


def test_points_are_a_setting_of_results_only_if_they_are_wanted(dump: Path) -> None:
    opened = open_dump(dump)
    for points in (0, 10):
        config = ap.make_config(points_per_head=points)
        settings = run_settings(config, head_layout(opened, config), opened)
        assert settings.get("points_per_head") == (points or None)


def test_without_points_there_is_no_table(dump: Path, run: ap.Run, tmp_path: Path) -> None:
    other = ap.analyze_dump(dump, output_dir=tmp_path / "out", max_workers=1)
    assert not other.has_points
    pd.testing.assert_frame_equal(other.drift, run.drift)
    for name in ("head_metrics.csv", "head_influences.csv", "head_bands.csv"):
        assert (other.folder / name).read_bytes() == (run.folder / name).read_bytes()
