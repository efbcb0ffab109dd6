"""The library as a researcher uses it in a notebook or a script."""

import pandas as pd
import pytest

import attention_plasticity as ap
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here


def make(folder):
    return make_dump(folder, layers=2, q_heads=2, k_heads=1, n=200)


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return make(tmp_path_factory.mktemp("api") / "dump")


def test_a_dump_becomes_data_frames_that_no_other_run_replaces(dump, tmp_path):
    run = ap.analyze_dump(ap.open_dump(dump), output_dir=str(tmp_path / "out"), max_workers=1)
    assert len(run.head_metrics) == 4
    assert run.bucket_plasticity.plasticity.between(0, 1).all()
    assert run.component_weights.groupby(["layer", "q_head"]).size().tolist() == [8] * 4
    assert run.failures.empty
    again = ap.open_run(tmp_path / "out")
    pd.testing.assert_frame_equal(again.head_metrics, run.head_metrics)
    assert again.info["config"]["seed"] == 0
    require_rows_of_one_head(dump, run)
    late = ap.open_run(tmp_path / "out")
    (tmp_path / "out" / "head_metrics.csv").write_text("layer\n1\n")  # by another run
    with pytest.raises(ap.ToolkitError, match="was changed after the run"):
        _ = late.head_metrics
    assert len(late.bucket_plasticity) > 0


def test_progress_is_shown_if_asked_for(dump, tmp_path, capsys):
    for progress in (False, True):
        ap.analyze_dump(dump, output_dir=str(tmp_path), max_workers=1, progress=progress)
        told = capsys.readouterr()
        assert told.out == ""
        assert ("4 of 4 heads were finished earlier" in told.err) == progress


def require_rows_of_one_head(dump, run):
    """The analysis of one head gives the rows of the tables."""
    opened = ap.open_dump(dump)
    assert repr(opened) == f"<Dump '{dump}': 4 query heads, 2 key heads>"
    head = ap.analyze_head(1, 1, dump=opened)
    assert head.k_head == 0
    table = run.bucket_plasticity.query("layer == 1 and q_head == 1").reset_index(drop=True)
    pd.testing.assert_frame_equal(head.bucket_plasticity, table, check_exact=False, rtol=1e-12)
    weights = run.component_weights.query("layer == 1 and q_head == 1").reset_index(drop=True)
    pd.testing.assert_frame_equal(head.component_weights, weights, check_exact=False, rtol=1e-12)


def test_settings_may_come_as_a_config_a_mapping_or_words(tmp_path):
    """The `model_dir` of the settings is ignored for a dump that was opened."""
    make_dump(tmp_path / "root" / "model", layers=1, k_heads=1, n=60)
    config = ap.make_config(
        seed=7, model_dir="model", output_dir=str(tmp_path / "out"), max_workers=1
    )
    opened = ap.open_dump(tmp_path / "root", "model")
    run = ap.analyze_dump(opened, config, query_model="full")
    assert len(run.head_metrics) == 4
    assert run.info["config"]["seed"] == 7
    assert run.info["config"]["query_model"] == "full"
    again = ap.analyze_dump(opened, config.model_dump(), query_model="full")  # nothing to compute
    assert again.info["config"] == run.info["config"]
    assert ap.analyze_head(0, 1, 0, tmp_path / "root").q_head == 1
    with pytest.raises(ap.ConfigError, match="did you mean query_model"):
        ap.analyze_dump(opened, query_modle="full")
    for field in ("dry_run", "dataset_local_root"):
        with pytest.raises(ap.ConfigError, match="cannot be given here"):
            ap.analyze_dump(opened, **{field: True})


def test_failures_are_a_table_and_total_failure_is_an_error(tmp_path):
    dump = make(tmp_path / "dump")
    (dump / "l00h00q" / "data.parquet").write_text("spoilt")
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"), max_workers=1)
    assert run.failures[["layer", "q_head"]].to_numpy().tolist() == [[0, 0]]
    for file in dump.glob("*/data.parquet"):
        file.write_text("spoilt")
    with pytest.raises(ap.ToolkitError, match="no head could be analysed; the first reason: "):
        ap.analyze_dump(dump, output_dir=str(tmp_path / "none"), max_workers=1)
    with pytest.raises(ap.ToolkitError, match="no head was analysed"):
        _ = ap.open_run(tmp_path / "none").head_metrics
