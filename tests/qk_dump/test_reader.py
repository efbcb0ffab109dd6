"""Reading a head: what is accepted, which rows are taken, and in how much memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from head_files import (
    FLOATS,
    INTEGERS,
    SHAPES,
    columns,
    lists,
    read,
    refusal,
    save,
    vectors_of,
)
from qk_dump.head_counts import count_buckets, count_rows, vector_width
from qk_dump.reader import subsample
from qk_toolkit.errors import DumpError

# what is accepted


@pytest.mark.parametrize("kind", INTEGERS)
def test_any_integer_type_reads_the_same(file: Path, kind: str) -> None:
    expected = [0, 5, 100, 7, 7, 3]
    column = pa.array(expected, kind)
    rows = read(save(file, bucket=column, example_id=column, position=column))
    assert rows.bucket.tolist() == rows.position.tolist() == expected
    assert rows.example_id is not None
    assert rows.example_id.tolist() == expected
    assert rows.bucket.dtype == rows.example_id.dtype == np.int64
    assert rows.position.dtype == np.float64


@pytest.mark.parametrize("kind", FLOATS)
def test_positions_may_be_floats(file: Path, kind: str) -> None:
    expected = np.array([0, 0.5, 3, 2.25, 100, 7])
    rows = read(save(file, position=pa.array(expected.astype(kind))))
    np.testing.assert_array_equal(rows.position, expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", FLOATS)
def test_vectors_of_every_accepted_type_read_the_same(file: Path, shape: str, kind: str) -> None:
    n = 10_000
    vector = lists(vectors_of(n)).cast(SHAPES[shape](pa.type_for_alias(kind)))
    rows = read(save(file, n, vector=vector, group=3_333))

    np.testing.assert_array_equal(rows.vectors, vectors_of(n))
    assert rows.vectors.dtype == (np.float64 if kind == "float64" else np.float32)
    assert rows.vectors.flags.c_contiguous
    assert rows.width == 3
    assert len(rows) == n


def test_float64_vectors_keep_every_bit(file: Path) -> None:
    values = np.random.default_rng(0).standard_normal((6, 3))
    vector = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3)
    np.testing.assert_array_equal(read(save(file, vector=vector)).vectors, values)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (pa.array([128] * 6, "int32"), 128),
        (pa.array([128] * 6, "uint16"), 128),
        (pa.array([2**40] * 6, "int64"), 2**40),
        (pa.array([None] * 6, "int32"), None),
        (pa.nulls(6), None),
    ],
    ids=["int32", "uint16", "int64", "all null", "null type"],
)
def test_the_window_of_a_head_is_read(file: Path, window: pa.Array, expected: int | None) -> None:
    rows = read(save(file, sliding_window=window))
    assert rows.sliding_window == expected
    assert rows.window_recorded


def test_no_window_column_is_full_attention_and_known_as_unrecorded(file: Path) -> None:
    rows = read(save(file, without="sliding_window"))
    assert rows.sliding_window is None
    assert not rows.window_recorded


def test_other_columns_and_their_content_do_not_matter(file: Path) -> None:
    rows = read(save(file, token_str=pa.array([None, "a", "b", "c", "d", "e"])))
    assert len(rows) == 6


def test_example_ids_are_left_out_where_not_asked_for(file: Path) -> None:
    broken = pa.array([None] * 6, "string")
    assert read(save(file, example_id=broken), with_examples=False).example_id is None


def test_a_single_example_needs_no_example_id(file: Path) -> None:
    rows = read(save(file, without="example_id"), single_example=True)
    assert rows.example_id is not None
    assert rows.example_id.tolist() == [0] * 6


def test_a_single_example_ignores_the_ids_there_are(file: Path) -> None:
    rows = read(save(file), single_example=True)
    assert rows.example_id is not None
    assert set(rows.example_id.tolist()) == {0}


def test_large_finite_values_are_no_infinities(file: Path) -> None:
    values = np.full((6, 3), 1e30)
    values[2] = -3e38
    rows = read(save(file, vector=lists(values)))
    np.testing.assert_array_equal(rows.vectors, values.astype(np.float32))


def test_shards_are_read_as_one_in_the_order_given(tmp_path: Path) -> None:
    first = save(tmp_path / "a.parquet", 5, position=pa.array([9] * 5))
    second = save(tmp_path / "b.parquet", 4)

    rows = read(first, second)

    assert rows.position.tolist() == [9, 9, 9, 9, 9, 0, 1, 2, 3]
    np.testing.assert_array_equal(rows.vectors, np.vstack([vectors_of(5), vectors_of(4)]))
    assert rows.vectors.flags.c_contiguous
    assert count_rows([first, second]) == 9


@pytest.mark.parametrize("kinds", [("float32", "float64"), ("float64", "float16")])
def test_shards_of_different_float_width_lose_nothing(
    tmp_path: Path, kinds: tuple[str, str]
) -> None:
    files, parts = [], []
    for kind in kinds:
        values = np.random.default_rng(1).standard_normal((4, 3)).astype(kind)
        vector = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3)
        files.append(save(tmp_path / f"{kind}.parquet", 4, vector=vector))
        parts.append(values.astype(np.float64))

    rows = read(*files)

    assert rows.vectors.dtype == np.float64
    np.testing.assert_array_equal(rows.vectors, np.vstack(parts))


def test_shards_may_differ_in_every_other_accepted_type(tmp_path: Path) -> None:
    plain = save(tmp_path / "a.parquet", without="sliding_window")
    other = save(
        tmp_path / "b.parquet",
        bucket=pa.array([200] * 6, "uint8"),
        position=pa.array([0.5] * 6),
        vector=lists(vectors_of(6)).cast(pa.list_(pa.float16(), 3)),
        sliding_window=pa.nulls(6),
    )

    rows = read(plain, other)

    assert rows.bucket.tolist()[6:] == [200] * 6
    assert rows.position.tolist()[6:] == [0.5] * 6
    np.testing.assert_array_equal(rows.vectors[6:], vectors_of(6))
    assert rows.window_recorded
    assert read(other, plain).window_recorded


@pytest.mark.parametrize("order", [1, -1])
def test_a_shard_without_rows_beside_one_with_rows_adds_nothing(tmp_path: Path, order: int) -> None:
    files = [save(tmp_path / "a.parquet", 0), save(tmp_path / "b.parquet", 5)]
    np.testing.assert_array_equal(read(*files[::order]).vectors, vectors_of(5))


# subsampling


@pytest.mark.parametrize("size", [1, 5, 19_999])
@pytest.mark.parametrize("group", [700, 8192, 20_000])
def test_a_subsample_is_the_chosen_rows_in_file_order(file: Path, size: int, group: int) -> None:
    n = 20_000
    save(file, n, group=group, bucket=pa.array(np.arange(n)))

    rows = read(file, max_rows=size, seed=11)

    chosen = sorted(np.random.default_rng(11).choice(n, size, replace=False))
    assert rows.bucket.tolist() == chosen
    np.testing.assert_array_equal(rows.vectors, vectors_of(n)[chosen])
    np.testing.assert_array_equal(rows.position, np.array(chosen) % 100)
    np.testing.assert_array_equal(rows.example_id, np.array(chosen) // 3 % 100)
    assert rows.vectors.flags.c_contiguous


@pytest.mark.parametrize("max_rows", [6, 7])
def test_a_file_that_is_not_too_long_is_taken_whole(file: Path, max_rows: int) -> None:
    np.testing.assert_array_equal(read(save(file), max_rows=max_rows).vectors, vectors_of(6))
    assert subsample(6, max_rows, seed=0) is None


@settings(max_examples=60, deadline=None)
@given(
    shards=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    size=st.integers(1, 400),
    group=st.integers(1, 150),
    seed=st.integers(0, 2**32),
)
def test_shards_and_row_groups_never_change_the_subsample(
    shards: list[int], size: int, group: int, seed: int
) -> None:
    n = sum(shards)
    starts = np.cumsum([0, *shards])
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for start, stop in pairwise(starts):
            changes = {
                "bucket": pa.array(np.arange(start, stop)),
                "vector": lists(vectors_of(n)[start:stop]),
            }
            path = Path(folder) / f"{start:05d}.parquet"
            files.append(save(path, int(stop - start), group=group, **changes))
        rows = read(*files, max_rows=size, seed=seed)

    chosen = np.arange(n)
    if size < n:
        chosen = np.sort(np.random.default_rng(seed).choice(n, size, replace=False))
    np.testing.assert_array_equal(rows.bucket, chosen)
    np.testing.assert_array_equal(rows.vectors, vectors_of(n)[chosen])


def test_rows_that_are_not_chosen_are_checked_as_well(file: Path) -> None:
    values = vectors_of(1000)
    (unchosen,) = set(range(1000)) - set(
        np.random.default_rng(0).choice(1000, 999, replace=False).tolist()
    )
    values[unchosen] = np.nan
    save(file, 1000, vector=lists(values))
    assert f"row {unchosen}:" in refusal(file, max_rows=999)


MEASURE = """
import sys, tracemalloc
from pathlib import Path
import pyarrow
from qk_dump.reader import read_head
tracemalloc.start()
rows = read_head([Path(sys.argv[1])], max_rows=1000, seed=0, with_examples=True)
assert len(rows) == 1000
print(pyarrow.default_memory_pool().max_memory() + tracemalloc.get_traced_memory()[1])
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    sizes = (50_000, 400_000)
    for n in sizes:
        values = np.random.default_rng(0).standard_normal(n * 32, np.float32)
        vector = pa.FixedSizeListArray.from_arrays(pa.array(values), 32)
        path = save(tmp_path / f"{n}.parquet", n, group=n, vector=vector)
        assert pq.read_metadata(path).num_row_groups == 1
        measured = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
        )
        peaks.append(int(measured.stdout))
    added = (sizes[1] - sizes[0]) * 32 * 4
    assert peaks[1] - peaks[0] < 0.1 * added


