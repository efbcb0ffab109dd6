"""Batches of Parquet files as arrays: nulls, slices, and what is imported for them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from qk_dump.decoding import decoded_batch

N = 21


def batch():
    rng = np.random.default_rng(0)
    null = np.arange(N) % 3 == 1
    lists = [None if null[i] else [float(i), i + 0.5] for i in range(N)]
    vectors = rng.normal(size=(N, 4)).tolist()
    return pa.RecordBatch.from_pydict(
        {
            "bucket": pa.array(range(N), pa.int16()),
            "position": pa.array(range(N), pa.uint32()),
            "vector": pa.array(vectors, pa.list_(pa.float32())),
            "token_id": pa.array(range(N), pa.int32(), mask=null),
            "value_norm": pa.array(np.arange(N) / 4, pa.float32(), mask=null),
            "received": pa.array(lists, pa.list_(pa.float32())),
        }
    )


@pytest.mark.parametrize(("start", "length"), [(0, 5), (3, 11), (8, 13), (1, 1), (2, 1)])
def test_a_slice_of_a_batch_has_the_values_of_its_rows(start, length):
    whole = decoded_batch(batch(), Path("data"), 0)
    part = decoded_batch(batch().slice(start, length), Path("data"), start)
    for name, values in part.columns.items():
        if name == "received" and not values.size:  # every list is null
            continue
        np.testing.assert_array_equal(values, whole[name][start : start + length], err_msg=name)
    null = np.arange(N) % 3 == 1
    assert (whole["token_id"] == np.where(null, -1, np.arange(N))).all()
    assert (np.isnan(whole["value_norm"]) == null).all()
    assert (np.isnan(whole["received"]).all(axis=1) == null).all()


def test_fixed_lists_in_a_slice_have_their_own_values():
    vectors = pa.array(np.arange(12.0).reshape(6, 2).tolist(), pa.list_(pa.float64(), 2))
    part = pa.RecordBatch.from_pydict({"vector": vectors}).slice(2, 3)
    found = decoded_batch(part, Path("data"), 0)["vector"]
    assert found.tolist() == [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]


def test_reading_a_head_imports_neither_pandas_nor_compute_functions():
    code = """
import sys
from attention_plasticity.demo.sample import sample_path
from qk_dump.heads import HeadId
from qk_dump.reader import read_head
from qk_dump.source import open_dump
dump = open_dump(sample_path())
for kind in "qk":
    read_head(dump.require_files(HeadId(0, 0, kind)))
print(sorted({"pandas", "pyarrow.compute"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
