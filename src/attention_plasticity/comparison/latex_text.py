"""Text for LaTeX: escaped, with places for line breaks in long words, and its estimated width."""

from __future__ import annotations

import re

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",  # two hyphens would become a dash
    "[": "{[}",  # would be read as an argument of a line end
    "*": "{*}",
    "–": "--",
    "…": r"\ldots{}",
    "·": r"\textperiodcentered{}",
    "±": r"$\pm$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
}
_LONG_WORD, _PIECE = 16, 12  # characters
_BREAK = r"\allowbreak{}"
_DIGIT, _NARROW, _LETTER, _CAPITAL, _WIDE = 4.65, 3.2, 5.2, 7.4, 9.6  # points, in \small


def escaped(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    return "".join(_SPECIAL.get(sign, sign) for sign in text)


def breakable(text: str) -> str:
    """Escaped text for a paragraph. Long words, such as names of models, can be broken."""
    return " ".join(_with_breaks(word) for word in text.split(" "))


def _with_breaks(word: str) -> str:
    """A long word with breaks after its signs, and inside parts without signs."""
    if len(word) <= _LONG_WORD:
        return escaped(word)
    parts = re.findall(r"\w*[^\w]|\w+", word.replace("_", "_\0"))
    pieces = [
        part[start : start + _PIECE] for part in parts for start in range(0, len(part), _PIECE)
    ]
    return _BREAK.join(escaped(piece.replace("\0", "")) for piece in pieces if piece != "\0")


def width_of(text: str) -> float:
    r"""Points that a text needs at most in `\small` of the standard font."""
    return sum(map(_width, text))


def _width(sign: str) -> float:
    if sign in "0123456789":
        return _DIGIT
    if sign in "ijl-.,:;'!|[] ":
        return _NARROW
    if sign.isupper() or sign in "+±<>=~&…":
        return _WIDE if sign in "MW" else _CAPITAL
    return _WIDE if sign in "mw@%" or not (sign.isascii() or sign in "–·†‡") else _LETTER
