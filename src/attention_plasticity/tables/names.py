"""Names that come from files and flags, made fit for one line of text."""

from __future__ import annotations

import unicodedata


def clean(text: str) -> str:
    """The text in one line, without characters that steer a terminal or the direction of writing.

    Half a surrogate pair, which no encoding holds, becomes a question mark.
    """
    return " ".join("".join(map(_shown, text)).split())


def _shown(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cs":
        return "?"
    if kind in ("Cf", "Co", "Cn"):
        return ""
    if kind == "Cc":
        return " " if character in "\t\n\v\f\r\x85" else ""
    return character if character.isprintable() else " "
