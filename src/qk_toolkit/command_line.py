"""Parser, settings, exit codes and signal handling of every command.

Importing this module loads no third-party library, so `--help` is fast.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from qk_toolkit.debugging import FLAG, HELP, show_traceback
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError, without_tokens

if TYPE_CHECKING:
    from qk_toolkit.settings import Settings

INTERRUPTED = 130


class FlagParser(argparse.ArgumentParser):
    """A parser that reports usage errors as a `ConfigError`."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise ConfigError(message.removeprefix("argument "))


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help in lines of the terminal, of 100 characters at most. Indented lines stay as they are."""

    def __init__(self, prog: str) -> None:
        width = min(100, shutil.get_terminal_size().columns)
        super().__init__(prog, max_help_position=28, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part
            if re.search(r"^ ", part, re.M) or _fits(part, width)
            else textwrap.fill(part, width)
            for part in text.strip("\n").split("\n\n")
        )


def _fits(text: str, width: int) -> bool:
    return all(len(line) <= width for line in text.splitlines())


def command_parser(program: str, description: str, examples: str) -> FlagParser:
    """A parser whose help begins with `description` and ends with example commands."""
    parser = FlagParser(
        prog=program,
        usage=f"{program} [--FIELD VALUE …]",
        description=description,
        epilog=examples,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    # `debug_flag` takes it from the arguments; here it is for the help
    parser.add_argument(FLAG, action="store_true", default=argparse.SUPPRESS, help=HELP)
    return parser


def command_settings(
    parser: FlagParser,
    model: type[Settings],
    arguments: Sequence[str],
    section: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Settings:
    """The settings of a command, from `--config FILE` and one flag per field.

    `note` is called with a line that lists the settings without effect.
    """
    from qk_toolkit.files import user_path
    from qk_toolkit.flags import add_flags, parse_flags
    from qk_toolkit.settings import settings_from

    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the fields below")
    add_flags(parser, model)
    flags = parse_flags(parser, arguments)
    path = flags.pop("config", None)
    return settings_from(
        model,
        yaml_path=user_path(path) if path is not None else None,
        section=section,
        flags=flags,
        note=note,
    )


def guarded(command: Callable[[], int], interrupted: str) -> int:
    """Run a command and return its exit code. User errors and interruptions print one line.

    With `--debug` their traceback is printed before this line.
    `interrupted` is printed after Ctrl-C: it says what is kept and how to continue.
    """
    signals = _Signals()
    with safe_streams():
        try:
            with signals.raised_once(), allow_closed_stdout():
                return command()
            return 0  # standard output was closed before the end
        except SystemExit:
            raise
        except BaseException as error:  # reported, or raised again
            if signals.received or isinstance(error, KeyboardInterrupt):
                show_traceback(error)
                return _report_interruption(signals.received, interrupted)
            if not isinstance(error, (ToolkitError, OSError)):
                raise
            show_traceback(error)
            return _report_error(error)


def _report_interruption(number: int | None, interrupted: str) -> int:
    if number == signal.SIGTERM:
        return 128 + number
    print(f"interrupted; {interrupted}", file=sys.stderr)
    return INTERRUPTED


def _report_error(error: ToolkitError | OSError) -> int:
    text = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    print(f"error: {without_tokens(text)}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1


class _Signals:
    """Raises the first Ctrl-C or SIGTERM as an exception.

    A second signal goes to the handler that was installed before. In our commands that handler
    ends the process at once (see `early_signals`).
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    @contextmanager
    def raised_once(self) -> Iterator[None]:
        """Handle signals during the block. Does nothing in a thread or in a nested block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN and not isinstance(handler, _Signals):
                self._previous[number] = handler
        try:
            for replaced in self._previous:
                signal.signal(replaced, self)
            yield
        finally:
            self._restore()

    def __call__(self, number: int, frame: object) -> None:
        self._restore()
        self.received = number
        if number == signal.SIGINT:
            _say_stopping()
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _say_stopping() -> None:
    """Say at once that the command stops: saving what is finished may take a minute.

    The line goes to the file descriptor, because a signal handler may interrupt a write to
    `sys.stderr`.
    """
    line = b"stopping; Ctrl-C again ends at once\n"
    with suppress(OSError):  # nobody reads standard error, or it is closed
        os.write(2, b"\n" + line if os.isatty(2) else line)


class StdoutClosedError(BrokenPipeError):
    """The reader of standard output closed the pipe, as `| head` does."""


@contextmanager
def allow_closed_stdout() -> Iterator[None]:
    """End the block without an error when standard output is closed.

    A broken pipe of any other file is still an error. Output that cannot be written for another
    reason, such as a full disk, is an `OutputError`, also if the block prints help and exits.
    """
    with _closed_stdout_ignored():
        try:
            yield
        except SystemExit:  # its exit code counts, also if nobody reads the output
            with _closed_stdout_ignored():
                sys.stdout.flush()
            raise
        sys.stdout.flush()


@contextmanager
def _closed_stdout_ignored() -> Iterator[None]:
    try:
        yield
    except StdoutClosedError:
        _drop_output(sys.stdout.fileno())


def _drop_output(descriptor: int) -> None:
    """Send later output nowhere, so that what is left in a buffer is no error at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class _Output(io.FileIO):
    """Standard output with its own exceptions for a broken pipe and for other failures."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except BrokenPipeError as error:
            raise StdoutClosedError(*error.args) from None
        except OSError as error:
            _drop_output(self.fileno())
            raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


class _Messages(io.FileIO):
    """Standard error that drops what cannot be written."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except OSError:
            return len(content)


@contextmanager
def safe_streams() -> Iterator[None]:
    """Use output streams that raise `StdoutClosedError` and `OutputError` only during the block.

    Both are errors of standard output. Output to a closed stream is dropped. A character that the
    encoding lacks becomes '?'.
    """
    original = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _safe(sys.stdout, _Output), _safe(sys.stderr, _Messages)
    try:
        yield
    finally:
        with suppress(OSError, OutputError), allow_closed_stdout():
            sys.stdout.flush()
        sys.stdout, sys.stderr = original


def _safe(stream: Any, kind: type[io.FileIO]) -> Any:
    if stream is None:
        return Path(os.devnull).open("w")
    if type(stream) is not io.TextIOWrapper:
        return stream  # replaced by a test or a notebook
    stream.flush()
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO) or isinstance(raw, kind):
        return stream
    safe: Any = kind(raw.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        safe if raw is stream.buffer else io.BufferedWriter(safe),  # keep an unbuffered stream
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
