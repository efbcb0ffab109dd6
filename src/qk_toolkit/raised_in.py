"""Where an error was raised. This tells bugs of this program from errors of a library."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection

OURS = ("attention_plasticity", "qk_dump", "qk_sniffer", "qk_study", "qk_toolkit")
_BUGS = (AssertionError, AttributeError, LookupError, NameError, TypeError)


def modules_passed(error: BaseException) -> list[str]:
    """Names of the modules that an error passed. The last one raised it."""
    frames = traceback.walk_tb(error.__traceback__)
    return [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]


def is_in(module: str, packages: Collection[str]) -> bool:
    """Whether a module belongs to one of the packages."""
    return module.partition(".")[0] in packages


def is_our_bug(error: BaseException) -> bool:
    """Whether an error is a bug of this program. Such an error reaches the user as it is.

    Code of models, datasets and clients raises errors of all types. So the type alone does not
    tell.
    """
    return isinstance(error, _BUGS) and is_raised_by_us(error)


def is_raised_by_us(error: BaseException) -> bool:
    """Whether our code raised an error, itself or in a call of the standard library."""
    for module in reversed(modules_passed(error)):
        if not is_in(module, sys.stdlib_module_names):
            return is_in(module, OURS)
    return False
