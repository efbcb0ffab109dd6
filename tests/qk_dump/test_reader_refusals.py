"""Reading a head: what is refused, with file and row in the message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dumps import head_rows, write_columns
from head_files import (
    FLOATS,
    LATE,
    SHAPES,
    refusal,
    save,
    vectors_of,
)
from qk_dump.heads import HeadId

# files that are no Parquet


def test_a_corrupted_page_is_refused(tmp_path: Path) -> None:
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
def test_a_missing_column_is_named_among_those_found(file: Path, name: str) -> None:
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
def test_a_column_of_the_wrong_type_is_refused(file: Path, name: str, column: pa.Array) -> None:
    message = refusal(save(file, **{name: column}))
    assert f"column '{name}' is " in message
    assert "expected " in message


# rows that cannot be used


def with_row(n: int, row: int, value: object, usual: object = 1) -> list[object]:
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
def test_a_bad_number_is_refused_with_its_row(
    file: Path, name: str, value: object, kind: str, problem: str
) -> None:
    for row in (0, LATE):
        save(file, 10_000, **{name: pa.array(with_row(10_000, row, value), kind)})
        assert f"row {row}: {problem}" in refusal(file)


@pytest.mark.parametrize(
    ("row", "value"), [(0, np.nan), (8191, np.inf), (8192, -np.inf), (LATE, np.nan)]
)
@pytest.mark.parametrize("kind", FLOATS)
def test_nan_and_infinity_are_refused_with_their_row(
    file: Path, kind: str, row: int, value: float
) -> None:
    values = vectors_of(10_000)
    values[row, 1] = value
    vector = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1).astype(kind)), 3)
    save(file, 10_000, vector=vector, group=6_000)
    assert f"row {row}: NaN or infinity" in refusal(file)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("value", "problem"), [(None, "vector is null"), ([1.0, None, 3.0], "the vector holds a null")]
)
def test_nulls_in_vectors_are_refused_with_their_row(
    file: Path, shape: str, value: list[float] | None, problem: str
) -> None:
    kind = SHAPES[shape](pa.float32())
    for row in (0, LATE):
        vector = pa.array(with_row(10_000, row, value, [1.0, 2.0, 3.0]), kind)
        assert f"row {row}: {problem}" in refusal(save(file, 10_000, vector=vector))


@pytest.mark.parametrize("odd", [[1.0], [1.0] * 4, []])
@pytest.mark.parametrize("row", [3, LATE])
def test_a_vector_of_another_width_is_refused_with_its_row(
    file: Path, row: int, odd: list[float]
) -> None:
    vector = pa.array(with_row(10_000, row, odd, [1.0, 2.0, 3.0]), pa.list_(pa.float32()))
    message = refusal(save(file, 10_000, vector=vector))
    assert f"row {row}: vector has {len(odd)} values" in message
    assert "has 3" in message


@pytest.mark.parametrize(
    "second", [{"sliding_window": pa.array([64] * 6)}, {"without": "sliding_window"}, {}]
)
def test_windows_that_differ_between_shards_are_refused(
    tmp_path: Path, second: dict[str, Any]
) -> None:
    files = [
        save(tmp_path / "a.parquet", sliding_window=pa.array([128] * 6)),
        save(tmp_path / "b.parquet", **second),
    ]
    assert "mixes sliding_window values" in refusal(*files, culprit=files[1])
