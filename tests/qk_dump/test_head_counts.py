"""The texts that the heads of a dump have rows of."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dumps import head_rows, make_dump, write_columns
from qk_dump.head_counts import texts_of_heads, texts_of_layers
from qk_dump.heads import HeadId
from qk_dump.source import open_dump


@pytest.fixture
def folder(tmp_path):
    """Texts 0 to 3 in layer 0, and 100 to 103 in the queries of layer 1."""
    make_dump(tmp_path, layers=2, q_heads=2, k_heads=1, n=40, d=2)
    for head in (0, 1):
        rows = head_rows(40, 2)
        write_columns(
            tmp_path, HeadId(1, head, "q"), **{**rows, "example_id": rows["example_id"] + 100}
        )
    return tmp_path


def found(folder, *layers):
    return texts_of_layers(open_dump(folder), layers).tolist()


def everything(folder):
    return texts_of_heads(open_dump(folder), lambda done, total: None).tolist()


def test_queries_and_keys_of_the_layers_are_read(folder):
    assert found(folder) == []
    assert found(folder, 0) == [0, 1, 2, 3]
    assert found(folder, 1) == found(folder, 0, 1) == [0, 1, 2, 3, 100, 101, 102, 103]
    assert everything(folder) == found(folder, 0, 1)


def test_heads_that_cannot_be_read_are_left_out(folder):
    (folder / "l01h00q" / "data.parquet").write_bytes(b"junk")
    assert found(folder, 1) == everything(folder)  # from the next query head of the layer
    (folder / "l01h01q" / "data.parquet").unlink()
    assert found(folder, 1) == everything(folder) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a"] * 40),
        pa.array([None, *range(39)], pa.int32()),
        pa.array(np.full(40, -7)),
        pa.array(np.full(40, 2**64 - 1, np.uint64)),
        None,
    ],
    ids=["text", "null", "negative", "too large", "missing"],
)
def test_a_column_that_is_not_usable_names_no_text(folder, column):
    for head in (0, 1):
        file = folder / f"l01h{head:02d}q" / "data.parquet"
        table = pq.read_table(file).drop_columns(["example_id"])
        if column is not None:
            table = table.append_column("example_id", column)
        pq.write_table(table, file)
    assert found(folder, 1) == everything(folder) == [0, 1, 2, 3]
