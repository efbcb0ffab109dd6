"""The bar, on a real terminal and off one."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from commands import command
from dumps import make_dump


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_shows_on_a_terminal_alone(terminal: bool, tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=2, n=500)
    words = command("analyze", "--dataset_local_root", dump, "--output_dir", tmp_path / "out")
    ours, theirs = pty.openpty() if terminal else os.pipe()
    run = subprocess.Popen(
        words,
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    told = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            told += chunk
    except OSError:
        pass  # a terminal whose other side is gone
    os.close(ours)
    assert run.wait() == 0
    assert (b"8/8" in told) == terminal
    assert (b"heads/s" in told) == terminal
    assert (b"left" in told) == terminal
