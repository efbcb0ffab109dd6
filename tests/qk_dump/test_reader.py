"""Reading a head: what is accepted, which rows are taken, and in how much memory."""

import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumps import add_attended, head_rows, make_dump, write_columns
from head_files import (
    FLOATS,
    INTEGERS,
    SHAPES,
    attention_rows,
    lists,
    read,
    refusal,
    save,
    vectors_of,
)
from qk_dump.columns import ATTENTION_COLUMNS, COLUMNS
from qk_dump.head_counts import count_buckets, count_rows
from qk_dump.heads import HeadId
from qk_dump.reader import read_attended, subsample
from qk_dump.source import open_dump
from qk_dump.writer import write_head
from qk_toolkit.errors import DumpError

# what is accepted


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS])
def test_any_type_of_number_reads_the_same(file, kind):
    place = np.array([0, 0.5, 100, 7, 2.25, 3]).astype(kind)
    number = pa.array([0, 5, 100, 7, 7, 3], kind if "int" in kind else "int64")
    rows = read(save(file, position=pa.array(place), bucket=number, example_id=number))
    assert rows.position.tolist() == place.tolist()
    assert rows.bucket.tolist() == rows.example_id.tolist() == number.to_pylist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", FLOATS)
def test_vectors_of_every_accepted_type_read_the_same(file, shape, kind):
    n = 10_000
    vector = lists(vectors_of(n)).cast(SHAPES[shape](pa.type_for_alias(kind)))
    rows = read(save(file, n, vector=vector, group=3_333))

    np.testing.assert_array_equal(rows.vectors, vectors_of(n))
    assert rows.vectors.dtype == (np.float64 if kind == "float64" else np.float32)
    assert rows.vectors.flags.c_contiguous
    assert rows.width == 3
    assert len(rows) == n


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
def test_the_window_of_a_head_is_read(file, window, expected):
    rows = read(save(file, sliding_window=window))
    assert rows.window == expected
    assert rows.window_recorded


def test_shards_are_read_as_one_in_the_order_given(tmp_path):
    first = save(tmp_path / "a.parquet", 5, position=pa.array([9, 8, 7, 9, 8]))
    second = save(tmp_path / "b.parquet", 4)

    rows = read(first, second)

    assert rows.position.tolist() == [9, 8, 7, 9, 8, 0, 1, 2, 3]
    np.testing.assert_array_equal(rows.vectors, np.vstack([vectors_of(5), vectors_of(4)]))
    assert rows.vectors.flags.c_contiguous
    assert count_rows([first, second]) == 9


# subsampling


