"""`--debug` of every command of both programs, with a real Hub, store and dump."""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

from attention_plasticity.cli import main
from commands_here import analyze_here, run_here
from dumps import make_dump
from hub_server import CLIENT_WARNINGS, WRITER, status
from hub_server import hub as hub  # the fixture
from hubs import client_of
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_sniffer.cli import main as sniff_qk
from s3_server import error

VERBS = re.findall(r"^  ([\w-]+)  ", run_here("--help").stdout, re.M)
COMMANDS = [*([verb] for verb in VERBS if verb != "plot"), ["plot", "map"], ["plot", "all"]]
TRACEBACK = "Traceback (most recent call last):"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_verb(words):
    wrong = [*words, "--no_such_flag", "1"]
    plain, debugged = run_here(*wrong), run_here(*wrong, "--debug")
    assert (plain.returncode, debugged.returncode) == (2, 2)
    assert plain.stderr.count("\n") == 1
    assert plain.stderr.startswith("error: ")
    assert TRACEBACK in debugged.stderr
    assert debugged.stderr.endswith(plain.stderr)
    out = io.StringIO()
    with pytest.raises(SystemExit), redirect_stdout(out):
        main([*words, "--help"])
    assert "--debug print the traceback of an error" in " ".join(out.getvalue().split())


def test_sniff_qk(capsys, monkeypatch):
    assert sniff_qk(["--no_such_flag", "1"]) == 2
    plain = capsys.readouterr().err
    assert sniff_qk(["--debug", "--no_such_flag", "1"]) == 2
    assert TRACEBACK in capsys.readouterr().err
    monkeypatch.setenv("ATTENTION_PLASTICITY_DEBUG", "1")
    assert sniff_qk(["--no_such_flag", "1"]) == 2
    printed = capsys.readouterr().err
    assert TRACEBACK in printed
    assert printed.endswith(plain)


@pytest.mark.filterwarnings(CLIENT_WARNINGS)
def test_the_token_of_the_hub_is_not_shown(hub, tmp_path):
    hub.store.create_repo("me/qk")
    hub.fail("info", status(500, body=f"a server that repeats {WRITER}".encode()), times=None)
    with client_of(hub, tmp_path / "cache"):
        ended = run_here("pull", "me/qk@tiny", "--debug")
    assert "HfHubHTTPError" in ended.stderr  # the cause
    assert "in repeated" in ended.stderr
    assert WRITER not in ended.stderr


def test_keys_of_a_store_are_not_shown(s3):
    s3.fail("GET", error(400, "InvalidRequest", "you sent secret-of-the-test"))
    ended = analyze_here(s3.url("dump"), "--debug")
    assert ended.returncode != 0
    assert "botocore.errorfactory.InvalidRequest" in ended.stderr  # the cause
    assert "you sent …" in ended.stderr
    assert "secret-of-the-test" not in ended.stderr


def test_tracebacks_of_heads_are_in_run_json(tmp_path):
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=40)
    (dump / "l00h01q" / "data.parquet").write_bytes(b"PAR1 damaged")
    words = ["--dataset_local_root", dump, "--output_dir", tmp_path / "out"]
    assert analyze_here(*words, "--debug").returncode == 1
    [failure] = json.loads((tmp_path / "out" / "run.json").read_text())["failures"]
    assert TRACEBACK in failure["traceback"]
    assert "DumpError: " in failure["traceback"]


def test_a_bug_shows_no_secret_either():
    code = """
import {0}.cli, {0}.entry
def main():
    raise RuntimeError('s3://key:hidden@bucket')
{0}.cli.main = main
{0}.entry.main()"""
    for package in ("attention_plasticity", "qk_sniffer"):
        words = [sys.executable, "-c", code.format(package)]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert TRACEBACK in ended.stderr
        assert ended.stderr.endswith("RuntimeError: s3://…@bucket\n")
