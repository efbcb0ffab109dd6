"""Signal handlers for the time before and after `command_line.guarded`.

They are installed before the code of a command is imported. Ctrl-C and SIGTERM then end the process
at once, with exit codes 130 and 143 and without a traceback. This module imports only `signal` and
modules that the interpreter has loaded already.
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


def exit_on_signals() -> None:
    """Install the handlers. Ignored signals, as under `nohup`, stay ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)
    sys.unraisablehook = _exit_or_report
    atexit.register(_ignore_signals)  # registered first, so it runs last


def _exit(number: int, frame: object) -> None:
    """End the process. A progress bar may have hidden the cursor, so it is shown again."""
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)
    os._exit(128 + number)


def _exit_or_report(problem: Any) -> None:
    """End the process after Ctrl-C where Python cannot raise, for example in a finaliser."""
    if issubclass(problem.exc_type, KeyboardInterrupt):
        _exit(signal.SIGINT, None)
    sys.__unraisablehook__(problem)


def _ignore_signals() -> None:
    """Ignore and block signals at exit, so that the exit code does not change.

    Blocking is needed as well. Python kills itself with SIGINT at exit when an earlier
    KeyboardInterrupt passed through code compiled from a string, such as a dataclass method.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
