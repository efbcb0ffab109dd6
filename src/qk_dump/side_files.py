"""The files beside the heads of a dump: examples.parquet, tokens.parquet, the card, dump.json.

`examples.parquet` has the dataset id and the number of tokens of every `example_id`, and
`tokens.parquet` the text of every token id that the rows have. Reading requires none of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.card import card, is_card
from qk_dump.heads import CARD_FILE, EXAMPLES_FILE, MOST_EXAMPLES, TOKENS_FILE, HeadId
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, write_manifest
from qk_dump.parquet import NOT_NEEDED, read_side_table, write_side_table
from qk_dump.remote import DumpPath
from qk_toolkit.errors import ConfigError, DumpError
from qk_toolkit.files import remove_drafts, sync_folder, write_text

_INT64 = range(-(2**63), 2**63)
_COLUMN_TYPES: dict[type | None, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}


@dataclass(frozen=True, slots=True)
class Example:
    """One text of a capture."""

    example_id: int
    original_id: object  # from the dataset; stored as text when JSON has no such type
    num_tokens: int
    text_digest: str  # compared when a capture is resumed

    def __post_init__(self) -> None:
        if not 0 <= self.example_id < MOST_EXAMPLES:
            raise ConfigError(
                f"dataset: example {self.example_id} is out of range; a dump holds at most "
                f"{MOST_EXAMPLES:,} texts. Set dataset.max_samples."
            )

    def as_record(self) -> dict[str, Any]:
        """The example as values for JSON."""
        return {**asdict(self), "original_id": _plain(self.original_id)}


def write_examples(folder: Path, examples: Iterable[Example], capture: str | None = None) -> None:
    """Write `examples.parquet` into the folder of a dump, sorted by `example_id`."""
    ordered = sorted(examples, key=lambda example: example.example_id)
    table = pa.table(
        {
            "example_id": pa.array([example.example_id for example in ordered], pa.int32()),
            "original_id": _id_column([_plain(example.original_id) for example in ordered]),
            "num_tokens": pa.array([example.num_tokens for example in ordered], pa.int32()),
        }
    )
    write_side_table(folder / EXAMPLES_FILE, table, capture)


def read_examples(folder: DumpPath, capture: str | None = None) -> pa.Table | None:
    """The examples of a dump, or None without the file."""
    return read_side_table(folder / EXAMPLES_FILE, capture)


def _id_column(ids: Sequence[Any]) -> pa.Array:
    """Ids of one simple type keep it; all others become JSON text. None becomes null."""
    kinds = {type(value) for value in ids if value is not None}
    kind = kinds.pop() if len(kinds) == 1 else None
    too_large = kind is int and any(value not in _INT64 for value in ids if value is not None)
    if kind not in _COLUMN_TYPES or too_large:
        kind = str
        ids = [None if value is None else json.dumps(value, ensure_ascii=False) for value in ids]
    if kind is str:  # file names may contain characters that UTF-8 cannot encode
        ids = [value and value.encode("utf-8", "backslashreplace").decode() for value in ids]
    return pa.array(ids, _COLUMN_TYPES[kind])


def _plain(value: object) -> Any:
    """The value after a round trip through JSON, or its text when JSON has no such type."""
    try:
        return json.loads(json.dumps(value.item() if isinstance(value, np.generic) else value))
    except (TypeError, ValueError):
        return str(value)


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


def write_side_files(
    folder: Path,
    manifest: DumpManifest,
    heads: Sequence[HeadId],
    examples: Iterable[Example],
    token_texts: Mapping[int, str] | None = None,
) -> None:
    """Write `examples.parquet`, `tokens.parquet`, the card, and at last `dump.json`.

    `token_texts` has the text of every token; None writes no `tokens.parquet`. A README.md that is
    not a card of this toolkit is kept.
    """
    for name in (EXAMPLES_FILE, TOKENS_FILE, CARD_FILE, MANIFEST_NAME):
        remove_drafts(folder / name)
    write_examples(folder, examples, manifest.capture_id)
    if token_texts is not None:
        write_tokens(folder, token_texts, manifest.capture_id)
    if is_card(folder / CARD_FILE) or not (folder / CARD_FILE).exists():
        ordered = sorted(heads, key=lambda head: (head.attended, head))
        text = card(manifest, ordered, examples=True, tokens=token_texts is not None)
        write_text(folder / CARD_FILE, text)
    sync_folder(folder)
    write_manifest(folder, manifest)
    sync_folder(folder)
