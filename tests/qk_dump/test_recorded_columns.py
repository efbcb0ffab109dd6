"""Names of columns in the metadata of a file, and a file whose columns are others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from attention_dumps import Layer, make_attention_dump
from captures import make_capture, optional_of
from head_files import read, refusal
from qk_dump.attention_columns import ATTENTION_TYPES
from qk_dump.recorded_columns import RECORD

NAMES = ["bucket", "example_id", "position", "vector", "sliding_window"]


def recorded(file: Path) -> Any:
    return json.loads(pq.read_metadata(file).metadata[RECORD.encode()])["columns"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Queries of a windowed layer, without dump.json."""
    layer = Layer(window=8)
    root = make_attention_dump(tmp_path, texts=2, length=12, width=2, layer=layer)
    (root / "dump.json").unlink()
    return root / "l00h00q" / "data.parquet"


def test_every_written_file_has_the_names(file: Path, tmp_path: Path) -> None:
    assert recorded(file) == [*NAMES, *ATTENTION_TYPES, "token_id", "layer", "head"]
    capture = make_capture(tmp_path / "capture", 2)
    files = sorted(capture.glob("**/l*/data.parquet"))
    assert len(files) == 20
    for one in files:
        head = one.parent.name
        optional = optional_of(int(head[1:3]), head[-1])
        assert set(recorded(one)) == {*NAMES, *optional, "layer", "head"}


@pytest.mark.parametrize(
    "name",
    ["sliding_window", "lse", "mass_by_distance", "induction_keys", "token_id", "example_id"],
)
def test_a_damaged_name_is_refused(file: Path, name: str) -> None:
    """Every bit of the name in the schema of the footer."""
    right = file.read_bytes()
    start = len(right) - 8 - int.from_bytes(right[-8:-4], "little")
    place = right.index(name.encode(), start)
    for number in range(8 * len(name)):
        wrong = bytearray(right)
        wrong[place + number // 8] ^= 1 << number % 8
        file.write_bytes(wrong)
        refusal(file, with_examples="if present", with_attention=True)


def rewritten(file: Path, record: Any) -> Path:
    table = pq.read_table(file)
    value = record if isinstance(record, bytes) else json.dumps(record).encode()
    pq.write_table(table.replace_schema_metadata({RECORD: value}), file)
    return file


@pytest.mark.parametrize(
    "record",
    [
        {"columns": NAMES, "sha256": "0" * 64},
        {"columns": NAMES},
        {"sha256": "0" * 64},
        {"columns": None, "sha256": "0" * 64},
        [],
        None,
        b"{",
        b"\xff",
        b"[" * 5000,
    ],
    ids=lambda record: repr(record)[:20],
)
def test_a_damaged_record_is_refused(file: Path, record: Any) -> None:
    message = refusal(rewritten(file, record))
    assert "the names of its columns in its metadata are damaged" in message


def test_a_column_that_was_removed_is_named_with_the_way_out(file: Path) -> None:
    table = pq.read_table(file).drop_columns(["sliding_window"])
    pq.write_table(table, file)  # keeps the metadata
    message = refusal(file)
    assert "has no column 'sliding_window', which its metadata lists" in message
    assert f"write the file without its metadata entry '{RECORD}'" in message
    pq.write_table(table.replace_schema_metadata(None), file)
    assert not read(file).window_recorded


def test_added_columns_are_no_damage(file: Path) -> None:
    table = pq.read_table(file)
    pq.write_table(table.append_column("mine", table["bucket"]), file)
    assert read(file, with_attention=True).attention is not None
