"""The first thing a command runs: from here on, an interruption ends it without a traceback.

Ctrl-C and SIGTERM end the process at once, with 130 and 143, while the command's own code is still
being imported and after it has had its say. In between, `command_line.guarded` handles them. It
loads nothing that the interpreter has not loaded, apart from `signal`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHOW_CURSOR = b"\x1b[?25h"


def quiet_signals() -> None:
    """Install the handlers; signals that are ignored, as below `nohup`, stay ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _unraisable
    atexit.register(_ignore_signals)  # the first to be registered is the last to run


def _leave(number: int, frame: object) -> None:
    """End now. Whatever was being shown on a terminal may have hidden its cursor."""
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)
    os._exit(128 + number)


def _unraisable(problem: Any) -> None:
    """End also when the interruption was raised where Python only reports it, as in a finaliser."""
    if issubclass(problem.exc_type, KeyboardInterrupt):
        _leave(signal.SIGINT, None)
    sys.__unraisablehook__(problem)


def _ignore_signals() -> None:
    """Nothing is left to interrupt: the exit code stands.

    Signals are also blocked. Python ends itself by SIGINT when an interruption once passed through
    code that was compiled from a string, as in a dataclass, although it was handled later.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
