"""The table of key heads of a run: whatever computes its query heads, the bytes are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.merging import merge_shards, run_shard
from attention_plasticity.run.runner import run_analysis
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here

NAME = KEY_HEADS.file


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=2, q_heads=6, k_heads=2, n=120), layers=2)


def config(dump: Path, out: Path, **fields: Any) -> ap.RunnerConfig:
    return ap.make_config(
        dataset_local_root=str(dump), output_dir=str(out), max_workers=1, **fields
    )


@pytest.fixture(scope="module")
def whole(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_analysis(config(dump, tmp_path_factory.mktemp("whole")))


def table(outcome: Outcome) -> bytes:
    return outcome.paths.tables["key_heads"].read_bytes()


def test_a_row_per_key_head(whole: Outcome) -> None:
    rows = ap.open_run(whole.paths.folder).key_heads
    assert tuple(rows.columns) == KEY_HEADS.names
    assert list(zip(rows["layer"], rows["k_head"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (rows["n_q_heads"] == 3).all()
    means = json.loads(whole.paths.run.read_text())["key_head_means"]
    assert means["static_error"]["value"] == pytest.approx(rows["static_error"].mean())
    assert means["static_error"]["heads"] == 4
    assert set(means) <= set(KEY_HEADS.averaged)


def test_heads_that_are_computed_again(dump: Path, whole: Outcome, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole.paths.folder, tmp_path / "out"))
    for name in ("l00h01", "l00h05", "l01h00"):  # the first, the middle and the last of a group
        (out / ".heads" / f"{name}.json").unlink()
    assert table(run_analysis(config(dump, out))) == table(whole)
    for file in (out / ".heads").glob("l01*.json"):
        file.write_text(file.read_text().replace("0", "1", 5))  # damaged
    assert table(run_analysis(config(dump, out))) == table(whole)


def test_shards_that_split_a_group(dump: Path, whole: Outcome, tmp_path: Path) -> None:
    for index in (4, 1, 0, 3, 2):
        how: dict[str, Any] = {"engine": "shards", "num_shards": 5, "shard_index": index}
        run_shard(config(dump, tmp_path, **how))
        if index == 1:
            part = pd.read_csv(merge_shards([tmp_path]).paths.tables["key_heads"])
            assert part["n_q_heads"].min() < 3  # the row says which heads it has
    assert table(merge_shards([tmp_path])) == table(whole)


def test_more_processes_than_groups(dump: Path, whole: Outcome, tmp_path: Path) -> None:
    fields = {**config(dump, tmp_path).model_dump(), "max_workers": 2}
    assert table(run_analysis(ap.make_config(fields))) == table(whole)


def test_heads_that_are_added_later(dump: Path, whole: Outcome, tmp_path: Path) -> None:
    first = run_analysis(config(dump, tmp_path, heads=[1, 2, 4]))
    assert pd.read_csv(first.paths.tables["key_heads"])["n_q_heads"].tolist() == [2, 1, 2, 1]
    assert table(run_analysis(config(dump, tmp_path))) == table(whole)


def test_a_head_that_fails_and_is_repaired(dump: Path, whole: Outcome, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dump, tmp_path / "dump"))
    file = copy / "l00h02q" / "data.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    failed = run_analysis(config(copy, tmp_path / "out"))
    assert len(failed.failures) == 1
    assert pd.read_csv(failed.paths.tables["key_heads"])["n_q_heads"].tolist() == [2, 3, 3, 3]
    file.write_bytes(content)
    assert table(run_analysis(config(copy, tmp_path / "out"))) == table(whole)


def test_a_run_of_one_text_has_no_table(dump: Path, tmp_path: Path) -> None:
    run = ap.open_run(
        run_analysis(config(dump, tmp_path, single_example=True, layers=[0])).paths.folder
    )
    assert not run.has_key_heads


def test_missing_values_have_reasons(whole: Outcome) -> None:
    found = [one for one in whole.missing if one.table == "key_heads"]
    columns = {column for one in found for column in one.columns}
    assert {"attended_plasticity", "received_gini_se", "far_mass"} <= columns
    assert all(one.where == {"0": "0-1", "1": "0-1"} for one in found)
    rows = pd.read_csv(whole.paths.tables["key_heads"])
    assert {name for name in KEY_HEADS.averaged if rows[name].isna().any()} <= columns
