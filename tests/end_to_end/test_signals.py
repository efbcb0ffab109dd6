"""Ctrl-C and SIGTERM at any moment, once or twice: the signal's exit code, and no traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dumps import make_dump
from helpers.run_tables import write_run
from waiting import PATIENCE, wait_for

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A dump that takes a while, and a run."""
    folder = tmp_path_factory.mktemp("signals")
    make_dump(folder / "dump", layers=3, n=4000, d=32)
    write_run(folder / "run")
    return folder


MODULE = [sys.executable, "-m", "attention_plasticity"]
COMMANDS = {
    "analyze": [*MODULE, "analyze", "--dataset_local_root", "dump"],
    "console script": [BIN / "attention-plasticity", "analyze", "--dataset_local_root", "dump"],
    "sniff-qk": [BIN / "sniff-qk", "--model.name", "nowhere", "--dataset.path", "x.txt"],
}


def start(command, place, out):
    words = [str(word) for word in COMMANDS[command]]
    if "dump" in words:
        words += ["--output_dir", str(out), "--max_workers", "2"]
    return subprocess.Popen(
        words,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hub")},
    )


ENDED_AT_ONCE = (130, -signal.SIGINT)  # a shell shows 130 for both
AT_IMPORT = """\
class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            gate("import")
sys.meta_path.insert(0, Gate())
"""


def ended(process, *codes):
    """What it said on standard error; the exit code must be one of those."""
    try:
        told = process.communicate(timeout=PATIENCE)[1].decode()
    finally:
        process.kill()
    assert process.returncode in codes, (process.returncode, told)
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    return told


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("sniff-qk", "qk_toolkit.debugging"),  # the first one
        ("console script", "attention_plasticity.cli"),
    ],
)
def test_an_interruption_while_modules_are_imported_is_quiet(
    command, module, place, tmp_path, planted
):
    planted.plant(Path(COMMANDS[command][0]).name, AT_IMPORT.format(module))
    process = start(command, place, tmp_path / "out")
    try:
        planted.wait_at("import")
        process.send_signal(signal.SIGINT)
    except BaseException:
        process.kill()
        raise
    finally:
        told = ended(process, 130)
    assert told == ""


def test_a_second_signal_right_after_the_message(place, tmp_path, planted):
    out = tmp_path / "out"
    planted.before_heads("if group.layer: gate('second layer')")
    process = start("analyze", place, out)
    try:
        planted.wait_at("second layer")
        wait_for("a record", lambda: list(out.glob(".heads/*/l*.record")))
        process.send_signal(signal.SIGINT)
        line = b""
        while b"interrupted" not in line:
            line = process.stderr.readline()
            assert line
        expected = (
            b"interrupted; finished heads, if any, are kept; run the same command again to continue"
        )
        assert expected in line
        process.send_signal(signal.SIGINT)
        ended(process, *ENDED_AT_ONCE)
    finally:
        process.kill()
        planted.open("second layer")


def test_a_second_signal_while_python_ends_is_quiet(place, tmp_path, planted):
    module = "attention_plasticity.run.runner"
    planted.plant(
        "analyze", f"{AT_IMPORT.format(module)}import atexit; atexit.register(gate, 'end')"
    )
    process = start("analyze", place, tmp_path / "out")
    try:
        for name in ("import", "end"):
            planted.wait_at(name)
            process.send_signal(signal.SIGINT)
        assert "interrupted; " in ended(process, *ENDED_AT_ONCE)
    finally:
        process.kill()


def test_a_command_started_with_ctrl_c_ignored_ignores_it(place, tmp_path):
    process = subprocess.Popen(
        [*MODULE, "report", "run", "--output", str(tmp_path / "page.html")],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as nohup starts it
    )
    try:
        for _ in range(30):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
    finally:
        ended(process, 0)
    assert (tmp_path / "page.html").exists()
