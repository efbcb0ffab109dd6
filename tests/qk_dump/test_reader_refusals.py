"""Reading a head: what is refused, with file and row, before anything is sized by its claims."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dumps import head_rows, write_columns
from head_files import FLOATS, LATE, SHAPES, columns, lists, read, refusal, save, vectors_of
from odd_files import NOT_REGULAR, claim, claim_type, replace_by
from qk_dump.head_counts import count_buckets, count_rows, vector_width
from qk_dump.heads import HeadId
from qk_toolkit.errors import DumpError

# files that are no Parquet


def test_a_corrupted_page_is_refused(tmp_path):
    path = write_columns(tmp_path, HeadId(0, 0, "k"), **head_rows(n=2000))
    group = pq.read_metadata(path).row_group(0)
    places = [group.column(index) for index in range(group.num_columns)]
    (vector,) = (place for place in places if place.path_in_schema.startswith("vector"))
    middle = vector.data_page_offset + vector.total_compressed_size // 2
    content = bytearray(path.read_bytes())
    content[middle] ^= 0xFF
    path.write_bytes(content)

    refusal(path)


# columns that are not as agreed


@pytest.mark.parametrize("name", ["bucket", "position", "vector"])
def test_a_missing_column_is_named_among_those_found(file, name):
    told = refusal(save(file, without=name))
    assert f"no column '{name}' (found: " in told
    assert "example_id" in told


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("bucket", pa.array([0.0] * 6)),
        ("example_id", pa.array(["a"] * 6)),
        ("position", pa.array(["0"] * 6)),
        ("vector", pa.array([0.0] * 6)),
        ("vector", pa.array([[0]] * 6)),
        ("sliding_window", pa.array([128.0] * 6)),
    ],
    ids=["bucket", "example_id", "position", "vector-number", "vector-integers", "sliding_window"],
)
def test_a_column_of_the_wrong_type_is_refused(file, name, column):
    message = refusal(save(file, **{name: column}))
    assert f"column '{name}' is " in message
    assert "expected " in message


# rows that cannot be used


def with_row(n, row, value, usual=1):
    content = [usual] * n
    content[row] = value
    return content


@pytest.mark.parametrize(
    ("name", "value", "kind", "problem"),
    [
        ("bucket", None, "int32", "bucket is null"),
        ("bucket", -1, "int32", "bucket is negative"),
        ("example_id", None, "int32", "example_id is null"),
        ("example_id", -9, "int64", "example_id is negative"),
        ("position", None, "int32", "position is null"),
        ("position", -1, "int64", "impossible value in position"),
        ("position", -0.5, "float32", "impossible value in position"),
        ("position", float("nan"), "float64", "position is not finite"),
        ("position", float("inf"), "float64", "position is not finite"),
    ],
)
def test_a_bad_number_is_refused_with_its_row(file, name, value, kind, problem):
    for row in (0, LATE):
        save(file, 10_000, **{name: pa.array(with_row(10_000, row, value), kind)})
        assert f"row {row}: {problem}" in refusal(file)


@pytest.mark.parametrize(
    ("row", "value"), [(0, np.nan), (8191, np.inf), (8192, -np.inf), (LATE, np.nan)]
)
@pytest.mark.parametrize("kind", FLOATS)
def test_nan_and_infinity_are_refused_with_their_row(file, kind, row, value):
    values = vectors_of(10_000)
    values[row, 1] = value
    vector = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1).astype(kind)), 3)
    save(file, 10_000, vector=vector, group=6_000)
    assert f"row {row}: NaN or infinity" in refusal(file)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("value", "problem"), [(None, "vector is null"), ([1.0, None, 3.0], "the vector holds a null")]
)
def test_nulls_in_vectors_are_refused_with_their_row(file, shape, value, problem):
    kind = SHAPES[shape](pa.float32())
    for row in (0, LATE):
        vector = pa.array(with_row(10_000, row, value, [1.0, 2.0, 3.0]), kind)
        assert f"row {row}: {problem}" in refusal(save(file, 10_000, vector=vector))


@pytest.mark.parametrize("odd", [[1.0], [1.0] * 4, []])
@pytest.mark.parametrize("row", [3, LATE])
def test_a_vector_of_another_width_is_refused_with_its_row(file, row, odd):
    vector = pa.array(with_row(10_000, row, odd, [1.0, 2.0, 3.0]), pa.list_(pa.float32()))
    message = refusal(save(file, 10_000, vector=vector))
    assert f"row {row}: vector has {len(odd)} values" in message
    assert "has 3" in message


@pytest.mark.parametrize(
    "second", [{"sliding_window": pa.array([64] * 6)}, {"without": "sliding_window"}, {}]
)
def test_windows_that_differ_between_shards_are_refused(tmp_path, second):
    files = [
        save(tmp_path / "a.parquet", sliding_window=pa.array([128] * 6)),
        save(tmp_path / "b.parquet", **second),
    ]
    assert "mixes sliding_window values" in refusal(*files, culprit=files[1])


READERS = (
    count_rows,
    vector_width,
    lambda files: count_buckets(files, 99),
)


def told_by_all(path, said):
    """Every reader of the file refuses it with one line."""
    assert said in refusal(path)
    for reader in READERS:
        with pytest.raises(DumpError) as caught:
            reader([path])
        assert said in str(caught.value)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("make", NOT_REGULAR.values(), ids=NOT_REGULAR)
def test_what_is_no_regular_file_is_refused_unopened(make, file):
    replace_by(make, file)
    told_by_all(file, "cannot be read (is not a regular file)")


FLIPS = """
import sys
from pathlib import Path
from qk_toolkit.errors import DumpError
from qk_dump.head_counts import count_buckets, count_rows, vector_width
from qk_dump.reader import read_head

