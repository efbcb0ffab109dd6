"""Names from files and flags as one line of printable text.

The key pairs of each `pair_sampling` in words, and the name of a head.
"""

from __future__ import annotations

import unicodedata

PAIR_WORDS = {
    "bucket": "two keys of one text and one key bucket",
    "local": "two nearby keys of one text",
    "context": "any two earlier keys of one text",
}


def pair_words(pair_sampling: str, in_bins: bool) -> str:
    """The key pairs in words; `in_bins`: of RoPE-aligned plasticity, whose keys are in bins."""
    words = PAIR_WORDS[pair_sampling]
    return words.replace("key bucket", "bin of keys") if in_bins else words


def head_name(layer: int, head: int) -> str:
    """`L3 H5`."""
    return f"L{layer} H{head}"


def clean(text: str) -> str:
    """The text in one line, without control characters and direction marks.

    A lone surrogate becomes a question mark.
    """
    return " ".join("".join(map(_printable, text)).split())


def _printable(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cs":
        return "?"
    if kind in ("Cf", "Co", "Cn"):
        return ""
    if kind == "Cc":
        return " " if character in "\t\n\v\f\r\x85" else ""
    return character if character.isprintable() else " "
