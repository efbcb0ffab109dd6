"""The frame of all commands. Ctrl-C is quiet from the first import to the end of the process."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TextIO

_INTERRUPTED = 130


def run(module: str, function: str, *arguments: str) -> int:
    """The exit code of a function of a module, which is imported here.

    Output to a stream that the shell has closed is dropped. After an interruption a second Ctrl-C
    ends the process at once, also while Python ends.
    """
    try:
        sys.stdout = sys.stdout or _nowhere()
        sys.stderr = sys.stderr or _nowhere()
        from qk_toolkit.debugging import print_without_secrets

        sys.excepthook = print_without_secrets
        code = int(getattr(import_module(module), function)(*arguments))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _nowhere() -> TextIO:
    """In place of None, which Python has for a stream that is closed from the start, as `2>&-`."""
    return Path(os.devnull).open("w", encoding="utf-8", errors="replace")
