"""Books, and the pieces they are cut into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qk_sniffer.demo.books import BOOKS, held_out_passage, read_book, write_pieces
from qk_toolkit.errors import ConfigError


@pytest.mark.parametrize("book", BOOKS)
def test_a_book_is_cut_without_overlap_and_keeps_its_end(book: str, tmp_path: Path) -> None:
    write_pieces(tmp_path / "texts" / "pieces.jsonl", book, 12, 8192)
    lines = (tmp_path / "texts" / "pieces.jsonl").read_text(encoding="utf-8").splitlines()
    pieces = [json.loads(line) for line in lines]
    assert [piece["id"] for piece in pieces] == [f"{book}/{number:02}" for number in range(12)]
    text = "".join(piece["text"] for piece in pieces)
    assert read_book(book).startswith(text)
    assert {len(piece["text"]) for piece in pieces} == {int(8192 * 4.88)}
    assert len(text) + len(held_out_passage(book)) <= len(read_book(book))


def test_more_pieces_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_pieces(tmp_path / "pieces.jsonl", "moby-dick", 13, 8192)
    assert str(caught.value) == (
        "--pieces: 13 given, but moby-dick has only 12 pieces of 8,192 tokens; give fewer pieces "
        "or a shorter --context"
    )
    assert not (tmp_path / "pieces.jsonl").exists()
