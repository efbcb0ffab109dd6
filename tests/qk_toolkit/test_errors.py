"""The errors a person may see, and what tracebacks do not show."""

import pickle

import pytest

from qk_toolkit.debugging import traceback_text
from qk_toolkit.errors import ConfigError, DumpError, HeadError, OutputError, in_short


@pytest.mark.parametrize("kind", [ConfigError, DumpError, HeadError, OutputError])
def test_an_error_survives_the_way_from_a_worker(kind):
    error = pickle.loads(pickle.dumps(kind("a.parquet: row 3: negative bucket")))
    assert type(error) is kind
    assert str(error) == "a.parquet: row 3: negative bucket"


def test_a_message_is_one_line_that_a_terminal_can_show():
    message = str(DumpError("a\nb\x1b[31m\0\udce9é…\u202e: cannot be read"))
    assert message == "a\\nb\\x1b[31m\\x00\\udce9é…\\u202e: cannot be read"


def test_a_message_is_bounded_and_keeps_its_beginning_and_its_way_out():
    message = str(ConfigError(f"a.yaml: seed: got {'9' * 10_000_000}. Give a number."))
    assert len(message) < 3_100
    assert message.startswith("a.yaml: seed: got 999")
    assert message.endswith("999. Give a number.")
    assert "…" in message
    middling = "a" * 2_999
    assert str(ConfigError(middling)) == middling


def _laughs():
    value = ["lol"]
    for _ in range(60):
        value = [value] * 9
    return value


def _recursive():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "3"),
        (None, "null"),
        (True, "true"),
        ("soon", "'soon'"),
        ([1, {"a": 2.5}], "[1, {'a': 2.5}]"),
        ("x" * 10_000_000, None),
        (16**10_000, None),
        (-(10**300), None),
        (_laughs(), None),
        (_recursive(), None),
        ({"a": _laughs()}, None),
        (b"x" * 10_000_000, None),
    ],
    ids=range(12),
)
def test_a_value_is_shown_in_short(value, shown):
    text = in_short(value)
    assert len(text) <= 200
    assert shown is None or text == shown


def test_secrets_are_not_in_tracebacks(monkeypatch):
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
