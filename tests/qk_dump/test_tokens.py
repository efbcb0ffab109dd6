"""`tokens.parquet`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qk_dump.tokens import TOKENS_FILE, read_tokens, write_tokens
from qk_toolkit.errors import DumpError

TEXTS = {7: " the", 0: "<s>", 128_000: "\\xe2\\x80", 9: ""}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_tokens(tmp_path) is None
    write_tokens(tmp_path, TEXTS | {3: "\udce2"})
    assert read_tokens(tmp_path) == TEXTS | {3: "\\udce2"}  # UTF-8 has no lone surrogates
    table = pq.read_table(tmp_path / TOKENS_FILE)
    assert table.schema == pa.schema([("id", pa.int32()), ("text", pa.string())])
    assert table["id"].to_pylist() == sorted([*TEXTS, 3])


WRONG: dict[str, tuple[Any, str]] = {
    "junk": (b"junk", "bytes"),
    "no text": ({"id": [1]}, "no column 'text'"),
    "ids of floats": ({"id": [1.5], "text": ["a"]}, "no column 'id', or one of another type"),
    "texts of numbers": ({"id": [1], "text": [2]}, "no column 'text', or one of another type"),
    "a null": ({"id": [1, None], "text": ["a", "b"]}, "has a null"),
    "an id twice": ({"id": [1, 1], "text": ["a", "b"]}, "an id twice, or a negative one"),
    "a negative id": ({"id": [-1], "text": ["a"]}, "an id twice, or a negative one"),
}


@pytest.mark.parametrize(("content", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_with_the_way_out(
    tmp_path: Path, content: Any, reason: str
) -> None:
    if isinstance(content, bytes):
        (tmp_path / TOKENS_FILE).write_bytes(content)
    else:
        pq.write_table(pa.table(content), tmp_path / TOKENS_FILE)
    with pytest.raises(DumpError) as caught:
        read_tokens(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / TOKENS_FILE}: ")
    assert reason in message
    assert message.endswith("reading a dump works without it.")
