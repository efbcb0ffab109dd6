"""What commands share: how they end, their streams, their parser and settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import NoReturn

import pytest

from qk_toolkit.command_line import INTERRUPTED, guarded
from qk_toolkit.errors import ConfigError, DumpError


def raising(error: BaseException) -> int:
    def verb() -> NoReturn:
        raise error

    return guarded(verb, "what is done is kept")


def in_python(code: str, redirect: str = "") -> subprocess.CompletedProcess[str]:
    """Run code after the imports of a command, with its streams redirected by the shell."""
    code = f"import sys; from qk_toolkit.command_line import *; {code}"
    words = f'{sys.executable} -c "$CODE" {redirect}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", words],
        env={**os.environ, "CODE": code},
        capture_output=True,
        text=True,
        check=False,
    )


# how a command ends


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("seed: no"), 2, "error: seed: no\n"),
        (DumpError("l00h00q: no"), 1, "error: l00h00q: no\n"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), INTERRUPTED, "interrupted; what is done is kept\n"),
    ],
)
def test_what_a_person_can_cause_is_one_line_and_a_code(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error) == code
    assert capsys.readouterr() == ("", told)


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())


def test_sigterm_ends_a_verb_with_the_signals_code_and_the_handler_returns() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def verb() -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    with pytest.raises(SystemExit) as left:
        guarded(verb, "")
    assert left.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


# streams


@pytest.mark.parametrize(
    ("redirect", "code"),
    [
        ("| true", 0),
        ("2>&-", 0),
        ("2>/dev/full", 0),
        (">&- 2>&-", 0),
    ],
)
def test_a_stream_that_fails_is_no_traceback(redirect: str, code: int) -> None:
    verb = "(print('x' * 100_000), print('y', file=sys.stderr), 0)[2]"
    done = in_python(f"sys.exit(guarded(lambda: {verb}, ''))", redirect)
    assert "Traceback" not in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize(
    ("verb", "code"),
    [("raise_(ConfigError('x'))", 2), ("raise_(KeyboardInterrupt)", 130), ("notes() or 0", 0)],
)
def test_messages_that_cannot_be_written_end_no_work(verb: str, code: int) -> None:
    written = """
from qk_toolkit.errors import ConfigError
from qk_toolkit.terminal import TerminalWatcher
def raise_(error): raise error
def notes():
    watcher = TerminalWatcher()
    for number in range(10_000):
        watcher.note('x' * 100)
        print('y' * 100, file=sys.stderr)
    print('all')
"""
    done = in_python(f"{written}\nsys.exit(guarded(lambda: {verb}, ''))", "2>/dev/full")
    assert done.returncode == code
    assert done.stdout == ("all\n" if code == 0 else "")


@pytest.mark.parametrize("verb", ["print('x')", "print('x' * 100_000)"])
def test_output_that_cannot_be_written_is_one_line(verb: str) -> None:
    done = in_python(f"sys.exit(guarded(lambda: {verb} or 0, ''))", "> /dev/full")
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*No space left on device\n", done.stderr)


def test_a_broken_pipe_of_a_computation_is_a_failure() -> None:
    code = """
import os
def verb():
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b'x')  # as into a worker that is gone
    return 0
sys.exit(guarded(verb, ''))"""
    done = in_python(code)
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    ("number", "raised", "code"),
    [
        (signal.SIGINT, "KeyboardInterrupt", 130),
        (signal.SIGTERM, "ImportError('interrupted within')", 143),
    ],
)
def test_an_interruption_that_a_library_turns_into_another_error_is_still_one(
    number: int, raised: str, code: int
) -> None:
    program = f"""
import signal
def verb():
    try:
        signal.raise_signal({int(number)})
    except BaseException:
        raise {raised}
sys.exit(guarded(verb, 'go on'))"""
    done = in_python(program)
    stopped = "stopping; Ctrl-C again ends at once\ninterrupted; go on\n"
    assert done.returncode == code
    assert done.stderr == (stopped if number == signal.SIGINT else "")


# parser and settings
