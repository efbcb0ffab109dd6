"""`--debug`: when tracebacks are printed, and what they do not show."""

from __future__ import annotations

import os

import pytest

from qk_toolkit.command_line import guarded
from qk_toolkit.debugging import VARIABLE, debug_flag, is_debugging, traceback_text
from qk_toolkit.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def failing() -> int:
    raise ConfigError("seed: no") from KeyError("the cause")


def test_the_flag_counts_during_the_command() -> None:
    with debug_flag(["--seed", "1", "--debug"]) as rest:
        assert rest == ["--seed", "1"]
        assert is_debugging()
        assert os.environ[VARIABLE] == "1"  # for worker processes
    assert not is_debugging()
    with debug_flag(["--seed", "1"]) as rest:
        assert rest == ["--seed", "1"]
        assert not is_debugging()


def test_the_traceback_comes_before_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(failing, "") == 2
    assert capsys.readouterr().err == "error: seed: no\n"
    with debug_flag(["--debug"]):
        assert guarded(failing, "") == 2
    printed = capsys.readouterr().err
    assert printed.startswith("KeyError: 'the cause'\n")
    assert "Traceback (most recent call last):" in printed
    assert "in failing\n" in printed
    assert printed.endswith("\nerror: seed: no\n")


def test_secrets_are_not_in_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
    monkeypatch.setenv("MY_TOKEN", "short")
    inner = OSError("s3://key:hidden@bucket, Authorization: Bearer hidden.token")
    error = ConfigError("no access with hf_hiddenhidden and wJalrXUtnFEMI/K7MDENG in short")
    error.__cause__ = inner
    text = traceback_text(error)
    assert "hidden" not in text
    assert "wJalr" not in text
    assert "s3://…@bucket" in text
    assert text.endswith("ConfigError: no access with … and … in short\n")
