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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from qk_toolkit.errors import ConfigError, ToolkitError

if TYPE_CHECKING:
    from qk_toolkit.settings import Settings

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
    parser: FlagParser,
    model: type[Settings],
    words: Sequence[str],
    section: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Settings:
    """The settings that a command's words ask for: `--config FILE`, and a flag for every field.

    `note` hears of settings that are accepted and have no effect.
    """
    from qk_toolkit.files import user_path
    from qk_toolkit.flags import add_flags, parse_flags
    from qk_toolkit.settings import settings_from

    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the fields below")
    add_flags(parser, model)
    flags = parse_flags(parser, words)
    path = flags.pop("config", None)
    return settings_from(
        model,
        yaml_path=user_path(path) if path is not None else None,
        section=section,
        flags=flags,
        note=note,
    )


def guarded(verb: Callable[[], int], interrupted: str) -> int:
    """Run a verb; a person's mistake is one line, an interruption is 130, neither a traceback.

    `interrupted` says what an interruption leaves behind and how to go on.
    """
    signals = _Signals()
    with safe_streams():
        try:
            with signals.raised_once(), reader_may_leave():
                return verb()
            return 0  # the reader left before the end
        except SystemExit:
            raise
        except BaseException as error:
            if signals.received or isinstance(error, KeyboardInterrupt):
                return _stopped(signals.received, interrupted)
            if not isinstance(error, (ToolkitError, OSError)):
                raise
            return _told(error)


def _stopped(number: int | None, interrupted: str) -> int:
    """Say how to go on. Whatever a library made of the interruption is not worth a line."""
    if number == signal.SIGTERM:
        return 128 + number
    print(f"interrupted; {interrupted}", file=sys.stderr)
    return INTERRUPTED


def _told(error: ToolkitError | OSError) -> int:
    if isinstance(error, ToolkitError):
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    if error.errno == errno.ENAMETOOLONG:  # a setting or an argument names such a file
        print(f"error: {_in_short(error.filename)}: the name is too long", file=sys.stderr)
        return 2
    print(f"error: {error}", file=sys.stderr)
    return 1


def _in_short(name: object) -> str:
    text = str(name)
    return text if len(text) <= 200 else f"{text[:100]}…{text[-60:]}"


class _Signals:
    """Ctrl-C and SIGTERM, raised once as exceptions; a second one does what it did before.

    What it did before is, in a command of ours, to end the process at once (`quiet_start`).
    """

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def raised_once(self) -> Iterator[None]:
        """Handle signals for the block, unless it runs in a thread or inside another such block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        ours = [
            number
            for number, handler in before.items()
            if handler is not signal.SIG_IGN and not isinstance(handler, _Once)
        ]
        once = _Once(self, {number: before[number] for number in ours})
        try:
            for number in ours:
                signal.signal(number, once)
            yield
        finally:
            once.restore()


class _Once:
    """A handler that puts back those before it, then raises."""

    def __init__(self, signals: _Signals, before: Mapping[int, Any]) -> None:
        self._signals = signals
        self._before = before

    def __call__(self, number: int, frame: object) -> None:
        self.restore()
        self._signals.received = number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class ReaderLeftError(BrokenPipeError):
    """Nobody reads our standard output any more."""


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let the reader of our output go away (`| head`) without a word or a changed exit code.

    Any other broken pipe is an error like every other.
    """
    try:
        yield
        sys.stdout.flush()
    except ReaderLeftError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Output(io.FileIO):
    """Standard output, whose broken pipe can be told from those of a computation."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except BrokenPipeError as error:
            raise ReaderLeftError(*error.args) from None


class _Messages(io.FileIO):
    """Standard error, which nobody has to read."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except BrokenPipeError:
            return len(content)


@contextmanager
def safe_streams() -> Iterator[None]:
    """For the block, streams that raise no error of their own but `ReaderLeftError`.

    A closed stream swallows output; one that lacks a character shows '?' instead.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _safe(sys.stdout, _Output), _safe(sys.stderr, _Messages)
    try:
        yield
    finally:
        with suppress(OSError), reader_may_leave():
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def _safe(stream: Any, kind: type[io.FileIO]) -> Any:
    if stream is None:
        return Path(os.devnull).open("w")
    if type(stream) is not io.TextIOWrapper:
        return stream  # a test's or a notebook's
    stream.flush()
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO) or isinstance(raw, kind):
        return stream
    ours: Any = kind(raw.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        ours if raw is stream.buffer else io.BufferedWriter(ours),  # unbuffered stays so
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
