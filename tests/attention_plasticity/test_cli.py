"""The command line: help, flags, exit codes, what is printed where."""

import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from attention_plasticity.config import RunnerConfig
from commands_here import analyze_here, run_here
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.side_files import Example, write_examples

ROOT = Path(__file__).parents[2]


def test_help_explains_every_field_and_ends_with_commands(capsys):
    with pytest.raises(SystemExit) as left:
        main(["analyze", "--help_all"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for name, field in RunnerConfig.model_fields.items():
        assert f"--{name}" in text
        assert field.description
        assert " ".join(field.description.split()[:3]) in " ".join(text.split())
    pasted = " ".join(text[text.index("commands to paste") :].split())
    assert "attention-plasticity analyze" in pasted
    assert "Exit codes: 0 success, 1 some heads failed, 2 wrong usage or config, 130" in pasted


VERBS = re.findall(r"^  ([\w-]+)  ", run_here("--help").stdout, re.M)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_is_one_screen_with_three_commands(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert sum(max(1, math.ceil(len(line) / 80)) for line in text.splitlines()) <= 60
    story, pasted = text.split("commands to paste:\n")
    assert len(re.findall(r"^  (?:attention-plasticity|sniff-qk) ", pasted, re.M)) == 3
    assert re.search(r"Exit\s+codes:\s+0", pasted)
    if verb == "analyze":
        assert re.search(r"^  DUMP .*\n  RUN ", story, re.M)
    if verb == "study":
        assert "one file is one text" in story


@pytest.mark.parametrize("flag", ["--help_all", "--help-all"])
def test_all_flags_are_in_a_help_of_their_own(flag, capsys):
    with suppress(SystemExit):
        main(["analyze", flag])
    assert "--distant_from" in capsys.readouterr().out


def test_the_version_is_printed(capsys):
    from attention_plasticity import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["analyse"], "'analyse': unknown command; did you mean analyze?"),
        (["analyze", "--sead", "1"], "--sead: unknown flag; did you mean --seed?"),
        (["analyze", "--seed", "x"], "--seed: expected an integer of at least 0, got 'x'"),
        (["analyze", "dump"], "dump: does not exist. Give the folder of a dump, "),
        (["analyze", "s3://AKIA:abc/SECRET@bucket"], "s3://…@bucket: a URL with a password"),
        (
            ["analyze"],
            "dataset_local_root: no dump is given. Type attention-plasticity analyze DUMP",
        ),
        (["analyze", "--seed", "1"], "dataset_local_root: no dump is given"),
        (
            ["analyze", "a", "b", "c"],
            "analyze takes DUMP RUN, got 3 places; for several dumps, use ",
        ),
        (
            ["analyze", "a", "b", "--output_dir", "c"],
            "--output_dir: RUN is given twice; leave one out",
        ),
        (["analyze", "--max-workers", "0"], "--max_workers: expected an integer of at least 1"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(words, told, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {told}")
    assert captured.err.count("\n") == 1


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    dump = make_dump(tmp_path_factory.mktemp("dump"), layers=1, q_heads=2, k_heads=1, n=1000)
    write_examples(dump, [Example(number, f"text {number}", 1024, "") for number in range(4)])
    return add_rotary(dump)


@pytest.fixture(scope="module")
def finished(dump, tmp_path_factory):
    """The folder of a run. A flag beats the YAML, in either spelling."""
    folder = tmp_path_factory.mktemp("finished")
    config, out = folder / "run.yaml", folder / "out"
    config.write_text(f"analysis:\n  seed: 3\n  output_dir: {out}\n")
    words = ("--config", config, "--dataset-local-root", dump, "--seed=4", "--max-workers=1")
    assert run_here("analyze", *words).returncode == 0
    return out


@pytest.fixture
def copy(finished, tmp_path):
    """A finished run without its tables and one record: one key head is computed."""
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    for path in (*out.glob("*.csv"), next(out.glob(".heads/*/l*.record"))):
        path.unlink()
    return out


def test_a_flag_beats_the_yaml_in_either_spelling(finished):
    assert '"seed": 4' in (finished / "run.json").read_text()


def test_a_dry_run_counts_and_writes_nothing(tmp_path):
    dump = make_dump(tmp_path / "dump", layers=2, n=50)
    (dump / "l01h03q" / "data.parquet").write_text("spoilt")
    (dump / "l01h00q" / "data.parquet").unlink()
    shutil.rmtree(dump / "l00h01k")
    out = tmp_path / "out"
    layout = ("--num_layers", 3, "--num_q_heads", 4, "--num_k_heads", 2)
    words = ("--dataset_local_root", dump, "--output_dir", out, *layout)
    done = analyze_here(*words, "--max_tokens_per_head", 40, "--dry_run")
    assert done.returncode == 0
    text = done.stdout
    assert "8 query heads of 4 key heads" in text
    assert "Not captured layer 2: 0-3" in text
    assert "450 in the files, 360 used" in text
    assert "l01h03q/data.parquet: is not a readable Parquet file" in text
    assert "l00h01k: the key head is not in the dump" in text
    assert "l01h00q: holds no Parquet file" in text
    assert "Nothing was computed or written." in text
    assert not out.exists()


def test_a_dry_run_tells_what_is_finished_with_these_settings(dump, finished):
    words = ("--dataset_local_root", dump, "--output_dir", finished, "--dry_run")
    told = analyze_here(*words, "--seed", 4).stdout
    assert "Finished     2 heads, with these settings and files" in told
    assert "Finished     0 heads" in analyze_here(*words, "--seed", 1).stdout


def test_the_seeds_entry_point_works(dump, copy, monkeypatch):
    words = ["analyze.py", "--dataset_local_root", str(dump), "--output_dir", str(copy)]
    monkeypatch.setattr(sys, "argv", [*words, "--seed", "4", "--max_workers", "1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "analyze.py"), run_name="__main__")
    assert ended.value.code == 0
    assert (copy / "head_metrics.csv").exists()


@pytest.mark.parametrize("redirect", ["> /dev/full", ">&-", "2>&-"])
def test_a_stream_that_fails_is_no_traceback_and_loses_no_table(redirect, dump, copy, tmp_path):
    """A stream without our characters shows others. Files of the user are no libraries."""
    (tmp_path / "random.py").write_text("raise RuntimeError('not yours to import')")
    script = Path(sys.executable).parent / "attention-plasticity"
    given = f"analyze --dataset_local_root {dump} --output_dir {copy} --seed 4 --max_workers 1"
    code = f"{script} {given} {redirect}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = ["bash", "-o", "pipefail", "-c", code]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "heads/s" not in done.stderr
    assert done.returncode == (1 if "full" in redirect else 0)
    assert (copy / "head_metrics.csv").exists()
    if redirect == "2>&-":
        assert re.search(r"RoPE-aligned plasticity 0\.\d+ \? 0\.", done.stdout)  # ±


def test_help_that_cannot_be_written_is_an_error(monkeypatch, capsys):
    verbs = re.findall(r"^  (\w+)  ", run_here("--help").stdout, re.M)
    assert {"capture", "analyze", "report"} <= set(verbs)
    told = "error: standard output: cannot be written: No space left on device\n"
    for words in (["--help"], ["--version"], *([verb, "--help"] for verb in verbs)):
        with monkeypatch.context() as change, Path("/dev/full").open("w") as full:
            change.setattr(sys, "stdout", full)
            assert main(words) == 1, words
        assert capsys.readouterr().err == told, words
