"""What every command shares: its parser, its settings, and how it ends.

Importing this loads no library, so that each `--help` stays light.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from qk_dump.errors import ConfigError, ToolkitError

if TYPE_CHECKING:
    from qk_dump.settings import Settings

INTERRUPTED = 130


class FlagParser(argparse.ArgumentParser):
    """A parser whose complaints are one line and end like every other usage error."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise ConfigError(message.removeprefix("argument "))


def command_parser(program: str, story: str, examples: str) -> FlagParser:
    """A parser whose help tells the story first and ends with commands to paste."""
    return FlagParser(
        prog=program,
        usage=f"{program} [--FIELD VALUE …]",
        description=story,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def command_settings(
    parser: FlagParser, model: type[Settings], words: Sequence[str], section: str | None = None
) -> Settings:
    """The settings that a command's words ask for: `--config FILE`, and a flag for every field."""
    from qk_dump.files import user_path
    from qk_dump.flags import add_flags, parse_flags
    from qk_dump.settings import settings_from

    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the fields below")
    add_flags(parser, model)
    flags = parse_flags(parser, words)
    path = flags.pop("config", None)
    return settings_from(
        model,
        yaml_path=user_path(path) if path is not None else None,
        section=section,
        flags=flags,
    )


def guarded(verb: Callable[[], int], interrupted: str) -> int:
    """Run a verb; a person's mistake is one line, an interruption is 130, neither a traceback.

    `interrupted` says what an interruption leaves behind and how to go on.
    """
    _make_streams_safe()
    try:
        with reader_may_leave(), _polite_termination():
            return verb()
        return 0  # the reader left before the end
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"interrupted; {interrupted}", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a setting or an argument names such a file
            print(f"error: {_in_short(error.filename)}: the name is too long", file=sys.stderr)
            return ConfigError.exit_code
        print(f"error: {error}", file=sys.stderr)
        return 1


def _in_short(name: object) -> str:
    text = str(name)
    return text if len(text) <= 200 else f"{text[:100]}…{text[-60:]}"


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let the reader of our output go away (`| head`) without a word or a changed exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _make_streams_safe() -> None:
    """A closed stream swallows output; one that lacks a character shows '?' instead."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _polite_termination() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, workers stopped and cursor shown, with the signal's own code."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
