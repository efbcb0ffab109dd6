"""Parquet files of a head with any column exchanged, for the reader's tests."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qk_dump.columns import ATTENTION_COLUMNS, COLUMNS, first_distances
from qk_dump.reader import read_head
from qk_dump.rows import Rows
from qk_toolkit.errors import DumpError

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
SHAPES = {"list": pa.list_, "large_list": pa.large_list, "fixed": lambda kind: pa.list_(kind, 3)}
LATE = 9_001  # a row beyond the first batch


def vectors_of(n, d=3):
    """Rows that differ, in numbers every float width can hold."""
    return (np.arange(n * d).reshape(n, d) % 2048 - 1024).astype(np.float64)


def lists(values, kind=None):
    flat = pa.array(values.reshape(-1), pa.float32())
    n, d = values.shape
    return pa.ListArray.from_arrays(np.arange(0, n * d + 1, d, dtype=np.int32), flat).cast(
        kind or pa.list_(pa.float32())
    )


def columns(n=6, d=3, first_text=0):
    return {
        "bucket": pa.array(np.arange(n) // 4 % 100),
        "example_id": pa.array(first_text + np.arange(n) // 3),
        "position": pa.array(np.arange(n) % 100),
        "vector": lists(vectors_of(n, d)),
        "sliding_window": pa.array([None] * n, pa.int32()),
    }


def save(path, n=6, *, d=3, without="", group=None, first_text=0, **changes):
    content = {**columns(n, d, first_text), **changes}
    content.pop(without, None)
    pq.write_table(pa.table(content), path, row_group_size=group)
    return path


def read(*files, **options):
    return read_head(files, **{"examples": True, **options})


def attention_rows(n=6, window=-1):
    """Queries at positions 0 to 99 whose keys all have one logit, another one in every row.

    Every second key of a text has one token, the others another one.
    """
    position = np.arange(n) % 100
    keys = position + 1.0 if window < 0 else np.minimum(position + 1.0, window)
    number, logit, first = (keys - 1) // 2, np.arange(n) % 50 / 10, position + 1 - keys
    starts = np.append(first_distances(), np.inf)
    masses = np.diff(np.minimum(starts, keys[:, None]), axis=1) / keys[:, None]  # (n, bins)
    values = (
        *(logit + np.log(keys), logit, np.log(keys), np.maximum(0, 4 - first) / keys, masses),
        *((first == 0) / keys, first, position % 2),
        *(number / keys, number, number / keys, number),
    )
    attention = {
        name: column.astype(np.int64 if COLUMNS[name].type == pa.int32() else np.float32)
        for name, column in zip(ATTENTION_COLUMNS, values, strict=True)
    }
    attention["sink_mass"] = np.minimum(attention["sink_mass"], 1)
    base = {"bucket": position // 4, "example_id": np.arange(n) // 100, "position": position}
    base |= {"sliding_window": np.full(n, window), "token_id": position % 2}
    return Rows({**base, "vector": np.ones((n, 3), np.float32), **attention})


def refusal(*files, culprit=None, **options):
    """The message of a refusal, which must name the culprit and fit a line."""
    with pytest.raises(DumpError) as caught:
        read(*files, **options)
    message = str(caught.value)
    assert message.startswith(f"{culprit or files[-1]}: ")
    assert "\n" not in message
    return message
