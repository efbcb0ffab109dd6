"""Tables as figures read them, and files that are not what they should be."""

import hashlib
import json

import pandas as pd
import pytest

from attention_plasticity.cli import main
from attention_plasticity.tables.csv_tables import read_table
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.labels import labels_of
from dumps import make_dump
from helpers.plain_runs import edit_info
from helpers.run_tables import cells_table, components_table, write_run
from qk_dump.positions import BucketGeometry
from qk_toolkit.errors import ConfigError, ToolkitError
from runs_here import analyse


def refusal(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_run_tells_its_tables_model_and_buckets(tmp_path):
    run = FinishedRun.open(write_run(tmp_path))
    pd.testing.assert_frame_equal(run.bucket_plasticity, cells_table())
    pd.testing.assert_frame_equal(run.component_weights, components_table())
    assert len(run.head_metrics) == 12
    assert run.model_name == "Tiny-1B"
    assert run.geometry == BucketGeometry("uniform", 128)


def test_names_that_utf8_cannot_hold_are_shown_with_question_marks(tmp_path):
    runs = [
        FinishedRun.open(write_run(tmp_path / f"caf\udce9{n}", model="a/b\ud800")) for n in (1, 2)
    ]
    assert runs[0].model_name == "b?"
    assert labels_of(runs) == ["b? (caf?1)", "b? (caf?2)"]
    assert labels_of(runs, ["a", "\udce9"]) == ["a", "?"]
    runs = [FinishedRun.open(write_run(tmp_path / "caf\udce93", model=""))]
    assert labels_of(runs) == ["caf?3"]


def test_a_table_that_was_cut_is_refused(tmp_path):
    folder = write_run(tmp_path)
    path = folder / "head_bucket_plasticity.csv"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_info(folder, sha256={"bucket_plasticity": digest})
    assert len(FinishedRun.open(folder).bucket_plasticity) == len(cells_table())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:50]))  # whole rows, so that only the hash tells
    figure = ["plot", "heatmap", "--output", str(tmp_path / "x.png")]
    assert main(["report", str(folder)]) == 1
    assert main([*figure, str(folder)]) == 1
    with pytest.raises(ToolkitError, match="was changed after the run"):
        _ = FinishedRun.open(folder).bucket_plasticity
    assert not (tmp_path / "x.png").exists()
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("layer,q_head,q_bucket,k_bucket,plasticity\n", "holds no rows"),
        (
            "layer,q_head,q_bucket,k_bucket,plastisity\n0,0,1,0,1\n",
            "has no column 'plasticity' (nor 'ap_bucket'); its columns are layer, q_head, "
            "q_bucket, k_bucket, plastisity; did you mean plastisity?",
        ),
        (
            "layer,q_head,q_bucket,k_bucket,plasticity\n0,0,1,0,high\n",
            "plasticity: expected numbers, got 'high'",
        ),
        (
            "layer,q_head,q_bucket,k_bucket,plasticity\n0,0,1.5,0,1\n",
            "q_bucket: expected integers of at least 0",
        ),
        ('layer,"q_head\n0,0', "cannot be read as CSV"),
    ],
)
def test_a_wrong_table_is_told_by_its_file(tmp_path, text, told):
    path = tmp_path / "cells.csv"
    path.write_text(text)
    message = refusal(lambda: read_table(path, "bucket_plasticity"))
    assert message.startswith(f"{path}: ")
    assert told in message


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    assert "does not exist" in refusal(lambda: FinishedRun.open(tmp_path / "no"))
    assert "neither run.json nor tables" in refusal(lambda: FinishedRun.open(tmp_path))
    (tmp_path / "dump.json").write_text("{}")
    assert "is a dump; analyse it first" in refusal(lambda: FinishedRun.open(tmp_path))
    (tmp_path / "run.json").write_text("{")
    assert "cannot be read" in refusal(lambda: FinishedRun.open(tmp_path))
    assert "is a file" in refusal(lambda: FinishedRun.open(tmp_path / "run.json"))
    (tmp_path / "run.json").write_text('{"tables": {}}')
    assert "no head was analysed" in refusal(lambda: FinishedRun.open(tmp_path).head_metrics)
    (tmp_path / "run.json").write_text("[]")
    assert "expected a mapping" in refusal(lambda: FinishedRun.open(tmp_path))


@pytest.mark.parametrize("edit", [{"means": []}, {"seed": 1}, {"input": None}, {"more": 1}])
def test_an_edited_run_is_told_by_its_file(tmp_path, edit):
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1)
    analyse(dump, tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    info = json.loads(file.read_text())
    file.write_text(json.dumps(info))  # other white space
    assert FinishedRun.open(file.parent).info == info
    file.write_text(json.dumps(info | edit))
    told = f"{file}: was changed after the run. Run the analysis again"
    assert refusal(lambda: FinishedRun.open(file.parent)) == told