@pytest.mark.parametrize(
    ("column", "read_back"),
    [
        (pa.array([7, 7, 8, 9, 2**62, 0]), [7, 7, 8, 9, 2**62, 0]),
        (pa.array([7, 7, 8, 9, 9, 0], pa.uint8()), [7, 7, 8, 9, 9, 0]),
        (pa.array([7, None, 8, 9, 9, 0]), None),
        (pa.array([7, 7, 8, 9, 9, 2**63], pa.uint64()), None),
        (pa.array([0.5] * 6), None),
        (pa.array(["a"] * 6), None),
        (None, None),
    ],
)
def test_examples_are_read_if_present_and_usable(
    file: Path, column: pa.Array | None, read_back: list[int] | None
) -> None:
    if column is None:
        save(file, without="example_id")
    else:
        save(file, example_id=column)
    found = read(file, with_examples="if present").example_id
    assert (None if found is None else found.tolist()) == read_back
    if read_back:
        assert read(file, max_rows=3, with_examples="if present").example_id is not None


@pytest.mark.parametrize("with_examples", ["if present", True])
def test_negative_examples_are_refused(file: Path, with_examples: Any) -> None:
    save(file, example_id=pa.array([7, 7, 8, -9, 0, 0]))
    with pytest.raises(DumpError, match="row 3: negative example_id"):
        read(file, with_examples=with_examples)
    assert read(file, with_examples=with_examples, single_example=True) is not None


