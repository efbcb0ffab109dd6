"""Cut books into pieces that fill the context of a model."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from pathlib import Path

from qk_toolkit.errors import ConfigError
from qk_toolkit.files import staged, write_through

BOOKS = ("moby-dick", "jargon-file")
_CHARACTERS_PER_TOKEN = 4.88  # more than both books have, so that a piece fills the context
_HELD_OUT_CHARACTERS = 20_000  # the last characters of a book are not captured


def read_book(name: str) -> str:
    """The text of a book."""
    path = files("qk_sniffer.demo") / "texts" / f"{name}.txt.gz"
    return gzip.decompress(path.read_bytes()).decode()


def held_out_passage(name: str) -> str:
    """The end of a book, which is in no piece."""
    return read_book(name)[-_HELD_OUT_CHARACTERS:]


def write_pieces(path: Path, book: str, count: int, context: int) -> None:
    """Cut a book into `count` pieces of at least `context` tokens, one JSON line each."""
    text = read_book(book)[:-_HELD_OUT_CHARACTERS]
    size = int(context * _CHARACTERS_PER_TOKEN)
    if count * size > len(text):
        raise ConfigError(
            f"--pieces: {count} given, but {book} has only {len(text) // size} pieces of "
            f"{context:,} tokens; give fewer pieces or a shorter --context"
        )
    pieces = [
        {"id": f"{book}/{number:02}", "text": text[number * size : (number + 1) * size]}
        for number in range(count)
    ]
    lines = (json.dumps(piece, ensure_ascii=False) + "\n" for piece in pieces)
    with staged(path) as draft:
        write_through(draft, "".join(lines))
