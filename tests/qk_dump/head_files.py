"""Parquet files of a head with any column exchanged, for the reader's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qk_dump.reader import HeadRows, read_head
from qk_toolkit.errors import DumpError

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
SHAPES = {"list": pa.list_, "large_list": pa.large_list, "fixed": lambda kind: pa.list_(kind, 3)}
LATE = 9_001  # a row beyond the first batch


def vectors_of(n: int, d: int = 3) -> np.ndarray[Any, Any]:
    """Rows that differ, in numbers every float width can hold."""
    return (np.arange(n * d).reshape(n, d) % 2048 - 1024).astype(np.float64)


def lists(values: np.ndarray[Any, Any], kind: pa.DataType | None = None) -> pa.Array:
    flat = pa.array(values.reshape(-1), pa.float32())
    n, d = values.shape
    return pa.ListArray.from_arrays(np.arange(0, n * d + 1, d, dtype=np.int32), flat).cast(
        kind or pa.list_(pa.float32())
    )


def columns(n: int = 6, d: int = 3) -> dict[str, Any]:
    return {
        "bucket": pa.array(np.arange(n) // 4 % 100),
        "example_id": pa.array(np.arange(n) // 3 % 100),
        "position": pa.array(np.arange(n) % 100),
        "vector": lists(vectors_of(n, d)),
        "sliding_window": pa.array([None] * n, pa.int32()),
    }


def save(
    path: Path,
    n: int = 6,
    *,
    d: int = 3,
    without: str = "",
    group: int | None = None,
    **changes: Any,
) -> Path:
    content = {**columns(n, d), **changes}
    content.pop(without, None)
    pq.write_table(pa.table(content), path, row_group_size=group)
    return path


def read(*files: Path, max_rows: int = 10**9, seed: int = 0, **options: Any) -> HeadRows:
    return read_head(files, max_rows=max_rows, seed=seed, **{"with_examples": True, **options})


def refusal(*files: Path, culprit: Path | None = None, **options: Any) -> str:
    """The message of a refusal, which must name the culprit and fit a line."""
    with pytest.raises(DumpError) as caught:
        read(*files, **options)
    message = str(caught.value)
    assert message.startswith(f"{culprit or files[-1]}: ")
    assert "\n" not in message
    return message
