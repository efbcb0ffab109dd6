"""`tokens.parquet`: the text of every token id that the rows of a dump have. Optional file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.parquet import NOT_NEEDED, read_side_table, write_side_table
from qk_dump.remote import DumpPath
from qk_toolkit.errors import DumpError

TOKENS_FILE = "tokens.parquet"


def write_tokens(folder: Path, texts: Mapping[int, str], capture: str | None = None) -> None:
    """Write `tokens.parquet` into the folder of a dump, sorted by id."""
    ids = sorted(texts)
    stored = [texts[number].encode("utf-8", "backslashreplace").decode() for number in ids]
    table = pa.table({"id": pa.array(ids, pa.int32()), "text": pa.array(stored, pa.string())})
    write_side_table(folder / TOKENS_FILE, table, capture)


def read_tokens(folder: DumpPath, capture: str | None = None) -> dict[int, str] | None:
    """The text of every token id of a dump, or None without the file."""
    path = folder / TOKENS_FILE
    table = read_side_table(path, capture)
    try:
        return None if table is None else _texts(table)
    except ValueError as error:
        raise DumpError(f"{path}: {error}. {NOT_NEEDED}") from error


def _texts(table: pa.Table) -> dict[int, str]:
    """Raises a `ValueError` if the table is not one of ids and texts."""
    for name, accepts in (("id", kinds.is_integer), ("text", _is_text)):
        found = [field.type for field in table.schema if field.name == name]
        if len(found) != 1 or not accepts(found[0]):
            raise ValueError(f"has no column '{name}', or one of another type")
    if table["id"].null_count or table["text"].null_count:
        raise ValueError("has a null")
    ids = table["id"].to_pylist()
    texts = dict(zip(ids, table["text"].to_pylist(), strict=True))
    if len(texts) < len(ids) or min(ids, default=0) < 0:
        raise ValueError("has an id twice, or a negative one")
    return texts


def _is_text(found: pa.DataType) -> bool:
    return bool(kinds.is_string(found) or kinds.is_large_string(found))
