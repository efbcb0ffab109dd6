"""The verb `fidelity` on small dumps: files, continuing, refusals, and folders of analyses."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attention_plasticity.fidelity.key_head import NUMBERS, ROWS
from attention_plasticity.metrics import FIDELITY
from commands_here import analyze_here, run_here
from fidelity_dumps import make_fidelity_dump

FILES = ("head_fidelity.csv", "fidelity.json")
SMALL = ("--near", 8, "--max_workers", 1)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fidelity_dump(tmp_path_factory.mktemp("dump") / "dump")


@pytest.fixture(scope="module")
def done(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("done") / "out"
    found = run_here("fidelity", dump, "--output_dir", out, *SMALL)
    assert found.returncode == 0, found.stderr
    (out / "printed.txt").write_text(found.stdout)
    return out


def table(folder: Path) -> list[dict[str, str]]:
    """The rows of the table."""
    with (folder / FILES[0]).open() as file:
        return list(csv.DictReader(file))


def test_the_table_has_a_row_per_key_head_and_score(done: Path) -> None:
    rows = table(done)
    assert list(rows[0]) == list(FIDELITY.names)
    names = [(row["k_head"], row["score"], row["value_norm"]) for row in rows]
    assert names == [(head, score, str(times)) for head in "01" for score, times in ROWS]
    assert {row["n_q_heads"] for row in rows} == {"2"}
    assert {row["n_texts"] for row in rows} == {"6"}
    for row in rows:
        assert 0 < float(row["kept_10"]) < float(row["kept_25"]) < float(row["kept_50"]) <= 1
        assert (row["spearman"] == "nan") == (row["score"] == "best_per_query")


def test_the_means_are_those_of_the_table(done: Path) -> None:
    info, rows = json.loads((done / FILES[1]).read_text()), table(done)
    assert info["sha256"] == hashlib.sha256((done / FILES[0]).read_bytes()).hexdigest()
    assert info["first_query"] == 24
    assert info["key_heads"] == {"measured": 2, "failed": 0}
    assert [(one["score"], one["value_norm"]) for one in info["means"]] == list(ROWS)
    for one in info["means"]:
        own = [
            r
            for r in rows
            if (r["score"], int(r["value_norm"])) == (one["score"], one["value_norm"])
        ]
        for name in NUMBERS:
            values = [float(row[name]) for row in own]
            if name == "spearman" and one["score"] == "best_per_query":
                assert one[name]["value"] is None
                continue
            assert one[name]["value"] == pytest.approx(np.mean(values))
            errors = [float(row[f"{name}_se"]) for row in own]
            assert 0 < one[name]["standard_error"] <= np.mean(errors) + 1e-12


def test_the_printed_table_begins_with_the_best_score_and_ends_with_the_limits(done: Path) -> None:
    lines = (done / "printed.txt").read_text().splitlines()
    assert "mean over 2 key heads" in lines[0]
    found = [re.search(r"\.\d{3} +(\d\.\d{3}) +\d\.\d{3}$", line.rstrip()) for line in lines]
    kept = [float(one[1]) for one in found if one]
    assert len(kept) == len(ROWS)
    assert kept[:-2] == sorted(kept[:-2], reverse=True)
    text = "\n".join(lines)
    assert text.index("best ranking of the text") < text.index("best keys of each query")
    assert lines[-1].endswith("fidelity.json")


def test_two_workers_give_the_same_bytes(dump: Path, done: Path, tmp_path: Path) -> None:
    found = run_here("fidelity", dump, "--output_dir", tmp_path, "--near", 8, "--max_workers", 2)
    assert found.returncode == 0, found.stderr
    assert (tmp_path / FILES[0]).read_bytes() == (done / FILES[0]).read_bytes()


def test_a_capture_before_rope_gives_the_same_numbers(done: Path, tmp_path: Path) -> None:
    dump = make_fidelity_dump(tmp_path / "dump", pre_rope=True)
    assert run_here("fidelity", dump, "--output_dir", tmp_path / "out", *SMALL).returncode == 0
    for one, other in zip(table(tmp_path / "out"), table(done), strict=True):
        for name in NUMBERS:
            expected = pytest.approx(float(other[name]), abs=2e-4, nan_ok=True)
            assert float(one[name]) == expected, one["score"]


def test_a_dump_without_drawn_keys(tmp_path: Path) -> None:
    dump = make_fidelity_dump(tmp_path / "dump", drawn=False, k_heads=1)
    assert run_here("fidelity", dump, "--output_dir", tmp_path / "out", *SMALL).returncode == 0
    assert len(table(tmp_path / "out")) == len(ROWS)


def test_a_repeated_command_measures_what_is_missing(
    dump: Path, done: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(done, tmp_path / "out")
    whole = (out / FILES[0]).read_bytes()
    for name in (*FILES, ".fidelity/l00h01.json"):
        (out / name).unlink()
    record = out / ".fidelity" / "l00h00.json"
    before = record.stat().st_mtime_ns
    found = run_here("fidelity", dump, "--output_dir", out, *SMALL)
    assert "1 of 2 key heads were measured earlier" in found.stderr
    assert (out / FILES[0]).read_bytes() == whole
    assert record.stat().st_mtime_ns == before


def test_a_damaged_record_is_measured_again(dump: Path, done: Path, tmp_path: Path) -> None:
    out = shutil.copytree(done, tmp_path / "out")
    record = out / ".fidelity" / "l00h00.json"
    record.write_text(record.read_text().replace("0.1", "0.2"))
    assert run_here("fidelity", dump, "--output_dir", out, *SMALL).returncode == 0
    assert (out / FILES[0]).read_bytes() == (done / FILES[0]).read_bytes()


def test_ctrl_c_keeps_finished_key_heads(tmp_path: Path) -> None:
    dump = make_fidelity_dump(tmp_path / "dump", layers=3)
    out = tmp_path / "out"
    words = ["fidelity", str(dump), "--output_dir", str(out), "--near", "8", "--max_workers", "2"]
    command = [sys.executable, "-m", "attention_plasticity", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list(out.glob(".fidelity/l*.json")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    message = process.communicate()[1]
    assert process.returncode == 130, message
    assert "finished key heads are kept" in message
    assert "Traceback" not in message
    assert not (out / FILES[0]).exists()
    found = run_here("fidelity", dump, "--output_dir", out, *SMALL)
    assert "were measured earlier" in found.stderr
    other = tmp_path / "other"
    assert run_here("fidelity", dump, "--output_dir", other, *SMALL).returncode == 0
    assert (out / FILES[0]).read_bytes() == (other / FILES[0]).read_bytes()


def test_other_settings_are_refused(dump: Path, done: Path, tmp_path: Path) -> None:
    out = shutil.copytree(done, tmp_path / "out")
    words = ("fidelity", dump, "--output_dir", out, "--near", 16, "--max_workers", 1)
    found = run_here(*words)
    assert found.returncode == 2
    assert "measured with another near" in found.stderr
    assert run_here(*words, "--overwrite").returncode == 0
    assert (out / FILES[0]).read_bytes() != (done / FILES[0]).read_bytes()


def test_more_layers_keep_the_others(tmp_path: Path) -> None:
    dump, out = make_fidelity_dump(tmp_path / "dump", layers=2, k_heads=1), tmp_path / "out"
    words = ("fidelity", dump, "--output_dir", out, *SMALL)
    assert run_here(*words, "--layers", 1).returncode == 0
    assert {row["layer"] for row in table(out)} == {"1"}
    found = run_here(*words)
    assert "1 of 2 key heads were measured earlier" in found.stderr
    assert {row["layer"] for row in table(out)} == {"0", "1"}


def test_a_failed_key_head_is_named_and_others_go_on(tmp_path: Path) -> None:
    dump, out = make_fidelity_dump(tmp_path / "dump"), tmp_path / "out"
    (dump / "l00h00k" / "data.parquet").write_bytes(b"nothing")
    found = run_here("fidelity", dump, "--output_dir", out, *SMALL)
    assert found.returncode == 1
    assert "1 of 2 key heads failed" in found.stdout
    assert "layer 0, key head 0: " in found.stdout
    assert {row["k_head"] for row in table(out)} == {"1"}
    info = json.loads((out / FILES[1]).read_text())
    assert [(one["layer"], one["k_head"]) for one in info["failures"]] == [(0, 0)]


def test_without_attention_columns_the_dump_is_refused(tmp_path: Path) -> None:
    dump = make_fidelity_dump(tmp_path / "dump", attention=False)
    found = run_here("fidelity", dump, "--output_dir", tmp_path / "out", *SMALL)
    assert found.returncode == 2
    assert "no attention columns (lse)" in found.stderr
    assert "capture.attention" in found.stderr


def test_one_text_is_refused(tmp_path: Path) -> None:
    dump = make_fidelity_dump(tmp_path / "dump", texts=1)
    found = run_here("fidelity", dump, "--output_dir", tmp_path / "out", *SMALL)
    assert found.returncode == 2
    assert "fewer than two groups of texts" in found.stderr


def test_wrong_places_are_refused(dump: Path, tmp_path: Path) -> None:
    for words, message in (
        ((), "give the folder or URL of a dump"),
        ((dump, dump), "expected one dump"),
        ((dump, "--output_dir", "s3://bucket/out"), "is a URL"),
        ((dump, "--output_dir", dump / "l00h00q"), "is inside a dump"),
    ):
        found = run_here("fidelity", *words)
        assert found.returncode == 2
        assert message in found.stderr


def test_beside_an_analysis_of_the_same_dump(dump: Path, done: Path, tmp_path: Path) -> None:
    """A plain resume keeps the table, other settings move it away, another dump is refused."""
    out = tmp_path / "out"
    analyze = (dump, "--output_dir", out)
    assert analyze_here(*analyze).returncode == 0
    assert run_here("fidelity", dump, "--output_dir", out, *SMALL).returncode == 0
    assert (out / FILES[0]).read_bytes() == (done / FILES[0]).read_bytes()
    assert analyze_here(*analyze).returncode == 0
    assert all((out / name).exists() for name in FILES)
    other = make_fidelity_dump(tmp_path / "dump", seed=1)
    found = run_here("fidelity", other, "--output_dir", out, *SMALL)
    assert found.returncode == 2
    assert "has the tables of another dump" in found.stderr
    assert analyze_here(*analyze, "--seed", 1, "--overwrite").returncode == 0
    assert not any((out / name).exists() for name in FILES)
    assert all((out / "previous-1" / name).exists() for name in FILES)
    assert run_here("fidelity", dump, "--output_dir", out, *SMALL).returncode == 0
    assert (out / FILES[0]).read_bytes() == (done / FILES[0]).read_bytes()
