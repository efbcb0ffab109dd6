"""Who raised an error. This tells bugs of this program from errors of a library."""

from __future__ import annotations

import sys
import traceback

_OURS = ("attention_plasticity", "qk_dump", "qk_sniffer", "qk_study", "qk_toolkit")
_BUGS = (AssertionError, AttributeError, LookupError, NameError, TypeError)


def is_our_bug(error: BaseException) -> bool:
    """Whether an error is a bug of this program. Such an error reaches the user as it is.

    Code of models, datasets and clients raises errors of all types. So the type alone does not
    tell.
    """
    return isinstance(error, _BUGS) and is_raised_by_us(error)


def is_raised_by_us(error: BaseException) -> bool:
    """Whether our code raised an error, itself or in a call of the standard library."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in sys.stdlib_module_names:
            return package in _OURS
    return False
