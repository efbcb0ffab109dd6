"""`examples.parquet`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from qk_dump.examples import EXAMPLES_FILE, Example, read_examples, write_examples
from qk_toolkit.errors import ConfigError, OutputError


def written(folder: Path, ids: list[Any]) -> pa.Table:
    write_examples(folder, [Example(i, original, i + 10, "") for i, original in enumerate(ids)])
    table = read_examples(folder)
    assert table is not None
    return table


def test_examples_come_back_by_their_number(tmp_path: Path) -> None:
    write_examples(tmp_path, [Example(7, "b", 3, "x"), Example(2, "a", 0, "y")])
    table = read_examples(tmp_path)
    assert table is not None
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
def test_ids_keep_a_simple_type_or_become_text(
    tmp_path: Path, ids: list[Any], kind: pa.DataType, stored: list[Any] | None
) -> None:
    column = written(tmp_path, ids)["original_id"]
    assert column.type == kind
    assert column.to_pylist() == (ids if stored is None else stored)


@pytest.mark.parametrize("number", [-1, 2**31 - 1, 2**40])
def test_a_number_that_does_not_fit_its_column_is_refused(number: int) -> None:
    Example(2**31 - 2, "last", 1, "")
    with pytest.raises(ConfigError, match="max_samples"):
        Example(number, "x", 1, "")


def test_a_full_disk_leaves_the_table_as_it_was(small_disk: Path) -> None:
    before = written(small_disk, ["a"])
    with pytest.raises(OutputError, match="No space left on device"):
        written(small_disk, np.random.default_rng(0).random(20_000).tolist())
    assert read_examples(small_disk) == before
    assert [path.name for path in small_disk.iterdir()] == [EXAMPLES_FILE]