@pytest.mark.parametrize("order", [1, -1])
def test_examples_that_one_shard_lacks_are_not_known(tmp_path: Path, order: int) -> None:
    shards = [
        save(tmp_path / "a.parquet"),
        save(tmp_path / "b.parquet", without="example_id"),
        save(tmp_path / "c.parquet"),
    ][::order]
    assert read(*shards, with_examples="if present").example_id is None
    assert read(shards[0], with_examples="if present").example_id is not None


# what the footers tell


def test_the_width_is_known_from_the_footer(file: Path) -> None:
    assert vector_width([save(file, 20, d=5)]) == 5


@pytest.mark.parametrize("kind", [pa.list_(pa.float16(), 4), pa.large_list(pa.float64())])
def test_the_width_is_known_for_every_list_type(file: Path, kind: pa.DataType) -> None:
    assert vector_width([save(file, 20, d=4, vector=lists(vectors_of(20, 4), kind))]) == 4


def test_the_width_is_not_that_of_a_column_with_a_similar_name(file: Path) -> None:
    table = pa.table({"vector_norm": pa.array([1.0] * 6), **columns(d=5)})
    pq.write_table(table, file)
    assert vector_width([file]) == 5


def test_the_width_of_a_head_without_rows_is_refused_not_guessed(file: Path) -> None:
    with pytest.raises(DumpError):
        vector_width([save(file, 0)])


