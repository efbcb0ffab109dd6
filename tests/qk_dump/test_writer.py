"""Writing a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dumps import head_rows
from qk_dump.errors import OutputError
from qk_dump.layout import HeadId
from qk_dump.reader import read_head
from qk_dump.schema import written_schema
from qk_dump.writer import write_head

HEAD = HeadId(3, 7, "k")


def rows(dtype: Any = np.float32, **options: Any) -> dict[str, Any]:
    content = head_rows(**options)
    content["vectors"] = content["vectors"].astype(dtype)
    return content


def test_the_file_lies_in_the_heads_folder(tmp_path: Path) -> None:
    path = write_head(tmp_path, HEAD, **rows(n=5))
    assert path == tmp_path / "l03h07k" / "data.parquet"
    assert [file.name for file in path.parent.iterdir()] == ["data.parquet"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [(np.float16, pa.float16()), (np.float32, pa.float32()), (np.float64, pa.float32())],
)
def test_the_columns_are_those_of_the_contract(
    tmp_path: Path, given: Any, stored: pa.DataType
) -> None:
    path = write_head(tmp_path, HEAD, **rows(given, n=5, d=4))
    assert pq.read_schema(path).equals(written_schema(4, stored))


@pytest.mark.parametrize("window", [None, 512])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_was_written_is_read_back_exactly(
    tmp_path: Path, dtype: Any, window: int | None
) -> None:
    content = rows(dtype, n=20_000, d=3)

    path = write_head(tmp_path, HEAD, sliding_window=window, **content)
    read = read_head([path], max_rows=20_000, seed=0, with_examples=True)

    np.testing.assert_array_equal(read.vectors, content["vectors"])
    np.testing.assert_array_equal(read.bucket, content["bucket"])
    np.testing.assert_array_equal(read.example_id, content["example_id"])
    np.testing.assert_array_equal(read.position, content["position"])
    assert read.sliding_window == window
    assert read.window_recorded


@pytest.mark.parametrize("view", [np.asfortranarray, lambda v: v[:, ::2], lambda v: v[::-1]])
def test_the_memory_order_of_the_vectors_does_not_matter(tmp_path: Path, view: Any) -> None:
    vectors = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    path = write_head(
        tmp_path, HEAD, bucket=[0] * 4, example_id=[0] * 4, position=range(4), vectors=vectors
    )
    read = read_head([path], max_rows=9, seed=0, with_examples=False)
    np.testing.assert_array_equal(read.vectors, vectors)


def test_a_head_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_head(tmp_path, HEAD, **rows(n=50))
    path = write_head(tmp_path, HEAD, **rows(n=7))
    assert pq.read_metadata(path).num_rows == 7
    assert [file.name for file in path.parent.iterdir()] == ["data.parquet"]


def test_rows_that_do_not_fit_together_write_nothing(tmp_path: Path) -> None:
    content = rows(n=5)
    content["bucket"] = content["bucket"][:-1]
    with pytest.raises(ValueError, match="length"):
        write_head(tmp_path, HEAD, **content)
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("column", ["bucket", "example_id", "position"])
def test_a_number_too_large_for_its_column_is_never_stored_as_another(
    tmp_path: Path, column: str
) -> None:
    content = rows(n=5)
    content[column] = np.arange(5, dtype=np.int64) + 2**32
    with pytest.raises((ValueError, OverflowError)):
        write_head(tmp_path, HEAD, **content)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / HEAD.folder / "data.parquet").mkdir(parents=True)
    with pytest.raises(OutputError) as caught:
        write_head(tmp_path, HEAD, **rows(n=5))
    assert str(tmp_path / HEAD.folder / "data.parquet") in str(caught.value)
    assert [file.name for file in (tmp_path / HEAD.folder).iterdir()] == ["data.parquet"]


def test_a_full_disk_leaves_the_head_as_it_was(small_disk: Path) -> None:
    path = write_head(small_disk, HEAD, **rows(n=10))
    before = path.read_bytes()

    with pytest.raises(OutputError, match="No space left on device") as caught:
        write_head(small_disk, HEAD, **rows(n=20_000, d=16))

    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
