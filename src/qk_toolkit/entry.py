"""The frame of all commands. Ctrl-C is quiet from the first import to the end of the process."""

import signal
import sys
from collections.abc import Callable

_INTERRUPTED = 130


def run(command: Callable[[], int]) -> int:
    """The exit code of a command that imports its modules itself.

    After an interruption a second Ctrl-C ends the process at once, also while Python ends.
    """
    try:
        from qk_toolkit.debugging import print_without_secrets

        sys.excepthook = print_without_secrets
        code = command()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code