path = Path(sys.argv[1])
good = path.read_bytes()
calls = (count_rows, vector_width, lambda files: count_buckets(files, 99))
calls += (lambda files: read_head(files, max_rows=99, examples=True),)
begin = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
for place in range(begin, len(good), 7):
    path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
    for call in calls:
        try:
            call([path])
        except DumpError as error:
            assert "\\n" not in str(error)
print("done")
"""


def test_no_bit_of_a_footer_ends_the_process_or_in_a_traceback(file):
    """One bit of every seventh byte. At some, Arrow ends the process when it reads statistics."""
    write_columns(file.parent, HeadId(0, 0, "k"), **head_rows(n=20, d=2))
    path = file.parent / "l00h00k" / "data.parquet"
    done = subprocess.run(
        [sys.executable, "-c", FLIPS, path], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr[-2000:]


def test_more_rows_than_the_file_holds_are_refused(file):
    claim(save(file, 777), 8_000, instead_of=777)
    for most in (10**6, 50):
        assert "its footer gives 8,000 rows, the file holds 777" in refusal(file, max_rows=most)
    claim(save(file, 777), 2**62, instead_of=777)  # refused unread
    told_by_all(file, f"footer gives {2**62:,} rows, the file has {file.stat().st_size:,} bytes")


@pytest.mark.parametrize("width", [2**31 - 1, 4_097])
def test_a_fixed_width_beyond_any_vector_is_refused(width, file):
    claim_type(save(file, 6), "vector", pa.list_(pa.float32(), width))
    said = f"vectors of {width:,} dimensions, at most 4,096 can be read"
    assert said in refusal(file)
    with pytest.raises(DumpError, match=said):
        vector_width([file])


@pytest.mark.parametrize(
    ("depth", "said"), [(2, "column 'vector' is list<"), (90, "schema too deeply nested")]
)
def test_nested_lists_are_refused(depth, said, file):
    kind = pa.float32()
    value = 1.0
    for _ in range(depth):
        kind, value = pa.list_(kind), [value]
    save(file, 6, vector=pa.array([value] * 6, kind))
    assert said in refusal(file)


def test_an_empty_row_group_is_passed_over(file):
    table = pa.table(columns())
    with pq.ParquetWriter(file, table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 4), table.slice(0, 0), table.slice(4)):
            writer.write_table(part)
    assert vector_width([file]) == 3
    np.testing.assert_array_equal(read(file).vectors, vectors_of(6))


def test_wide_vectors_are_read_in_smaller_batches(file):
    wide = vectors_of(3, 4_096)
    save(file, 3, vector=lists(wide))
    np.testing.assert_array_equal(read(file).vectors, wide)
    save(file, 3, vector=lists(vectors_of(3, 4_097)))
    assert "at most 4,096 can be read" in refusal(file)
    with pytest.raises(DumpError, match="at most 4,096 can be read"):
        vector_width([file])
