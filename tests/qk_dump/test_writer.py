"""Writing a head: the file, its columns and their names, what becomes null."""

import json
from contextlib import suppress
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumps import head_rows, write_columns
from head_files import attention_rows, read, refusal
from qk_dump import writer
from qk_dump.columns import COLUMNS, schema_of, table_of
from qk_dump.heads import HeadId
from qk_dump.reader import read_head
from qk_dump.record import RECORD, FileRecord
from qk_dump.rows import Rows
from qk_dump.writer import HeadWriter, write_head
from qk_toolkit.errors import OutputError

HEAD = HeadId(3, 7, "k")
NAMES = ("bucket", "example_id", "position", "vector", "sliding_window")


def rows(dtype=np.float32, **options):
    content = head_rows(**options)
    content["vectors"] = content["vectors"].astype(dtype)
    return content


def test_rows_that_cannot_be_stored_write_nothing(tmp_path):
    """Columns of other lengths, and a number too large for its column."""
    content = rows(n=5)
    for name, values in (("bucket", [0] * 4), ("position", np.arange(5) + 2**32)):
        with pytest.raises((ValueError, OverflowError)):
            write_columns(tmp_path, HEAD, **{**content, name: values})
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / HEAD.folder / "data.parquet").mkdir(parents=True)
    with pytest.raises(OutputError) as caught:
        write_columns(tmp_path, HEAD, **rows(n=5))
    assert str(tmp_path / HEAD.folder / "data.parquet") in str(caught.value)
    assert [file.name for file in (tmp_path / HEAD.folder).iterdir()] == ["data.parquet"]


