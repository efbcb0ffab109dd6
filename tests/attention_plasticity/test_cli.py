"""The command line: help, flags, exit codes, what is printed where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from attention_plasticity.config import RunnerConfig
from commands import analyze, run
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
    assert "Exit codes: 0 all well, 1 some heads failed, 2 usage or config, 130" in pasted


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_bare_command_lists_the_verbs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == (0 if words else 2)
    text = capsys.readouterr().out
    assert "analyze" in text
    assert "demo" in text


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from attention_plasticity import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["analyse"], "'analyse': unknown verb; did you mean analyze?"),
        (["analyze", "--sead", "1"], "--sead: unknown flag; did you mean seed?"),
        (["analyze", "--seed", "x"], "--seed: expected an integer of at least 0, got 'x'"),
        (["analyze", "--seed"], "--seed: expected one argument"),
        (["analyze", "dump"], "'dump': unexpected argument"),
        (["analyze", "--config", "no.yaml"], "no.yaml: does not exist"),
        (["analyze", "--max-workers", "0"], "--max_workers: expected an integer of at least 1"),
        (["demo", "--outputdir", "x"], "--outputdir: unknown flag; did you mean output_dir?"),
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
    out = tmp_path / "out"
    words = ("--dataset_local_root", dump, "--output_dir", out, "--num_layers", 3)
    done = analyze(*words, "--max_tokens_per_head", 40, "--dry_run")
    assert done.returncode == 0
    text = done.stdout
    assert "8 query heads in 4 groups" in text
    assert "4 query heads are not in the dump and were left out: layer 2: 0-3" in text
    assert "550 in the files, 440 used" in text
    assert "MB per worker" in text
    assert "l01h03q/data.parquet: is not a readable Parquet file" in text
    assert "Nothing was computed or written." in text
    assert not out.exists()


def test_the_seeds_entry_point_works(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=40)
    words = [sys.executable, str(ROOT / "analyze.py"), "--dataset_local_root", str(dump)]
    done = subprocess.run(
        [*words, "--output_dir", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "head_metrics.csv").exists()


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=40)
    words = f"analyze --dataset_local_root {dump} --output_dir {tmp_path / 'out'}"
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m attention_plasticity {words} | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_the_demo_runs_and_agrees_with_its_known_answer(tmp_path: Path) -> None:
    done = run("demo", "--output_dir", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    assert "Against the known answer" in done.stdout
    assert (tmp_path / "demo" / "results" / "head_metrics.csv").exists()
