"""The dump that comes with the package."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import attention_plasticity as ap
from attention_plasticity.demo.sample import sample_path

LAYERS, WIDTH = (0, 14, 29), 64


def test_it_is_small_and_holds_whole_layers() -> None:
    dump = ap.open_sample()
    assert sum(path.stat().st_size for path in sample_path().rglob("*") if path.is_file()) < 9e6
    assert sorted(dump.query_heads) == [(layer, head) for layer in LAYERS for head in range(9)]
    assert sorted(dump.key_heads) == [(layer, head) for layer in LAYERS for head in range(3)]


def test_every_query_bucket_has_two_rows_per_dimension() -> None:
    for head, folder in ap.open_sample().folders.items():
        table = pq.read_table(folder / "data.parquet")
        assert table.schema.field("vector").type.value_type == pa.float16()
        counts = np.bincount(table["bucket"].to_numpy())
        assert len(counts) == 16
        assert counts.min() >= 2 * WIDTH, (head, counts)


def test_it_tells_its_origin_and_no_path_of_a_machine() -> None:
    folder = sample_path()
    manifest = json.loads((folder / "dump.json").read_text())
    assert manifest["model"] == "model/SmolLM2-135M-Instruct-Q4_1"
    assert manifest["slice"]["layers"] == list(LAYERS)
    assert manifest["min_bucket_size"] == 512
    rights = (folder / "RIGHTS.md").read_text()
    assert "Apache-2.0" in rights
    assert "public domain" in rights
    assert "make sample" in rights
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".md"):
            assert "/tmp/" not in path.read_text()
            assert "/home/" not in path.read_text()


def test_texts_fill_the_context() -> None:
    examples = pq.read_table(sample_path() / "examples.parquet")
    assert examples["num_tokens"].to_pylist() == [8192] * 12
    assert examples["original_id"][3].as_py() == "moby-dick/03"
