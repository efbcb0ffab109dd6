"""`examples.parquet`: dataset id and number of tokens of every `example_id`. Optional file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from qk_dump.limits import MOST_EXAMPLES
from qk_dump.parquet import read_side_table, write_side_table
from qk_dump.remote import DumpPath
from qk_toolkit.errors import ConfigError

EXAMPLES_FILE = "examples.parquet"

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
