"""Files that are no regular files, links in a circle, and numbers that no file has: the commands.

Nothing hangs, every refusal is one line, and the heads that are sound come out.
"""

import json
import os

import pytest

from attention_plasticity.api import open_run
from attention_plasticity.cli import main
from dumps import make_dump
from helpers.run_tables import write_run
from lasting_workers import workers as workers  # a fixture of all tests here
from odd_files import NOT_REGULAR, replace_by
from qk_toolkit.errors import ConfigError

PIPE = "is not a regular file"


@pytest.fixture
def dump(tmp_path):
    """One layer, 2 query heads, 1 key head."""
    return make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=60)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def analyze(dump, out, *flags):
    words = ["--dataset_local_root", str(dump), "--output_dir", str(out), "--max_workers", "1"]
    return main(["analyze", *words, *flags])


def error_of(capsys):
    """The error on stderr, one line; what the run noted before is left out."""
    *_, told = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    return told


def test_heads_whose_files_are_none_fail_alone(tmp_path, out):
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=6, k_heads=1, n=60)
    for head, make in enumerate(NOT_REGULAR.values()):
        replace_by(make, dump / f"l00h0{head}q" / "data.parquet")
    assert analyze(dump, out, "--dry_run") == 0
    assert analyze(dump, out) == 1
    info = json.loads((out / "run.json").read_text())
    assert info["heads"] == {"analysed": 1, "failed": 5, "not_analysed": 0, "not_captured": 0}
    for failure in info["failures"]:
        assert "data.parquet: cannot be read (is not a regular file)" in failure["reason"]


def test_pipes_among_the_records_do_not_hang(dump, out, capsys):
    assert analyze(dump, out) == 0
    [record] = out.glob(".heads/*/l00k00-*.record")
    whole = record.read_bytes()
    replace_by(os.mkfifo, record)
    for flags in ([], ["--dry_run"]):
        capsys.readouterr()
        assert analyze(dump, out, *flags) == 1
        assert f"{record.name}: cannot be read: {PIPE}" in error_of(capsys)
    record.unlink()
    record.write_bytes(whole)
    replace_by(os.mkfifo, record.with_name("settings.json"))
    assert analyze(dump, out) == 0


def test_a_run_json_that_is_a_pipe_is_refused_by_those_who_open_the_run(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    replace_by(os.mkfifo, run / "run.json")
    figure = ["--output", str(tmp_path / "a.png")]
    for words in (["report"], ["plot", "map", *figure]):
        assert main([*words, str(run)]) == 2
        assert PIPE in error_of(capsys)
    with pytest.raises(ConfigError, match=PIPE):
        open_run(run)


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        (".heads", "link", ".heads: is a symbolic link, not a folder"),
        (".heads", "file", "cannot be written: "),
        (".heads/tables.lock", "link", "cannot be locked: "),
    ],
)
def test_records_and_locks_of_another_kind_are_refused(
    name, kind, reason, dump, out, tmp_path, capsys
):
    (out / name).parent.mkdir(parents=True)
    (tmp_path / "mine" / "folder").mkdir(parents=True)
    (tmp_path / "mine" / "l00k00.record").write_text("precious")
    if kind == "file":
        (out / name).touch()
    else:
        (out / name).symlink_to(tmp_path / "mine")
    assert analyze(dump, out) == 2
    told = error_of(capsys)
    assert reason in told
    assert told.endswith("hoose another output_dir."), told
    assert (tmp_path / "mine" / "l00k00.record").read_text() == "precious"
    assert (tmp_path / "mine" / "folder").is_dir()


def test_layers_of_the_folders_and_heads_of_the_config_are_bounded_together(dump, out, capsys):
    (dump / "l999h00q").mkdir()
    assert analyze(dump, out, "--num_q_heads", "4096", "--num_k_heads", "1") == 2
    assert "1,000 layers of 4,096 query heads are more than" in error_of(capsys)
    (dump / "l999h00q").rename(dump / "l4000000000h00q")
    assert analyze(dump, out) == 2
    assert "l4000000000h00q: is the folder of layer 4000000000" in error_of(capsys)


def test_a_path_that_no_file_can_have_is_refused_by_every_verb(dump, tmp_path, capsys):
    run, named = str(write_run(tmp_path / "run")), ["--repo", "a/b"]
    for bad in ("a\0b", "a" * 300, "/".join(["d" * 200] * 25)):
        for words in (
            ["analyze", "--dataset_local_root", bad],
            ["analyze", "--dataset_local_root", str(dump), "--model_dir", bad],
            ["analyze", "--config", bad],
            ["report", bad],
            ["report", run, "--output", bad],
            ["study", run, bad],
            ["study", run, "--output_dir", bad],
            ["plot", "map", bad, "--output", str(tmp_path / "a.png")],
            ["plot", "plasticity", "--config", bad],
            ["plot", "plasticity", run, "--output", bad],
            ["push", bad, *named],
            ["pull", "a/b", "--cache_dir", bad],
            ["demo", "--output_dir", bad],
            ["capture", "--config", bad],
        ):
            assert main(words) == 2, words
            told = error_of(capsys)
            assert "no file can have this name" in told or "holds the character NUL" in told, words
