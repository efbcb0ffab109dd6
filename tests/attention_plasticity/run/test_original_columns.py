"""`original_columns: false`: the same numbers without those of the original definition."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.metrics import HEAD_METRICS, ORIGINAL_COLUMNS, ORIGINAL_TABLES, TABLES
from attention_plasticity.tables.summary import print_summary
from dumps import make_dump
from helpers.simulated_dumps import make_simulated_dump
from qk_toolkit.errors import ConfigError
from runs_here import analyse, computed


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with the columns, and one of the same dump without."""
    root = tmp_path_factory.mktemp("original")
    dump = make_simulated_dump(root / "dump", k_heads=1)
    for name, wanted in (("with", True), ("without", False)):
        assert not analyse(dump, root / name, original_columns=wanted).failures
    return root / "with", root / "without"


def lines_of(run: ap.Run) -> str:
    """What is printed about a run."""
    file = io.StringIO()
    print_summary(run, Console(file=file, width=400))
    return file.getvalue()


def test_all_other_columns_and_tables_have_the_same_bytes(folders: tuple[Path, Path]) -> None:
    whole, part = folders
    left_out = {TABLES[kind].file for kind in ORIGINAL_TABLES}
    files = {path.name for path in whole.glob("*.csv")}
    assert left_out < files == {path.name for path in part.glob("*.csv")} | left_out
    for name in files - left_out - {HEAD_METRICS.file}:
        assert (whole / name).read_bytes() == (part / name).read_bytes(), name
    tables = [pd.read_csv(folder / HEAD_METRICS.file) for folder in folders]
    assert list(tables[1]) == [name for name in HEAD_METRICS.names if name not in ORIGINAL_COLUMNS]
    pd.testing.assert_frame_equal(tables[0].drop(columns=list(ORIGINAL_COLUMNS)), tables[1])


def test_run_json_says_it_and_has_the_other_means(folders: tuple[Path, Path]) -> None:
    whole, part = (json.loads((folder / "run.json").read_text()) for folder in folders)
    assert part["config"]["original_columns"] is False
    assert whole["means"].keys() - part["means"].keys() == {"ap_overall"}
    assert part["means"]["ap_aligned"] == whole["means"]["ap_aligned"]
    [warning] = [one for one in part["warnings"] if one["kind"] == "original_left_out"]
    assert warning["heads"] == 2
    [missing] = [one for one in part["missing"] if one["reason"] in warning["reasons"]]
    assert set(missing["columns"]) == set(ORIGINAL_COLUMNS)
    assert not any(one["kind"] == "original_left_out" for one in whole["warnings"])


def test_readers_show_the_rest_and_say_in_one_line_what_is_missing(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    runs = [ap.open_run(folder) for folder in folders]
    text = lines_of(runs[1])
    assert "Note         original_columns is false" in text
    assert "Missing" not in text
    assert "–" not in text.split("heads ")[0]
    assert "of the variance of the queries before RoPE" in text
    assert ap.report([runs[1]]).save(tmp_path / "page.html").exists()
    summary = ap.compare_runs(runs, labels=["with", "without"]).summary
    assert "ap_aligned" in set(summary.loc[summary["run"] == "without", "metric"])
    assert main(["plot", "all", str(folders[1]), "--output", str(tmp_path / "figures")]) == 0
    for ask, words in (
        (lambda: runs[1].bucket_plasticity, "has no head_bucket_plasticity.csv"),
        (lambda: runs[1].component_weights, "has no head_component_weights.csv"),
        (lambda: runs[1].plot("map", metric="q_R2_total"), "has no q_R2_total"),
        (lambda: runs[1].plot("heatmap", plasticity="bucket"), "has no head_bucket_plasticity.csv"),
        (lambda: runs[1].plot("components"), "needs an analysis without --no-original_columns"),
    ):
        with pytest.raises(ConfigError, match=words):
            ask()


def test_a_dump_without_rotary_records_has_plasticity_over_a_bin(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1)
    analyse(dump, tmp_path / "run", original_columns=False)
    run = ap.open_run(tmp_path / "run")
    assert "Plasticity over a bin 0." in lines_of(run)
    with pytest.raises(ConfigError, match=r"has no ap_overall, because original_columns is false"):
        ap.report([run])


def test_records_of_the_other_choice_are_not_used(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1)
    for wanted, expected in ((True, [(0, 0)]), (False, [(0, 0)]), (True, []), (False, [])):
        assert computed(dump, tmp_path / "run", original_columns=wanted) == expected
    assert not (tmp_path / "run" / TABLES["component_weights"].file).exists()


def test_one_head_has_no_such_columns(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1)
    found = ap.analyze_head(0, 1, dump=dump, config=ap.make_config(original_columns=False))
    assert not found.metrics.keys() & set(ORIGINAL_COLUMNS)
    with pytest.raises(ConfigError, match="original_columns is false"):
        _ = found.component_weights


def test_a_path_of_a_table_that_is_left_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="bucket_csv: original_columns is false"):
        ap.make_config(original_columns=False, bucket_csv="cells.csv")