def head_table(n):
    ids = pa.array(np.arange(n) // 3, pa.int32())
    vectors = pa.array(np.random.default_rng(0).standard_normal(2 * n).astype(np.float32))
    columns = [ids, ids, ids, pa.FixedSizeListArray.from_arrays(vectors, 2)]
    columns += [pa.nulls(n, pa.int32()), ids, ids]
    return pa.table(columns, schema=schema_of(NAMES, 2))


@settings(max_examples=20)
@given(n=st.integers(0, 60), cuts=st.lists(st.integers(0, 60)), group=st.integers(1, 20))
def test_where_rows_are_cut_does_not_show_in_the_file(tmp_path_factory, n, cuts, group):
    table = head_table(n)
    place = tmp_path_factory.mktemp("head")
    ends = sorted({0, n, *(cut for cut in cuts if cut < n)})
    with mock.patch.object(writer, "ROWS_PER_GROUP", group), mock.patch("os.fsync"):
        with HeadWriter(place / "whole", HEAD, table.schema, "id") as whole:
            whole.write(table)
        with HeadWriter(place / "cut", HEAD, table.schema, "id") as pieces:
            for start, end in pairwise(ends):
                pieces.write(table.slice(start, end - start))
    assert pieces.path.read_bytes() == whole.path.read_bytes()
    assert pieces.rows == n
    assert pq.read_table(pieces.path).equals(table)
    metadata = pq.read_metadata(pieces.path).metadata
    assert FileRecord.of(metadata) == FileRecord("id", "l03h07k", n, table.schema.names)


def test_a_failure_between_rows_leaves_no_file(tmp_path):
    table = head_table(5)
    with suppress(KeyboardInterrupt), HeadWriter(tmp_path, HEAD, table.schema) as pieces:
        pieces.write(table)
        raise KeyboardInterrupt
    assert [*tmp_path.rglob("*")] == [tmp_path / HEAD.folder]


@pytest.mark.parametrize("view", [np.asfortranarray, lambda v: v[:, ::2], lambda v: v[::-1]])
def test_the_memory_order_of_the_vectors_does_not_matter(tmp_path, view):
    vectors = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    path = write_columns(
        tmp_path, HEAD, bucket=[0] * 4, example_id=[0] * 4, position=range(4), vectors=vectors
    )
    read = read_head([path])
    np.testing.assert_array_equal(read.vectors, vectors)


BASE = ("bucket", "example_id", "position", "vector", "sliding_window")


def test_the_schema_is_the_contract():
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


def test_what_is_not_known_becomes_null():
    columns = {"sliding_window": np.array([-1, 8]), "token_id": np.array([7, -1])}
    columns |= {"lse": np.array([np.nan, 2.5]), "vector": np.ones((2, 3))}
    columns["received"] = np.array([[0.5, np.nan], [0.5, 0.25]])
    schema = schema_of(columns, 3, group=2)
    table = table_of(Rows(columns), 3, schema, head=7)
    assert table.schema == schema
    found = table.to_pydict()
    assert found["sliding_window"] == [None, 8]
    assert found["token_id"] == [7, None]
    assert found["lse"] == [None, 2.5]
    assert found["received"] == [None, [0.5, 0.25]]
    assert (found["layer"], found["head"]) == ([3, 3], [7, 7])


# the record in the metadata


@pytest.fixture
def file(tmp_path):
    """Queries with attention columns, of a windowed layer."""
    return write_head(tmp_path, HeadId(0, 0, "q"), attention_rows(12, window=8))


@pytest.mark.parametrize("name", ["sliding_window", "mass_by_distance"])
def test_a_damaged_name_is_refused(file, name):
    """Every bit of the name in the schema of the footer."""
    right = file.read_bytes()
    start = len(right) - 8 - int.from_bytes(right[-8:-4], "little")
    place = right.index(name.encode(), start)
    for number in range(8 * len(name)):
        wrong = bytearray(right)
        wrong[place + number // 8] ^= 1 << number % 8
        file.write_bytes(wrong)
        refusal(file, examples="if present", columns=COLUMNS)


RECORDED = {"capture": None, "head": "l00h00q", "rows": 12, "columns": ["lse"]}


@pytest.mark.parametrize(
    "record",
    [{**RECORDED, "sha256": "0" * 64}, RECORDED, [], None, b"{", b"\xff"],
    ids=repr,
)
def test_a_damaged_record_is_refused(file, record):
    value = record if isinstance(record, bytes) else json.dumps(record).encode()
    pq.write_table(pq.read_table(file).replace_schema_metadata({RECORD: value}), file)
    assert "its record in the metadata is damaged" in refusal(file)


def test_a_column_that_was_removed_is_named_with_the_way_out(file):
    table = pq.read_table(file).drop_columns(["sliding_window"])
    record = pq.read_metadata(file).metadata[RECORD.encode()]
    pq.write_table(table.replace_schema_metadata({RECORD: record}), file)
    message = refusal(file)
    assert "has no column 'sliding_window', which its metadata lists" in message
    assert f"write the file without its metadata entry '{RECORD}'" in message
    pq.write_table(table.replace_schema_metadata(None), file)
    assert not read(file).window_recorded
    pq.write_table(table.append_column("mine", table["bucket"]).replace_schema_metadata(), file)
    assert len(read(file)) == 12  # columns can be added


def test_lost_rows_of_a_file_are_told(file):
    record = pq.read_metadata(file).metadata[RECORD.encode()]
    pq.write_table(pq.read_table(file).slice(1).replace_schema_metadata({RECORD: record}), file)
    assert "has 11 rows, its metadata says 12" in refusal(file)


ROWS = Rows(
    {
        "position": np.arange(4),
        "lse": np.array([0.5, 1, 2, 3], np.float32),
        "vector": np.arange(8.0).reshape(4, 2),
    }
)


def test_rows_have_one_length():
    assert len(ROWS) == 4
    assert len(Rows({})) == 0
    with pytest.raises(ValueError, match="'bucket': 3"):
        ROWS.with_columns({"bucket": np.arange(3)})


def test_a_column_that_a_part_lacks_is_unknown_there():
    one = ROWS[:2]
    other = Rows({"position": np.array([9]), "token_id": np.array([3], np.int32)})
    joined = Rows.joined([one, other, one])
    assert joined["position"].tolist() == [0, 1, 9, 0, 1]
    np.testing.assert_array_equal(joined["lse"], np.array([0.5, 1, np.nan, 0.5, 1], np.float32))
    assert joined["token_id"].tolist() == [-1, -1, 3, -1, -1]
    assert np.isnan(joined["vector"][2]).all()
    assert {name: joined[name].dtype for name in ("lse", "token_id")} == {
        "lse": np.float32,
        "token_id": np.int32,
    }
    assert Rows.joined([one]) is one
