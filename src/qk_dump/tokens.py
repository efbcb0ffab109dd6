"""`tokens.parquet`: the text of every token id that the rows of a dump have. Optional file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from qk_dump.parquet import reason_of, require_footer
from qk_dump.remote import DumpPath, RemotePath
from qk_toolkit.errors import DumpError
from qk_toolkit.files import read_bounded, staged, sync

TOKENS_FILE = "tokens.parquet"
_MOST_TOKENS = 1 << 24  # vocabularies have fewer than a million
_MOST_BYTES = 1 << 30  # of the file
_ACTION = "Capture or download it again, or remove it; reading a dump works without it."


def write_tokens(folder: Path, texts: Mapping[int, str]) -> None:
    """Write `tokens.parquet` into the folder of a dump, sorted by id."""
    ids = sorted(texts)
    stored = [texts[number].encode("utf-8", "backslashreplace").decode() for number in ids]
    table = pa.table({"id": pa.array(ids, pa.int32()), "text": pa.array(stored, pa.string())})
    with staged(folder / TOKENS_FILE) as draft, draft.open("wb") as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        sync(file)


def read_tokens(folder: DumpPath) -> dict[int, str] | None:
    """The text of every token id of a dump, or None without the file."""
    path = folder / TOKENS_FILE
    try:
        return _texts(_table(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DumpError(f"{path}: cannot be read ({reason_of(error)}). {_ACTION}") from error


def _table(path: DumpPath) -> pa.Table:
    """The file with checked types and a bounded number of rows."""
    if isinstance(path, RemotePath):
        content = path.read_bounded(_MOST_BYTES)
    else:
        content = read_bounded(path, _MOST_BYTES)
    require_footer(path)
    parquet = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
    schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
    for name, accepts, expected in (
        ("id", kinds.is_integer, "an integer"),
        ("text", _is_text, "a string"),
    ):
        if schema.names.count(name) != 1:
            raise ValueError(f"it has no column '{name}', or two of them")
        if not accepts(schema.field(name).type):
            raise ValueError(f"column '{name}' is {schema.field(name).type}, expected {expected}")
    if not 0 <= rows <= _MOST_TOKENS:
        raise ValueError(f"it gives {rows:,} rows, at most {_MOST_TOKENS:,} can be read")
    return parquet.read(["id", "text"])


def _texts(table: pa.Table) -> dict[int, str]:
    if table["id"].null_count or table["text"].null_count:
        raise ValueError("it has a null")
    ids = table["id"].to_pylist()
    found = dict(zip(ids, table["text"].to_pylist(), strict=True))
    if len(found) < len(ids) or min(ids, default=0) < 0:
        raise ValueError("it has an id twice, or a negative one")
    return found


def _is_text(found: pa.DataType) -> bool:
    return bool(kinds.is_string(found) or kinds.is_large_string(found))
