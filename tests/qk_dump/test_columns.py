"""The table of columns: what is written, in which order, and what becomes null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from head_files import attention_rows, read, refusal
from qk_dump.columns import (
    COLUMNS,
    RECORD,
    schema_of,
    table_of,
)
from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_dump.writer import write_head

BASE = ("bucket", "example_id", "position", "vector", "sliding_window")


def test_the_schema_is_the_contract() -> None:
    schema = schema_of(sorted(COLUMNS), 64, half=True, group=3)  # in the order of the table
    assert schema.names == [*COLUMNS]
    kinds = {
        **dict.fromkeys(COLUMNS, pa.float32()),
        **dict.fromkeys((*BASE, "token_id", "layer", "head"), pa.int32()),
        **dict.fromkeys(("argmax_position", "argmax_token"), pa.int32()),
        **dict.fromkeys(("duplicate_keys", "induction_keys"), pa.int32()),
        "vector": pa.list_(pa.float16(), 64),
        "mass_by_distance": pa.list_(pa.float32(), 24),
        "received": pa.list_(pa.float32(), 3),
        "inclusion": pa.float64(),
    }
    assert {field.name: field.type for field in schema} == kinds
    assert schema_of(BASE, 4).names == [*BASE, "layer", "head"]
    with pytest.raises(ValueError, match="no column 'token_str'"):
        schema_of([*BASE, "token_str"], 4)


def test_what_is_not_known_becomes_null() -> None:
    columns = {"sliding_window": np.array([-1, 8]), "token_id": np.array([7, -1])}
    columns |= {"lse": np.array([np.nan, 2.5]), "vector": np.ones((2, 3))}
    columns["received"] = np.array([[0.5, np.nan], [0.5, 0.25]])
    schema = schema_of(columns, 3, group=2)
    table = table_of(Rows(columns), HeadId(3, 7, "k"), schema)
    assert table.schema == schema
    found = table.to_pydict()
    assert found["sliding_window"] == [None, 8]
    assert found["token_id"] == [7, None]
    assert found["lse"] == [None, 2.5]
    assert found["received"] == [None, [0.5, 0.25]]
    assert (found["layer"], found["head"]) == ([3, 3], [7, 7])


# the names in the metadata


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Queries with attention columns, of a windowed layer."""
    return write_head(tmp_path, HeadId(0, 0, "q"), attention_rows(12, window=8))


@pytest.mark.parametrize("name", ["sliding_window", "mass_by_distance"])
def test_a_damaged_name_is_refused(file: Path, name: str) -> None:
    """Every bit of the name in the schema of the footer."""
    right = file.read_bytes()
    start = len(right) - 8 - int.from_bytes(right[-8:-4], "little")
    place = right.index(name.encode(), start)
    for number in range(8 * len(name)):
        wrong = bytearray(right)
        wrong[place + number // 8] ^= 1 << number % 8
        file.write_bytes(wrong)
        refusal(file, examples="if present", columns=COLUMNS)


@pytest.mark.parametrize(
    "record",
    [{"columns": ["lse"], "sha256": "0" * 64}, {"columns": ["lse"]}, [], None, b"{", b"\xff"],
    ids=repr,
)
def test_a_damaged_record_is_refused(file: Path, record: Any) -> None:
    value = record if isinstance(record, bytes) else json.dumps(record).encode()
    pq.write_table(pq.read_table(file).replace_schema_metadata({RECORD: value}), file)
    assert "the names of its columns in its metadata are damaged" in refusal(file)


def test_a_column_that_was_removed_is_named_with_the_way_out(file: Path) -> None:
    table = pq.read_table(file).drop_columns(["sliding_window"])
    pq.write_table(table, file)  # keeps the metadata
    message = refusal(file)
    assert "has no column 'sliding_window', which its metadata lists" in message
    assert f"write the file without its metadata entry '{RECORD}'" in message
    pq.write_table(table.replace_schema_metadata(None), file)
    assert not read(file).window_recorded
    pq.write_table(table.append_column("mine", table["bucket"]).replace_schema_metadata(), file)
    assert len(read(file)) == 12  # columns can be added
