"""Weights of rows: the inverse of the probability that a token was kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import attention_plasticity as ap
from attention_plasticity.read.rows import read_keys, read_queries, why_no_weights
from dumps import head_rows, make_dump, write_columns
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.positions import BucketGeometry

LOG = DumpManifest(
    bucket_type="log",
    min_bucket_size=64,
    sampler={"type": "log_uniform", "base_rate": 16.0, "key_base_rate": 32.0},
    kept_share={"q": 0.5, "k": 1.0},
)


def test_weights_follow_from_sampler_and_subsample(tmp_path: Path) -> None:
    for kind in ("q", "k"):
        rows = head_rows(200, seed=[1, kind == "q"])
        rows["bucket"] = BucketGeometry("log", 64).bucket(rows["position"])
        write_columns(tmp_path, HeadId(0, 0, kind), **rows)  # type: ignore[arg-type]
    dump = replace(ap.open_dump(tmp_path), manifest=LOG)
    config = ap.make_config(max_tokens_per_head=50)
    keys = read_keys(dump, 0, 0, config)
    bucket = np.maximum(6, np.floor(np.log2(keys.position + 1)))
    expected = np.minimum(1.0, 32.0 / 2**bucket) * 50 / 200
    np.testing.assert_allclose(keys.weight, 1 / expected, rtol=1e-12)
    assert len(np.unique(keys.weight)) > 1
    queries = read_queries(dump, 0, 0, keys, config)
    bucket = np.maximum(6, np.floor(np.log2(queries.position + 1)))
    np.testing.assert_allclose(queries.weight, 2**bucket / 16.0 * 2 * 4, rtol=1e-12)
    assert why_no_weights(LOG) is None


def test_without_dump_json_all_weights_are_one(tmp_path: Path) -> None:
    dump = ap.open_dump(make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=40))
    assert why_no_weights(dump.manifest) == "there is no dump.json"
    assert read_keys(dump, 0, 0, ap.make_config()).weight.tolist() == [1.0] * 40
