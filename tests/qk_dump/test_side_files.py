"""`examples.parquet` and `tokens.parquet`."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qk_dump.heads import TOKENS_FILE
from qk_dump.side_files import Example, read_examples, read_tokens, write_examples, write_tokens
from qk_toolkit.errors import ConfigError, DumpError


def written(folder, ids):
    write_examples(folder, [Example(i, original, i + 10, "") for i, original in enumerate(ids)])
    return read_examples(folder)


def test_examples_come_back_by_their_number(tmp_path):
    write_examples(tmp_path, [Example(7, "b", 3, "x"), Example(2, "a", 0, "y")])
    table = read_examples(tmp_path)
    assert table.schema.types == [pa.int32(), pa.string(), pa.int32()]
    assert table.to_pydict() == {
        "example_id": [2, 7],
        "original_id": ["a", "b"],
        "num_tokens": [0, 3],
    }


@pytest.mark.parametrize(
    ("ids", "kind", "stored"),
    [
        ([3, None, -(2**63)], pa.int64(), None),
        ([True, None, False], pa.bool_(), None),
        ([1.5, None, float("inf")], pa.float64(), None),
        (["a", None, ""], pa.string(), None),
        ([None, None], pa.string(), None),
        ([], pa.string(), None),
        ([1, 2**63], pa.string(), ["1", "9223372036854775808"]),
        ([1, 1.5], pa.string(), ["1", "1.5"]),
        ([1, True], pa.string(), ["1", "true"]),
        ([1, "é", None], pa.string(), ["1", '"é"', None]),
        ([{"a": [1]}, None], pa.string(), ['{"a": [1]}', None]),
        ([(1, "x")], pa.string(), ['[1, "x"]']),
        ([np.int32(4), np.int64(5)], pa.int64(), [4, 5]),
        ([np.str_("x")], pa.string(), ["x"]),
        ([datetime.date(2024, 1, 2)], pa.string(), ["2024-01-02"]),
        ([b"raw"], pa.string(), ["b'raw'"]),
        (["caf\udce9"], pa.string(), ["caf\\udce9"]),
    ],
    ids=str,
)
def test_ids_keep_a_simple_type_or_become_text(tmp_path, ids, kind, stored):
    column = written(tmp_path, ids)["original_id"]
    assert column.type == kind
    assert column.to_pylist() == (ids if stored is None else stored)


@pytest.mark.parametrize("number", [-1, 2**31 - 1, 2**40])
def test_a_number_that_does_not_fit_its_column_is_refused(number):
    Example(2**31 - 2, "last", 1, "")
    with pytest.raises(ConfigError, match="max_samples"):
        Example(number, "x", 1, "")


TEXTS = {7: " the", 0: "<s>", 128_000: "\\xe2\\x80", 9: ""}


def test_what_is_written_is_read(tmp_path):
    assert read_tokens(tmp_path) is None
    write_tokens(tmp_path, TEXTS | {3: "\udce2"})
    assert read_tokens(tmp_path) == TEXTS | {3: "\\udce2"}  # UTF-8 has no lone surrogates
    table = pq.read_table(tmp_path / TOKENS_FILE)
    assert table.schema == pa.schema([("id", pa.int32()), ("text", pa.string())])
    assert table["id"].to_pylist() == sorted([*TEXTS, 3])


WRONG = {
    "junk": (b"junk", "bytes"),
    "no text": ({"id": [1]}, "no column 'text'"),
    "ids of floats": ({"id": [1.5], "text": ["a"]}, "no column 'id', or one of another type"),
    "texts of numbers": ({"id": [1], "text": [2]}, "no column 'text', or one of another type"),
    "a null": ({"id": [1, None], "text": ["a", "b"]}, "has a null"),
    "an id twice": ({"id": [1, 1], "text": ["a", "b"]}, "an id twice, or a negative one"),
    "a negative id": ({"id": [-1], "text": ["a"]}, "an id twice, or a negative one"),
}


@pytest.mark.parametrize(("content", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_with_the_way_out(tmp_path, content, reason):
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