@settings(max_examples=40)
@given(
    shards=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    size=st.integers(1, 400),
    group=st.integers(1, 150),
    seed=st.integers(0, 2**32),
)
def test_shards_and_row_groups_never_change_the_subsample(shards, size, group, seed):
    n = sum(shards)
    starts = np.cumsum([0, *shards])
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for start, stop in pairwise(starts):
            changes = {
                "bucket": pa.array(np.arange(start, stop)),
                "position": pa.array(np.arange(start, stop)),
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


def test_rows_that_are_not_chosen_are_checked_and_counted_as_well(file):
    save(file, 1000, position=pa.array(np.arange(1000)))
    assert read(file, max_rows=3).position_max == 999
    values, chosen = vectors_of(1000), subsample(1000, 999, seed=0)
    (unchosen,) = {*range(1000)} - {*chosen.tolist()}
    values[unchosen] = np.nan
    assert f"row {unchosen}:" in refusal(save(file, 1000, vector=lists(values)), max_rows=999)


MEASURE = """
import sys, tracemalloc
from pathlib import Path
import pyarrow
from qk_dump.reader import read_head
tracemalloc.start()
rows = read_head([Path(sys.argv[1])], max_rows=1000, examples=True)
assert len(rows) == 1000
print(pyarrow.default_memory_pool().max_memory() + tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(tmp_path):
    peaks = []
    sizes = (50_000, 400_000)
    for n in sizes:
        values = np.random.default_rng(0).standard_normal(n * 32, np.float32)
        vector = pa.FixedSizeListArray.from_arrays(pa.array(values), 32)
        texts = pa.array(np.arange(n) // 100)
        path = save(tmp_path / f"{n}.parquet", n, group=n, vector=vector, example_id=texts)
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
def test_examples_are_read_if_present_and_usable(file, column, read_back):
    if column is None:
        save(file, without="example_id")
    else:
        save(file, example_id=column)
    found = read(file, examples="if present").example_id
    assert (None if found is None else found.tolist()) == read_back
    if read_back:
        assert read(file, max_rows=3, examples="if present").example_id is not None


# what the footers tell


@pytest.mark.parametrize(("then", "now"), [(50, 40), (50, 60)])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, then, now, monkeypatch):
    path = save(tmp_path / "data.parquet", then)

    def count_then_change(files):  # no real writer can be made to hit this moment
        save(path, now)
        return then

    monkeypatch.setattr("qk_dump.reader.count_rows", count_then_change)
    assert "changed while it was read" in refusal(path)


def test_buckets_are_counted(tmp_path):
    files = [
        save(tmp_path / f"{low}.parquet", 100, group=7, bucket=pa.array(np.arange(100) // 10 + low))
        for low in (3, 8)
    ]
    assert count_buckets(files[:1], 50) == 10
    assert count_buckets(files, 50) == 15
    assert count_buckets(files, 9) == 10  # more than wanted: the second file is not read
    assert count_buckets([save(files[0], 0)], 50) == 0


# optional columns


ALL = [*COLUMNS]


def test_what_is_written_is_read(tmp_path):
    rows = attention_rows(300)
    for name in ATTENTION_COLUMNS:  # text 1 has no known attention
        rows[name][rows["example_id"] == 1] = -1 if rows[name].dtype == np.int64 else np.nan
    path = write_head(tmp_path, HeadId(0, 0, "q"), rows)
    found = read(path, columns=ALL)
    expected = {name: values for name, values in rows.columns.items() if name != "sliding_window"}
    assert found.columns.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert read(path).columns.keys() == {"bucket", "position", "vector", "example_id"}
    some = read(path, columns=["lse"], max_rows=40, seed=3)
    chosen = np.sort(np.random.default_rng(3).choice(300, 40, replace=False))
    np.testing.assert_array_equal(some["entropy"], rows["entropy"][chosen])  # of the same unit
    assert "first_mass" not in some
    text = found.of_texts(np.array([2]))
    assert len(text["mass_by_distance"]) == len(text) == 100


def key_columns(**changes):
    received = lists(np.full((6, 3), 0.25))
    return {"received": received, "inclusion": pa.array([0.5] * 6), **changes}


def received_with(row, value):
    values = np.full((6, 3), 0.25)
    values[row, 1] = value
    return lists(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"received": pa.array([1.0] * 6)}, "column 'received' is double, expected a list"),
        ({"inclusion": pa.array(["a"] * 6)}, "column 'inclusion' is string, expected a float"),
        ({"received": received_with(2, 1.5)}, "row 2: impossible value in received"),
        ({"received": received_with(3, -0.1)}, "row 3: impossible value in received"),
        ({"received": received_with(4, np.nan)}, "row 4: received is not finite"),
        ({"inclusion": pa.array([0.5] * 5 + [0.0])}, "row 5: impossible value in inclusion"),
        ({"inclusion": pa.array([1.5] + [0.5] * 5)}, "row 0: impossible value in inclusion"),
        ({"inclusion": pa.array([0.5, None] * 3)}, "row 1: inclusion is null"),
        ({"inclusion": pa.array([0.5, np.inf] * 3)}, "row 1: inclusion is not finite"),
        (
            {"received": pa.array([[0.1], [0.1, 0.2]] * 3, pa.list_(pa.float32()))},
            "row 1: received has 2 values, row 0 has 1",
        ),
        (
            {"received": pa.array([[0.1] * 5000] * 6, pa.list_(pa.float32(), 5000))},
            "received has 5000 values, expected 1 to 4,096",
        ),
    ],
)
def test_impossible_columns_are_refused_where_they_are_read(file, changes, message):
    save(file, **key_columns(**changes))
    assert message in refusal(file, columns=["received"])
    assert "received" not in read(file)


@pytest.mark.parametrize("name", ["lse", "mass_by_distance", "first_mass", "argmax_token"])
def test_a_null_makes_its_unit_and_later_ones_unknown(tmp_path, name):
    path = write_head(tmp_path, HeadId(0, 0, "q"), attention_rows())
    table = pq.read_table(path)
    values = [*table[name].to_pylist()[:5], None]
    column = pa.array(values, table.schema.field(name).type)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, column), path)
    found = read(path, columns=ALL)
    units = [COLUMNS[name].unit for name in ATTENTION_COLUMNS]
    for other in ATTENTION_COLUMNS:
        later = units.index(COLUMNS[other].unit) >= units.index(COLUMNS[name].unit)
        last = np.ravel(found[other][5])
        assert (np.isnan(last).all() or (last == -1).all()) == later, other


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_shard_lacks_is_not_known(tmp_path, order):
    """But a shard without rows adds nothing."""
    files = [
        save(tmp_path / "a.parquet", **key_columns()),
        save(tmp_path / "b.parquet", 5, first_text=9),
    ]
    assert "received" not in read(*files[::order], columns=ALL)
    assert "received" in read(files[0], columns=ALL)
    save(files[0], without="example_id")
    assert read(*files[::order], examples="if present").example_id is None
    save(files[0], 0)
    np.testing.assert_array_equal(read(*files[::order]).vectors, vectors_of(5))


def test_lists_may_have_any_length_and_be_null(tmp_path):
    """Files whose lists are all null do not show the length."""
    unknown = key_columns(received=pa.array([None] * 6, pa.list_(pa.float32())))
    null = [
        save(tmp_path / f"{name}.parquet", first_text=text, **unknown)
        for name, text in (("a", 0), ("c", 9))
    ]
    known = save(tmp_path / "b.parquet", first_text=5, **key_columns())
    assert "received" not in read(*null, columns=ALL)
    found = read(null[0], known, null[1], columns=["received"])["received"]
    assert np.isnan(found).all(axis=1).tolist() == [True] * 6 + [False] * 6 + [True] * 6
    assert (found[6:12] == 0.25).all()
    other = save(tmp_path / "d.parquet", **key_columns(received=lists(np.full((6, 2), 0.25))))
    assert "received has 2 values, earlier rows of this head 3" in refusal(
        known, other, columns=ALL
    )


def test_attended_keys_of_a_head(tmp_path):
    make_dump(tmp_path, layers=1, n=40)
    path = add_attended(tmp_path, head=1, n=9)
    empty = {"received": np.empty((0, 2)), "inclusion": np.empty(0), **head_rows(0)}
    write_columns(tmp_path, HeadId(0, 0, "k", attended=True), **empty)
    dump = open_dump(tmp_path)
    assert read_attended(dump, 0, 0) is None  # an empty file is valid
    assert read_attended(dump, 7, 0) is None
    found = read_attended(dump, 0, 1)
    assert found["inclusion"].tolist() == pq.read_table(path)["inclusion"].to_pylist()
    some = read_attended(dump, 0, 1, max_rows=4)
    assert some is not None
    assert len(some) == 4
    path.unlink()
    with pytest.raises(DumpError, match=r"attended/l00h01k: holds no Parquet file\. Copy"):
        read_attended(dump, 0, 1)


@pytest.mark.parametrize("order", [1, -1])
def test_a_subsample_of_shards_of_different_float_width_loses_nothing(tmp_path, order):
    wide = vectors_of(40) + 1e-9
    shards = [
        save(tmp_path / "narrow.parquet", 40),
        save(
            tmp_path / "wide.parquet",
            40,
            first_text=50,
            vector=pa.array(wide.tolist(), pa.list_(pa.float64())),
        ),
    ][::order]
    whole = read(*shards).vectors
    assert whole.dtype == np.float64
    np.testing.assert_array_equal(read(*shards, max_rows=30).vectors, whole[subsample(80, 30, 0)])
