"""The command line: help, flags, exit codes, what is printed where."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from attention_plasticity.config import RunnerConfig
from commands import analyze, run, start
from dumps import make_dump

ROOT = Path(__file__).parents[2]


def test_help_explains_every_field_and_ends_with_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["analyze", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for name, field in RunnerConfig.model_fields.items():
        assert f"--{name}" in text
        assert field.description
        assert " ".join(field.description.split()[:3]) in " ".join(text.split())
    pasted = text[text.index("commands to paste") :]
    assert "attention-plasticity analyze" in pasted
    assert "Exit codes: 0 success, 1 some heads failed, 2 wrong usage or config, 130" in pasted


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_bare_command_lists_the_verbs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == (0 if words else 2)
    text = capsys.readouterr().out
    for verb in ("capture", "analyze", "report", "demo"):
        assert f"\n  {verb} " in text


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from attention_plasticity import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["analyse"], "'analyse': unknown verb; did you mean analyze?"),
        (["captur"], "'captur': unknown verb; did you mean capture?"),
        (["analyze", "--sead", "1"], "--sead: unknown flag; did you mean --seed?"),
        (["analyze", "--seed", "x"], "--seed: expected an integer of at least 0, got 'x'"),
        (["analyze", "--seed"], "--seed: expected one argument"),
        (["analyze", "dump"], "dump: does not exist. Set dataset_local_root to the folder of a "),
        (["analyze", "--seed", "1", "dump"], "'dump': unexpected argument"),
        (["analyze", "--config", "no.yaml"], "no.yaml: does not exist"),
        (["analyze", "--max-workers", "0"], "--max_workers: expected an integer of at least 1"),
        (["demo", "--outputdir", "x"], "--outputdir: unknown flag; did you mean --output_dir?"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {told}")
    assert captured.err.count("\n") == 1


def test_a_flag_beats_the_yaml_in_either_spelling(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=40)
    config = tmp_path / "run.yaml"
    config.write_text(f"analysis:\n  seed: 3\n  output_dir: {tmp_path / 'out'}\n")
    words = ("--config", config, "--dataset-local-root", dump, "--seed=4", "--max-workers=1")
    assert analyze(*words).returncode == 0
    assert '"seed": 4' in (tmp_path / "out" / "run.json").read_text()


def test_the_summary_goes_to_stdout_and_is_plain_in_a_pipe(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=200)
    done = analyze("--dataset_local_root", dump, "--output_dir", tmp_path / "out")
    assert "Attention plasticity 0." in done.stdout
    assert str(tmp_path / "out" / "head_metrics.csv") in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "heads/s" not in done.stderr


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=2, n=50)
    (dump / "l01h03q" / "data.parquet").write_text("spoilt")
    (dump / "l01h00q" / "data.parquet").unlink()
    shutil.rmtree(dump / "l00h01k")
    out = tmp_path / "out"
    layout = ("--num_layers", 3, "--num_q_heads", 4, "--num_k_heads", 2)
    words = ("--dataset_local_root", dump, "--output_dir", out, *layout)
    done = analyze(*words, "--max_tokens_per_head", 40, "--dry_run")
    assert done.returncode == 0
    text = done.stdout
    assert "8 query heads of 4 key heads" in text
    assert "Not captured layer 2: 0-3" in text
    assert "450 in the files, 360 used" in text
    assert "up to 28 of query bucket × key bucket" in text
    assert "MB per worker" in text
    assert "l01h03q/data.parquet: is not a readable Parquet file" in text
    assert "l00h01k: the key head is not in the dump" in text
    assert "l01h00q: holds no Parquet file" in text
    assert "Nothing was computed or written." in text
    assert not out.exists()


def test_a_dry_run_tells_what_is_finished_and_what_would_be_refused(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=50)
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path / "out")
    assert analyze(*words).returncode == 0
    assert "Finished     4 heads" in analyze(*words, "--dry_run").stdout
    refused = analyze(*words, "--dry_run", "--seed", 1)
    assert refused.returncode == 0
    assert "differs in seed (0 then, 1 now)" in refused.stdout


def test_the_seeds_entry_point_works(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=40)
    words = [sys.executable, str(ROOT / "analyze.py"), "--dataset_local_root", str(dump)]
    done = subprocess.run(
        [*words, "--output_dir", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "head_metrics.csv").exists()


@pytest.mark.parametrize("redirect", ["| true", "> /dev/full", "2>&-", ">&-"])
def test_a_stream_that_fails_is_no_traceback_and_loses_no_table(
    redirect: str, tmp_path: Path
) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=40)
    words = f"analyze --dataset_local_root {dump} --output_dir {tmp_path / 'out'}"
    done = subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            f"{sys.executable} -m attention_plasticity {words} {redirect}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if "full" in redirect else 0)
    assert (tmp_path / "out" / "head_metrics.csv").exists()


def test_a_stream_without_our_characters_shows_others(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run("demo", "--output_dir", tmp_path / "demo", env=environment)
    assert done.returncode == 0, done.stderr
    assert "Attention plasticity 0." in done.stdout


def test_users_files_in_the_current_folder_are_not_taken_for_libraries(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=40)
    (tmp_path / "random.py").write_text("raise RuntimeError('not yours to import')")
    script = Path(sys.executable).parent / "attention-plasticity"
    words = ["analyze", "--dataset_local_root", str(dump), "--output_dir", "out"]
    done = subprocess.run(
        [script, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_sigterm_stops_the_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=2, n=6000, d=32)
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path / "out", "--max_workers", 1)
    going = start("analyze", *words, stderr=subprocess.PIPE)
    records = tmp_path / "out" / ".heads"
    while not list(records.glob("l*.json")):
        assert going.poll() is None
        time.sleep(0.005)
    workers = Path(f"/proc/{going.pid}/task/{going.pid}/children").read_text().split()
    going.send_signal(signal.SIGTERM)
    assert b"Traceback" not in going.communicate()[1]
    assert going.returncode == 128 + signal.SIGTERM
    assert not any(Path("/proc", worker).exists() for worker in workers)
    assert analyze(*words).returncode == 0
