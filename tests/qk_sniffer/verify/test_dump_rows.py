"""`verify MODEL --dump DUMP`: a dump against a new capture of its first text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attention_plasticity.cli import main
from sniffing import sniff

LENGTHS = [0, 90, 30]
Captured = pytest.CaptureFixture[str]


def verify(model: Path, dump: Path, *words: str) -> int:
    return main(["verify", str(model), "--dump", str(dump), *words])


def test_a_dump_of_transformers_is_equal(model: Path, whole: Path, capsys: Captured) -> None:
    assert verify(model, whole) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [f"layer {layer}" for layer in range(4)]
    assert lines[4] == "Equal: no layer differs by more than 0.0001; text 1, 91 tokens, float32."


@pytest.mark.parametrize(("head", "column"), [("l02h01k", "vector"), ("l01h03q", "entropy")])
def test_a_changed_number_is_found(
    model: Path, texts: Path, tmp_path: Path, capsys: Captured, head: str, column: str
) -> None:
    dump = tmp_path / "dump"
    assert sniff(model, texts, dump) == 0
    file = dump / head / "data.parquet"
    table = pq.read_table(file)
    place, field = table.column_names.index(column), table.schema.field(column)
    values = table[column].to_pylist()
    values[0] = (np.array(values[0]) + 0.01).tolist()
    pq.write_table(table.set_column(place, field, pa.array(values, field.type)), file)
    capsys.readouterr()
    assert verify(model, dump) == 1
    told = capsys.readouterr().out
    assert f"NOT equal: layers {int(head[1:3])} differ by more than 0.0001" in told
