"""`--debug`: the traceback of an error that otherwise prints as one line.

The state is an environment variable, so that worker processes have it too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qk_toolkit.errors import without_tokens

VARIABLE = "ATTENTION_PLASTICITY_DEBUG"
FLAG = "--debug"
HELP = "print the traceback of an error"
_OFF = ("", "0", "false")


def is_debugging() -> bool:
    """Whether tracebacks are printed."""
    return os.environ.get(VARIABLE, "").lower() not in _OFF


@contextmanager
def debug_flag(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The arguments of a command without `--debug`. During the block the flag has its effect."""
    rest = [argument for argument in arguments if argument != FLAG]
    before = os.environ.get(VARIABLE)
    if len(rest) < len(arguments):
        os.environ[VARIABLE] = "1"
    try:
        yield rest
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error to standard error if tracebacks are wanted."""
    if is_debugging():
        print(traceback_text(error), end="", file=sys.stderr)


def traceback_if_wanted(error: BaseException) -> str:
    """The traceback of an error if tracebacks are wanted, else an empty text."""
    return traceback_text(error) if is_debugging() else ""


def traceback_text(error: BaseException) -> str:
    """The traceback of an error and of its causes, without passwords and tokens."""
    import traceback

    return without_tokens("".join(traceback.format_exception(error)))


def print_without_secrets(
    kind: type[BaseException], error: BaseException, _traceback: object
) -> None:
    """Print an error that ends the process. For `sys.excepthook`."""
    print(traceback_text(error), end="", file=sys.stderr)