def test_the_width_of_a_file_without_row_groups_is_refused(file: Path) -> None:
    pq.ParquetWriter(file, pa.table(columns()).schema).close()
    with pytest.raises(DumpError):
        vector_width([file])


def test_the_width_of_a_file_without_vectors_is_refused(file: Path) -> None:
    with pytest.raises(DumpError, match="no vectors"):
        vector_width([save(file, without="vector")])


def test_rows_are_counted_from_the_footers_alone(tmp_path: Path) -> None:
    files = [save(tmp_path / f"{n}.parquet", n) for n in (3, 0, 4)]
    content = bytearray(files[2].read_bytes())
    content[4:40] = bytes(36)
    files[2].write_bytes(content)
    assert count_rows(files) == 7


@pytest.mark.parametrize(("then", "now"), [(50, 40), (50, 60)])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, then: int, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "data.parquet", then)

    def count_then_change(files: object) -> int:  # no real writer can be made to hit this moment
        save(path, now)
        return then

    monkeypatch.setattr("qk_dump.reader.count_rows", count_then_change)
    assert "changed while it was read" in refusal(path)


def test_the_last_position_is_known_whatever_is_taken(file: Path) -> None:
    save(file, 5000, position=pa.array(np.arange(5000)))
    assert read(file, max_rows=3).position_max == 4999


@pytest.mark.parametrize("name", ["bucket", "example_id"])
def test_a_number_beyond_our_integers_is_refused(file: Path, name: str) -> None:
    save(file, **{name: pa.array([0, 1, 2**63, 3, 4, 5], pa.uint64())})
    assert f"row 2: {name} is too large" in refusal(file)


def test_buckets_are_counted(tmp_path: Path) -> None:
    files = [
        save(tmp_path / f"{low}.parquet", 100, group=7, bucket=pa.array(np.arange(100) // 10 + low))
        for low in (3, 8)
    ]
    assert count_buckets(files[:1], 50) == 10
    assert count_buckets(files, 50) == 15
    assert count_buckets(files, 9) == 10  # more than wanted: the second file is not read
    assert count_buckets([save(files[0], 0)], 50) == 0


def test_the_widest_vector_of_all_shards_counts(file: Path) -> None:
    other = save(file.with_name("other.parquet"), 20, d=9)
    assert vector_width([save(file, 20, d=5), other]) == 9


@pytest.mark.parametrize("order", [1, -1])
def test_a_subsample_of_shards_of_different_float_width_loses_nothing(
    tmp_path: Path, order: int
) -> None:
    wide = vectors_of(40) + 1e-9
    shards = [
        save(tmp_path / "narrow.parquet", 40),
        save(tmp_path / "wide.parquet", 40, vector=pa.array(wide.tolist(), pa.list_(pa.float64()))),
    ][::order]
    whole = read(*shards).vectors
    assert whole.dtype == np.float64
    np.testing.assert_array_equal(read(*shards, max_rows=30).vectors, whole[subsample(80, 30, 0)])
