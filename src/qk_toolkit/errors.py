"""Errors that a user can cause. Each message names the file, the value and what to do.

No message shows the password of a URL.
"""

from __future__ import annotations

import os
import re
import reprlib

_MAX_CHARACTERS = 3_000  # of a message; a quoted file or flag may have millions
_MAX_END = 1_000  # of these, taken from the end of the message, which says what to do
_WORD = re.compile(r"\S+")
_PORT = re.compile(r"[^/@]*:\d+(/|$)")
_SIGNATURE = re.compile(
    r"(?<=[?&;])(?:X-Amz-[\w-]+|AWSAccessKeyId|Signature|sig|token)=[^&\s'\"]*", re.I
)

_TOKEN = re.compile(r"\bhf_\w{8,}|(?<=\bBearer )[^\s'\"]+|(?<=\bBasic )[^\s'\"]+")
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|KEY|CONNECTION_STRING)$", re.I)
_SHORTEST_SECRET = 8  # characters; a shorter value may be a part of other words


class ToolkitError(Exception):
    """Base of all user errors. The command line prints the message without a traceback.

    The message is one line of bounded length, without passwords of URLs. Non-printable characters
    are shown as escapes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class ConfigError(ToolkitError):
    """A setting or a path cannot be used, or it contradicts the dump."""


class SettingError(ConfigError):
    """A setting cannot be used. The caller may know it by another name."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = problem


def not_installed(library: str, extra: str) -> ConfigError:
    """The error for a library of an extra. The toolkit is on no package index."""
    return ConfigError(
        f"{library}: is not installed; run pip install -e '.[{extra}]' in a clone of the toolkit"
    )


class DumpError(ToolkitError):
    """A file of the dump cannot be used. Only its head fails."""


class HeadError(ToolkitError):
    """A head with valid files that cannot be analysed, for example one with two queries."""


class OutputError(ToolkitError):
    """A result could not be written."""


class HubError(ToolkitError):
    """The Hub refused a request, failed or cannot be reached. Earlier results are intact."""


class StoreError(ToolkitError):
    """A file at a URL cannot be read or written. Earlier results are intact."""


def in_short(value: object) -> str:
    """The value as YAML or Python writes it, in at most 200 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = _SHORT.repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


class _Short(reprlib.Repr):
    """Shows few members and few levels, so that large values take little time."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxlong = self.maxother = 120
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 6

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 1000:  # Python refuses to convert very long integers to text
            return f"an integer of {x.bit_length():,} bits"
        return super().repr_int(x, level)


_SHORT = _Short()


def _one_line(message: str) -> str:
    message = without_secrets(message)
    if len(message) > _MAX_CHARACTERS:
        message = f"{message[: _MAX_CHARACTERS - _MAX_END]} … {message[-_MAX_END:]}"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in message
    )


def has_password(url: str) -> bool:
    """Whether a URL has the form `s3://key:secret@bucket`. A secret may contain slashes.

    A `Path` of such a URL has one slash after the scheme.
    """
    scheme, _, rest = url.partition(":/")
    if scheme.lower().endswith(("http", "https")) and _PORT.match(rest.lstrip("/")):
        return False  # of `http://host:80/name@branch`
    return ":" in rest.rpartition("@")[0]


def without_secrets(text: str) -> str:
    """The text with `…` in place of passwords and signatures."""
    return _SIGNATURE.sub("…", _WORD.sub(_without_password, text))


def without_tokens(text: str) -> str:
    """The text without passwords, signatures, tokens and values of secret environment variables."""
    text = _TOKEN.sub("…", without_secrets(text))
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "…")
    return text


def _without_password(word: re.Match[str]) -> str:
    text = word[0]
    if "@" not in text or not has_password(text):
        return text
    return f"{text.partition(':/')[0]}://…@{text.rpartition('@')[2]}"
