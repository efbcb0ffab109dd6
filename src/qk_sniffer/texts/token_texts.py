"""The text of tokens, as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # in the place of bytes that are no UTF-8
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # in names of tokens


def token_texts(tokenizer: Any, ids: Sequence[int]) -> dict[int, str]:
    r"""The text of every id.

    A piece of a character is written as its bytes, such as `\xe2\x80` or `<0xE2>`.
    """
    return {number: _text(tokenizer, number) for number in ids}


def _text(tokenizer: Any, number: int) -> str:
    name = str(tokenizer.convert_ids_to_tokens(number) or "")
    text: str = tokenizer.decode(
        [number], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    if _REPLACEMENT in text:
        return _bytes_as_text(name)
    if name.startswith(_SPACE) and not text.startswith(" "):
        return " " + text  # some tokenizers remove a space at the beginning of a text
    return text


def _bytes_as_text(name: str) -> str:
    """The text of a token that is a piece of a character.

    Byte-level vocabularies have one printable character per byte. Other vocabularies have names of
    bytes, such as `<0xE2>`.
    """
    table = _bytes_by_character()
    if all(character in table for character in name):
        return bytes(table[character] for character in name).decode("utf-8", "backslashreplace")
    return name


@cache
def _bytes_by_character() -> dict[str, int]:
    """The characters that stand for bytes in a byte-level vocabulary.

    Printable bytes of Latin-1 stand for themselves, the others are numbered from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}
