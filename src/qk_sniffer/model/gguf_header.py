"""The name of a model in the header of its GGUF file.

The library `gguf` reads whole headers, with the vocabulary, which takes seconds. The fields that
name the model are at the beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of other types
_MOST_BYTES = 1 << 20  # of a string
_MOST_STRINGS = 1_000  # of a list, such as tags; a vocabulary is longer, and nothing follows it
_MOST_CHARACTERS = 100  # of a name


def model_title(path: Path) -> str:
    """The name of the model: `general.name`, else basename and size, else the name of the file."""
    fields = _names(path)
    if "name" in fields:
        return fields["name"]
    if "basename" in fields:
        return f"{fields['basename']} {fields.get('size_label', '')}".rstrip()
    return path.stem


def _names(path: Path) -> dict[str, str]:
    """The texts among the fields `general.…`; what cannot be read is left out."""
    found = {}
    try:
        with path.open("rb") as file:
            for key, text in _strings(file):
                section, _, name = key.partition(".")
                text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
                if section == "general" and any(map(str.isalnum, text)):
                    found[name] = text[:_MOST_CHARACTERS]
    except (OSError, ValueError, OverflowError, struct.error):
        pass  # loading the model reports damaged files
    return found


def _strings(file: BinaryIO) -> Iterator[tuple[str, str]]:
    """Key and text of every field that is a text, until a long list."""
    if file.read(4) != _MAGIC or _number(file, "I") not in _VERSIONS:
        return
    _number(file, "Q")  # tensors
    for _ in range(_number(file, "Q")):
        key, kind = _text(file), _number(file, "I")
        if kind == _STRING:
            yield key, _text(file)
            continue
        number = 1
        if kind == _ARRAY:
            kind, number = _number(file, "I"), _number(file, "Q")
        if kind == _STRING and number <= _MOST_STRINGS:
            for _ in range(number):
                _text(file)
        elif kind in _SIZES:
            file.seek(number * _SIZES[kind], 1)
        else:
            return


def _number(file: BinaryIO, form: str) -> int:
    return int(struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0])


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    if length > _MOST_BYTES:
        raise ValueError("the text is too long")
    data = file.read(length)
    if len(data) < length:
        raise ValueError("the file is truncated")
    return data.decode("utf-8", "replace")
