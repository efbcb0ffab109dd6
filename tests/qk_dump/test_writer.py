"""Writing a head."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumps import head_rows, write_columns
from qk_dump import writer
from qk_dump.columns import schema_of
from qk_dump.heads import HeadId
from qk_dump.reader import read_head
from qk_dump.writer import HeadWriter
from qk_toolkit.errors import OutputError

HEAD = HeadId(3, 7, "k")
NAMES = ("bucket", "example_id", "position", "vector", "sliding_window")


def rows(dtype: Any = np.float32, **options: Any) -> dict[str, Any]:
    content = head_rows(**options)
    content["vectors"] = content["vectors"].astype(dtype)
    return content


def test_rows_that_cannot_be_stored_write_nothing(tmp_path: Path) -> None:
    """Columns of other lengths, and a number too large for its column."""
    content = rows(n=5)
    for name, values in (("bucket", [0] * 4), ("position", np.arange(5) + 2**32)):
        with pytest.raises((ValueError, OverflowError)):
            write_columns(tmp_path, HEAD, **{**content, name: values})
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / HEAD.folder / "data.parquet").mkdir(parents=True)
    with pytest.raises(OutputError) as caught:
        write_columns(tmp_path, HEAD, **rows(n=5))
    assert str(tmp_path / HEAD.folder / "data.parquet") in str(caught.value)
    assert [file.name for file in (tmp_path / HEAD.folder).iterdir()] == ["data.parquet"]


def test_a_full_disk_leaves_the_head_as_it_was(small_disk: Path) -> None:
    path = write_columns(small_disk, HEAD, **rows(n=10))
    before = path.read_bytes()

    with pytest.raises(OutputError, match="No space left on device") as caught:
        write_columns(small_disk, HEAD, **rows(n=20_000, d=16))

    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def head_table(n: int) -> pa.Table:
    ids = pa.array(np.arange(n) // 3, pa.int32())
    vectors = pa.array(np.random.default_rng(0).standard_normal(2 * n).astype(np.float32))
    columns = [ids, ids, ids, pa.FixedSizeListArray.from_arrays(vectors, 2)]
    columns += [pa.nulls(n, pa.int32()), ids, ids]
    return pa.table(columns, schema=schema_of(NAMES, 2))


@settings(max_examples=20)
@given(n=st.integers(0, 60), cuts=st.lists(st.integers(0, 60)), group=st.integers(1, 20))
def test_where_rows_are_cut_does_not_show_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, n: int, cuts: list[int], group: int
) -> None:
    table = head_table(n)
    place = tmp_path_factory.mktemp("head")
    ends = sorted({0, n, *(cut for cut in cuts if cut < n)})
    with mock.patch.object(writer, "ROWS_PER_GROUP", group), mock.patch("os.fsync"):
        with HeadWriter(place / "whole.parquet", table.schema) as whole:
            whole.write(table)
        with HeadWriter(place / "cut.parquet", table.schema) as pieces:
            for start, end in pairwise(ends):
                pieces.write(table.slice(start, end - start))
    assert (place / "cut.parquet").read_bytes() == (place / "whole.parquet").read_bytes()
    assert pq.read_table(place / "cut.parquet").equals(table)


def test_a_failure_between_rows_leaves_no_file(tmp_path: Path) -> None:
    table = head_table(5)
    with suppress(KeyboardInterrupt), HeadWriter(tmp_path / "a.parquet", table.schema) as pieces:
        pieces.write(table)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("view", [np.asfortranarray, lambda v: v[:, ::2], lambda v: v[::-1]])
def test_the_memory_order_of_the_vectors_does_not_matter(tmp_path: Path, view: Any) -> None:
    vectors = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    path = write_columns(
        tmp_path, HEAD, bucket=[0] * 4, example_id=[0] * 4, position=range(4), vectors=vectors
    )
    read = read_head([path])
    np.testing.assert_array_equal(read.vectors, vectors)
