"""The few errors a user can cause. Each message names the file, the value and the way out."""

from __future__ import annotations

import reprlib

_LONGEST = 3_000  # characters of a message; a file or a flag may hold millions
_LONGEST_END = 1_000  # of these, kept from the end: the way out stands there


class ToolkitError(Exception):
    """Base of every error meant for a person; the command line prints it without a traceback.

    The message is one line of bounded length. Characters that a terminal does not print, as in
    odd file names, are shown as escapes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class ConfigError(ToolkitError):
    """The request cannot be carried out: a setting, a path, a contradiction with the dump."""


class DumpError(ToolkitError):
    """A file of the dump cannot be used. It fails its head, never the others."""


class HeadError(ToolkitError):
    """A head whose files are fine but which cannot be analysed, such as one with two queries."""


class OutputError(ToolkitError):
    """A result could not be written."""


class HubError(ToolkitError):
    """The Hub refused, failed or cannot be reached. What was done before is intact."""


def in_short(value: object) -> str:
    """A value of any kind for a message, as YAML or Python writes it, in at most 200 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = _SHORT.repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


class _Short(reprlib.Repr):
    """Shows a few members of a few levels, so that no value takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxlong = self.maxother = 120
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 6

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 1000:  # Python refuses to write very long ones
            return f"an integer of {x.bit_length():,} bits"
        return super().repr_int(x, level)


_SHORT = _Short()


def _one_line(message: str) -> str:
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST - _LONGEST_END]} … {message[-_LONGEST_END:]}"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in message
    )
