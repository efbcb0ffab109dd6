"""The processes that a test has started: none may be left at its end.

The test process adopts orphans, so the workers of a killed command are found too.
"""

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

from waiting import wait_for

_PR_SET_CHILD_SUBREAPER = 36  # of Linux
_OF_PYTHON = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""Processes that Python keeps for later tests and ends with this one."""

kept = set()
"""Processes that a helper keeps for later tests and ends itself."""


def adopt_orphans():
    """Become the parent of processes of the tests whose own parent has ended."""
    if Path("/proc/self/task").exists():
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def is_alive(pid):
    """Whether a process runs. One that has ended, and was not waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    """The processes that a process has started or adopted, and that run."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += [int(child) for child in task.read_text().split()]
    return [child for child in found if is_alive(child)]


def running(before=(), pid=None):
    """The processes below this one that run, without those `before` and those below them."""
    for child in children(pid or os.getpid()):
        if child in before or child in kept:
            continue
        if not any(name in command_of(child) for name in _OF_PYTHON):
            yield child
        yield from running(before, child)


def command_of(pid):
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def end_left(before):
    """End the processes that run and were not there before; their command lines.

    Those that end by themselves are waited for.
    """
    try:
        wait_for("the end of all processes of a test", lambda: not [*running(before)])
    except AssertionError:
        left = [*running(before)]
        commands = [command_of(pid) for pid in left]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return commands
    return []
