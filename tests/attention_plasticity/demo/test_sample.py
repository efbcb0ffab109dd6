"""The dump that comes with the package."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import attention_plasticity as ap
from attention_plasticity.demo.sample import sample_path
from qk_dump.layout import HeadId
from qk_dump.reader import read_head

LAYERS = (0, 14, 29)


def test_it_is_small_and_holds_whole_layers() -> None:
    dump = ap.open_sample()
    assert sum(path.stat().st_size for path in sample_path().rglob("*") if path.is_file()) < 9e6
    assert sorted(dump.query_heads) == [(layer, head) for layer in LAYERS for head in range(9)]
    assert sorted(dump.key_heads) == [(layer, head) for layer in LAYERS for head in range(3)]


def test_every_bucket_has_about_a_hundred_rows() -> None:
    for head, folder in ap.open_sample().folders.items():
        table = pq.read_table(folder / "data.parquet")
        assert table.schema.field("vector").type.value_type == pa.float16()
        counts = np.bincount(table["bucket"].to_numpy())
        assert len(counts) == 16
        assert counts.min() >= 100, (head, counts)


def test_attention_columns_fit_the_vectors() -> None:
    """Weights of captured pairs, from float16 vectors and rounded columns, are at most 1."""
    dump = ap.open_sample()
    queries, keys = (
        read_head(
            [dump.folders[HeadId(14, 0, kind)] / "data.parquet"],
            max_rows=10**6,
            seed=0,
            with_examples=True,
            with_attention=True,
        )
        for kind in ("q", "k")
    )
    attention = queries.attention
    assert attention is not None
    np.testing.assert_allclose(attention.mass_by_distance.sum(axis=1), 1, atol=4e-3)
    logits = queries.vectors @ keys.vectors.T / 8  # (n, m)
    seen = (queries.example_id[:, None] == keys.example_id) & (
        queries.position[:, None] >= keys.position
    )
    below = (logits - attention.max_logit[:, None])[seen]
    assert below.max() < 0.1
    weights = np.where(seen, np.exp(logits - attention.lse[:, None]), 0)
    assert 0.005 < weights.sum(axis=1).mean() < 0.1  # one of 48 keys is in the sample


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
