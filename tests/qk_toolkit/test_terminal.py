"""Progress: a bar on a real terminal, lines in a pipe."""

import io
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from types import SimpleNamespace

import pytest

from qk_toolkit.terminal import TaskState, TerminalWatcher
from waiting import wait_for


@pytest.fixture
def clock(monkeypatch):
    """Times in place of the clock's; the last one is now. A busy machine changes no line."""
    times = [0.0]
    monkeypatch.setattr("qk_toolkit.terminal.time", SimpleNamespace(monotonic=lambda: times[-1]))
    return times


class Pipe(io.StringIO):
    """Standard error without a terminal."""

    def wait_for(self, text):
        """Wait until this line was written."""
        wait_for(f"the line {text!r}", lambda: text in self.getvalue().splitlines())


@pytest.mark.usefixtures("clock")
def test_lines_in_a_pipe_have_the_state_of_the_task():
    with redirect_stderr(Pipe()) as pipe, TerminalWatcher(seconds=0.01) as watcher:
        watcher.busy("loading the model")
        pipe.wait_for("loading the model: 0 s so far")
        watcher.start("texts", 1_000_000, 999_990, rate="tokens")
        pipe.wait_for("texts: 999,990 of 1,000,000 done, 0 s so far")  # no speed yet
        watcher.advance(9, tokens=1200, rows=0)
        pipe.wait_for("texts: 999,999 of 1,000,000 done, 1,200 tokens, 0 s left")
        watcher.note("a note")
        watcher.advance(5, tokens=34, rows=7)  # more than all, as after the death of a process
        pipe.wait_for("texts: 1,000,000 of 1,000,000 done, 1,234 tokens, 7 rows, 0 s left")
        watcher.start("texts", None)
        watcher.advance(3)
        pipe.wait_for("texts: 3 done")
        watcher.show("fetching", 1_500, 4_000_000, in_bytes=True)
        pipe.wait_for("fetching: 1.5 kB of 4.0 MB done, 0 s so far")
        watcher.show("fetching", 4_000_000, 4_000_000, in_bytes=True)
        written = pipe.getvalue()  # the task has ended, so there is no thread
        assert "a note" in written.splitlines()
        watcher.start("heads", 8, 8)
    assert pipe.getvalue() == written


def test_the_time_left_never_grows_during_a_step(clock):
    state = TaskState("texts", 8)
    clock.append(50.0)
    assert state.line() == "texts: 0 of 8 done, 50 s so far"
    clock.append(100.0)
    state.advance(2, {})  # 50 s each
    left = []
    for now in (100.0, 120.0, 140.0, 150.0, 500.0):
        clock.append(now)
        left.append(state.line().removeprefix("texts: 2 of 8 done, "))
    assert left == ["5 min left", "5 min left", "4 min left", "4 min left", "4 min left"]
    state.set(8, 8)
    assert state.line() == "texts: 8 of 8 done, 0 s left"


@pytest.mark.usefixtures("clock")
def test_ranks_above_0_print_only_what_they_do_alone():
    with redirect_stderr(Pipe()) as pipe, TerminalWatcher(rank=3, seconds=0.01) as watcher:
        watcher.note("a note")
        watcher.busy("loading the model")
        watcher.start("texts", 40)
        watcher.advance()
        watcher.show("writing heads", 2, 9)
        pipe.wait_for("rank 3: writing heads: 2 of 9 done, 0 s so far")
    assert {*pipe.getvalue().splitlines()} == {"rank 3: writing heads: 2 of 9 done, 0 s so far"}


SHOWN = """
from qk_toolkit.terminal import TerminalWatcher
with TerminalWatcher() as watcher:
    watcher.start("heads", 8, rate="heads")
    watcher.advance(8)
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_shows_on_a_terminal_alone(terminal):
    ours, theirs = pty.openpty() if terminal else os.pipe()
    run = subprocess.Popen(
        [sys.executable, "-c", SHOWN],
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


def test_threads_may_show_their_copies_side_by_side():
    def copies(number):
        for step in range(100):
            watcher.show("copying", (number + step) % 3, 2)

    with redirect_stderr(Pipe()), TerminalWatcher() as watcher, ThreadPoolExecutor(8) as pool:
        list(pool.map(copies, range(8)))  # raises what a thread raised
