"""Ctrl-C and SIGTERM at any moment, once or twice: the signal's exit code, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dumps import make_dump
from run_tables import write_run

BIN = Path(sys.executable).parent
CAUGHT = 1 << (signal.SIGTERM - 1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def start(command: str, place: Path, out: Path, **options: object) -> subprocess.Popen[bytes]:
    """Start a command and wait until its first line has run: SIGTERM is then handled."""
    words = [str(word).format(out=out) for word in COMMANDS[command]]
    if "dump" in words:
        words += ["--output_dir", str(out)]
    process = subprocess.Popen(
        words,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hub")},
        **options,  # type: ignore[call-overload]
    )
    until = time.monotonic() + 60
    while process.poll() is None and not handles_sigterm(process.pid):
        assert time.monotonic() < until
        time.sleep(0.0005)
    return process


def handles_sigterm(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "0 0")
    return bool(int(caught.split()[1], 16) & CAUGHT)


def ended(process: subprocess.Popen[bytes], *codes: int) -> str:
    """What it said on standard error; the exit code must be one of those."""
    told = process.communicate(timeout=120)[1].decode()
    assert process.returncode in codes, (process.returncode, told)
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    return told


@pytest.mark.parametrize(
    ("command", "delay"),
    [("console script", 0.15), ("sniff-qk", 0.0)],
)
def test_an_early_interruption_is_quiet(
    command: str, delay: float, place: Path, tmp_path: Path
) -> None:
    process = start(command, place, tmp_path)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    ended(process, *([130] if delay == 0 else [130, 0, 1, 2]))  # 0, 1, 2: it was at its end


def test_a_second_signal_right_after_the_message(place: Path, tmp_path: Path) -> None:
    process = start("analyze", place, tmp_path)
    while not list(tmp_path.glob(".heads/*/l*h*.json.gz")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    line = b""
    while b"interrupted" not in line:
        line = process.stderr.readline()
        assert line
    assert b"interrupted; finished heads are kept; run the same command again to continue" in line
    process.send_signal(signal.SIGINT)
    ended(process, 130)


def test_a_command_started_with_ctrl_c_ignored_ignores_it(place: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*MODULE, "report", "run", "--output", str(tmp_path / "page.html")],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as nohup starts it
    )
    for _ in range(30):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    ended(process, 0)
    assert (tmp_path / "page.html").exists()
