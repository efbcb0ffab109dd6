"""Parser, settings, exit codes and signal handling of every command.

Importing this module loads no third-party library, so `--help` is fast.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import select
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from qk_toolkit.debugging import FLAG, HELP, show_traceback
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError, without_tokens

if TYPE_CHECKING:
    from qk_toolkit.settings import Settings

INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h"


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

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """A switch stands alone: `--x true` is accepted too, but not shown."""
        return "" if action.const == "true" else super()._format_args(action, default_metavar)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return super()._format_action_invocation(action).rstrip()

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
    if type(sys.stdout) is io.TextIOWrapper:  # not one of a test or a notebook
        sys.stdout.reconfigure(errors="replace")  # characters that its encoding lacks
    _let_stderr_fail()
    try:
        with signals.raised_once(), allow_closed_stdout():
            return command()
        return 0  # standard output was closed before the end
    except SystemExit:
        raise
    except BaseException as error:  # reported, or raised again
        if not (signals.received or isinstance(error, (KeyboardInterrupt, ToolkitError, OSError))):
            raise
        with suppress(OutputError):
            _flush()
        show_traceback(error)
        if signals.received or isinstance(error, KeyboardInterrupt):
            return _report_interruption(signals.received, interrupted)
        return _report_error(error)


class _Lossy(io.FileIO):
    """A file that loses what cannot be written: a full disk for messages must not end the work."""

    def write(self, data: Any) -> int:
        """Write, or not."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _let_stderr_fail() -> None:
    if type(sys.stderr) is io.TextIOWrapper and not isinstance(sys.stderr.buffer, _Lossy):
        file = cast(Any, _Lossy(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(
            file, sys.stderr.encoding, "backslashreplace", write_through=True
        )


def _report_interruption(number: int | None, interrupted: str) -> int:
    if number == signal.SIGTERM:
        return 128 + number
    print(f"interrupted; {interrupted}", file=sys.stderr)
    return INTERRUPTED


def _report_error(error: BaseException) -> int:
    text = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    print(f"error: {without_tokens(text)}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1


class _Signals:
    """Raises the first Ctrl-C or SIGTERM as an exception; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def raised_once(self) -> Iterator[None]:
        """Handle signals during the block. Does nothing in a thread or in a nested block."""
        previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for replaced in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(replaced)
                if handler is not signal.SIG_IGN and not isinstance(handler, _Signals):
                    previous[replaced] = handler
                    signal.signal(replaced, self)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def __call__(self, number: int, frame: object) -> None:
        if self.received is not None:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)  # a progress bar may have hidden it
            os._exit(128 + number)
        self.received = number
        if number == signal.SIGINT:
            _say_stopping()
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _say_stopping() -> None:
    """Say at once that the command stops: saving what is finished may take a minute.

    The line goes to the file descriptor, because a signal handler may interrupt a write to
    `sys.stderr`.
    """
    line = b"stopping; Ctrl-C again ends at once\n"
    with suppress(OSError):  # nobody reads standard error, or it is closed
        os.write(2, b"\n" + line if os.isatty(2) else line)


@contextmanager
def allow_closed_stdout() -> Iterator[None]:
    """End the block without an error when the reader of standard output is gone, as `| head` is.

    Output that cannot be written for another reason, such as a full disk, is an `OutputError`.
    """
    try:
        yield
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        _drop_output()
    except SystemExit:  # its exit code counts, also if nobody reads the output
        _flush()
        raise
    else:
        _flush()


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads; another pipe may be the broken one."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _drop_output() -> None:
    """Send later output nowhere, so that what is left in a buffer is no error at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
