"""Passwords and signatures of URLs, which never appear in a message; tokens, in no traceback."""

from __future__ import annotations

import os
import re

_WORD = re.compile(r"\S+")
_PORT = re.compile(r"[^/@]*:\d+(/|$)")
_SIGNATURE = re.compile(
    r"(?<=[?&;])(?:X-Amz-[\w-]+|AWSAccessKeyId|Signature|sig|token)=[^&\s'\"]*", re.I
)

_TOKEN = re.compile(r"\bhf_\w{8,}|(?<=\bBearer )[^\s'\"]+|(?<=\bBasic )[^\s'\"]+")
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|KEY|CONNECTION_STRING)$", re.I)
_SHORTEST_SECRET = 8  # characters; a shorter value may be a part of other words


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
