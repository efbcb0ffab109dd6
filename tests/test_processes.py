"""The helpers that start processes of tests, stop them at gates, and find those that are left."""

import os
import signal
import subprocess
import sys

import pytest

import processes
import waiting
from processes import children, command_of, end_left, is_alive, running
from waiting import wait_for

SLEEP = ["sleep", "600"]


def test_a_process_that_a_test_left_is_ended_and_named(monkeypatch):
    """Also an orphan: the shell ends, and its child goes on."""
    before = {*running()}
    orphan = int(subprocess.check_output(["sh", "-c", "sleep 600 > /dev/null & echo $!"]))
    wait_for("its program", lambda: command_of(orphan) == "sleep 600")
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    with subprocess.Popen(SLEEP) as child:
        try:
            assert {*running()} - before == {orphan, child.pid}
            assert end_left({*before, child.pid}) == ["sleep 600"]
            monkeypatch.undo()
            wait_for("the end of the orphan", lambda: not is_alive(orphan))
            assert is_alive(child.pid)
        finally:
            child.kill()
    assert end_left(before) == []


def test_processes_below_kept_ones_are_no_leftovers(monkeypatch):
    before = {*running()}
    code = f"import subprocess; subprocess.run({SLEEP})"
    with subprocess.Popen([sys.executable, "-c", code]) as outer:
        wait_for("a process below", lambda: children(outer.pid))
        [inner] = children(outer.pid)
        try:
            wait_for("its program", lambda: command_of(inner) == "sleep 600")
            assert {*running()} - before == {outer.pid, inner}
            assert {*running({*before, outer.pid})} == set()
            monkeypatch.setattr(processes, "kept", {*processes.kept, outer.pid})
            assert {*running(before)} == set()
        finally:
            outer.kill()
            os.kill(inner, signal.SIGKILL)


def test_what_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="waited 0 s for a bus"):
        wait_for("a bus", lambda: False)


def test_planted_code_runs_in_the_named_processes_and_stops_at_its_gate(planted):
    planted.plant("marked", "gate('first')\nprint('planted')")
    words = [sys.executable, "-c", "print('program')"]
    assert subprocess.check_output(words, text=True) == "program\n"
    with subprocess.Popen([*words, "marked"], stdout=subprocess.PIPE, text=True) as process:
        try:
            planted.wait_at("first")
            assert process.poll() is None
            planted.open("first")
            assert process.communicate()[0] == "planted\nprogram\n"
        finally:
            process.kill()


def test_planted_code_with_an_error_runs_no_program(planted):
    with pytest.raises(SyntaxError):
        planted.plant("marked", "if True:\npass")
    planted.plant("marked", "1 / 0")
    words = [sys.executable, "-c", "print('program')", "marked"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (77, "")
    assert "ZeroDivisionError" in done.stderr
