"""The library as a researcher uses it in a notebook or a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.api import report
from dumps import make_dump
from report_runs import write_run


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=200)


def test_a_dump_becomes_data_frames(dump: Path, tmp_path: Path) -> None:
    run = ap.analyze_dump(ap.open_dump(dump), output_dir=str(tmp_path / "out"), max_workers=1)
    assert len(run.head_metrics) == 4
    assert run.bucket_plasticity.plasticity.between(0, 1).all()
    assert run.component_weights.groupby(["layer", "q_head"]).size().tolist() == [8] * 4
    assert run.failures.empty
    again = ap.open_run(tmp_path / "out")
    pd.testing.assert_frame_equal(again.head_metrics, run.head_metrics)
    assert again.info["config"]["max_workers"] == 1


def test_one_head_gives_the_rows_of_the_tables(dump: Path, tmp_path: Path) -> None:
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"))
    opened = ap.open_dump(dump)
    assert repr(opened) == f"<Dump '{dump}': 4 query heads, 2 key heads>"
    head = ap.analyze_head(1, 1, dump=opened)
    assert head.k_head == 0
    table = run.bucket_plasticity.query("layer == 1 and q_head == 1").reset_index(drop=True)
    pd.testing.assert_frame_equal(head.bucket_plasticity, table, check_exact=False, rtol=1e-12)
    weights = run.component_weights.query("layer == 1 and q_head == 1").reset_index(drop=True)
    pd.testing.assert_frame_equal(head.component_weights, weights, check_exact=False, rtol=1e-12)


def test_settings_may_come_as_a_config_or_as_words(dump: Path, tmp_path: Path) -> None:
    config = ap.make_config(seed=7, output_dir=str(tmp_path / "out"))
    run = ap.analyze_dump(dump, config, query_model="full")
    assert run.info["config"]["seed"] == 7
    assert run.info["config"]["query_model"] == "full"
    with pytest.raises(ap.ConfigError, match="did you mean query_model"):
        ap.analyze_dump(dump, query_modle="full")


def test_a_dump_that_was_opened_needs_no_model_dir(tmp_path: Path) -> None:
    make_dump(tmp_path / "root" / "model", layers=1, n=60)
    config = ap.make_config(model_dir="model", output_dir=str(tmp_path / "out"))
    opened = ap.open_dump(tmp_path / "root", "model")
    assert len(ap.analyze_dump(opened, config).head_metrics) == 4
    assert ap.analyze_head(0, 1, 0, tmp_path / "root").q_head == 1
    for field in ("dry_run", "dataset_local_root"):
        with pytest.raises(ap.ConfigError, match="cannot be given here"):
            ap.analyze_dump(opened, **{field: True})


def test_failures_are_a_table_and_total_failure_is_an_error(dump: Path, tmp_path: Path) -> None:
    (dump / "l00h00q" / "data.parquet").write_text("spoilt")
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"))
    assert run.failures[["layer", "q_head"]].to_numpy().tolist() == [[0, 0]]
    for file in dump.glob("*/data.parquet"):
        file.write_text("spoilt")
    with pytest.raises(ap.ToolkitError, match="no head could be analysed; the first reason: "):
        ap.analyze_dump(dump, output_dir=str(tmp_path / "none"))
    with pytest.raises(ap.ToolkitError, match="no head was analysed"):
        _ = ap.open_run(tmp_path / "none").head_metrics


def test_a_table_that_another_run_replaced_is_not_shown(dump: Path, tmp_path: Path) -> None:
    run = ap.analyze_dump(dump, {"seed": 1}, output_dir=str(tmp_path / "out"))
    (tmp_path / "out" / "head_metrics.csv").write_text("layer\n1\n")
    with pytest.raises(ap.ToolkitError, match="was changed after the run"):
        _ = run.head_metrics
    assert len(run.bucket_plasticity) > 0


def test_a_page_of_runs_and_folders(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, model=f"owner/{name}") for name in ("a", "b")]
    page = report([ap.open_run(folders[0]), folders[1]], labels=["one", "two"], title="Both")
    assert "<title>Both</title>" in page.save(tmp_path / "both.html").read_text()
    with pytest.raises(ap.ConfigError, match="labels: 1 given for 2 runs"):
        report(folders, labels=["one"])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ap.ConfigError, match=r"holds neither run\.json nor tables"):
        ap.open_run(tmp_path)


def test_a_script_needs_no_main_guard(dump: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import attention_plasticity as ap\n"
        f"run = ap.analyze_dump({str(dump)!r}, output_dir={str(tmp_path / 'out')!r})\n"
        "print(len(run.head_metrics))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "4\n", done.stderr
