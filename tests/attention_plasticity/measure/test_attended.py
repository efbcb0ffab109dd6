"""Attended plasticity: what it estimates, at one position, and where it is not known."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import attention_plasticity as ap
from attended_counts import LAYER, counted, counted_through, peaked_dump
from attention_dumps import make_attention_dump
from attention_plasticity.measure import plasticity
from attention_plasticity.measure.head import KeyGroup, measure_head
from attention_plasticity.read.layer import NO_COMMON_TEXT, SINGLE_EXAMPLE
from attention_plasticity.read.pool import NO_ATTENDED_KEYS, KeyPool, read_pool
from attention_plasticity.read.rows import read_keys, read_queries
from head_pairs import analyze

TEXTS, LENGTH = 48, 384
HEADS = range(4)
SAMPLED = {"sampler": "uniform", "base_rate": 1.0, "min_bucket_size": 16}
COLUMNS = ("ap_attended", "ap_attended_se")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> ap.Dump:
    """One position in 16, and keys drawn by attention."""
    return peaked_dump(tmp_path_factory.mktemp("sampled"), TEXTS, LENGTH, **SAMPLED)


def metrics(dump: ap.Dump | Path, q_head: int = 0, size: int = 48) -> dict[str, Any]:
    config = ap.make_config(bin_size=size)
    return ap.analyze_head(LAYER, q_head, dump=dump, config=config).metrics


@pytest.fixture(autouse=True)
def _many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that their draw adds little to the error."""
    monkeypatch.setattr(plasticity, "_ATTENDED_PAIRS", 1024)


def test_a_sample_of_keys_gives_the_value_of_all_keys(sampled: ap.Dump, tmp_path: Path) -> None:
    full = peaked_dump(tmp_path / "full", TEXTS, LENGTH)
    assert not any(
        pq.read_metadata(f"{folder}/data.parquet").num_rows for folder in full.attended.values()
    )
    right, found = (
        np.array([metrics(dump, head)["ap_attended"] for head in (0, 3)])
        for dump in (full, sampled)
    )
    assert np.abs(found - right).max() <= 0.02
    assert np.abs(found - right).mean() < 0.01


def test_it_is_what_queries_of_one_position_count(tmp_path: Path) -> None:
    dump = peaked_dump(tmp_path, 24, 96)
    differences = []
    for q_head in HEADS:
        right = counted(dump, q_head, q_head // 2, bin_size=12)
        differences.append(metrics(dump, q_head, 12)["ap_attended"] - right)
    assert np.abs(differences).mean() <= 0.01
    assert np.abs(differences).max() <= 0.03


@pytest.mark.parametrize("size", [12, 48])
def test_through_a_window_too(tmp_path: Path, size: int) -> None:
    """Bins may be wider than the window."""
    dump = peaked_dump(tmp_path, 24, 96, window=32)
    for q_head in (0, 3):
        right = counted_through(dump, q_head, q_head // 2, size, window=32)
        assert metrics(dump, q_head, size)["ap_attended"] == pytest.approx(right, abs=0.03)


def test_a_sample_through_a_window_gives_the_value_of_all_keys(tmp_path: Path) -> None:
    full = peaked_dump(tmp_path / "full", TEXTS, LENGTH, window=96)
    part = peaked_dump(tmp_path / "part", TEXTS, LENGTH, window=96, **SAMPLED)
    for head in (0, 3):
        right, found = (metrics(dump, head)["ap_attended"] for dump in (full, part))
        assert found == pytest.approx(right, abs=0.02)


def test_scales_do_not_matter(sampled: ap.Dump) -> None:
    """A power of two is exact; the values of `received` may have any unit."""
    config = ap.make_config(bin_size=48)
    keys = read_keys(sampled, LAYER, 0, config)
    queries = read_queries(sampled, LAYER, 1, keys, config)
    pool = read_pool(sampled, LAYER, 0, keys, config)
    assert pool is not None
    plain = measure_head(KeyGroup(LAYER, 0, keys, pool, config), 1, queries, sampled).metrics
    larger = replace(
        pool.keys, rows=pool.keys.rows.with_columns({"vector": 4 * pool.keys.rows.vectors})
    )
    moved = KeyGroup(LAYER, 0, keys, KeyPool(larger, 0.25 * pool.received), config)
    twice = replace(queries, rows=queries.rows.with_columns({"vector": 2 * queries.rows.vectors}))
    scaled = measure_head(moved, 1, twice, sampled).metrics
    for name in COLUMNS:
        assert scaled[name] == pytest.approx(plain[name], rel=1e-6)


@pytest.mark.parametrize("change", ["no rotary record", "no attended keys"])
def test_what_is_missing_is_the_reason(sampled: ap.Dump, tmp_path: Path, change: str) -> None:
    root = tmp_path / "dump"
    shutil.copytree(str(sampled.path), root)
    reason = NO_ATTENDED_KEYS
    if change == "no attended keys":
        shutil.rmtree(root / "attended")
    else:
        content = json.loads((root / "dump.json").read_text())
        for entry in content["layers"]:
            entry.pop("rotary")
        (root / "dump.json").write_text(json.dumps(content))
        reason = "attention-plasticity add-rotary"
    result = ap.analyze_head(LAYER, 0, dump=root)
    for name in COLUMNS:
        assert math.isnan(result.metrics[name])
        assert reason in result.missing["head_metrics"][name]


def test_texts_must_be_known_and_common(tmp_path: Path) -> None:
    manifest = {"layers": [{"layer": 0, "scale": 0.4, "rope": False}]}
    root = make_attention_dump(tmp_path, received=True, manifest=manifest)
    assert math.isfinite(analyze(root).metrics["ap_attended"])
    missing = analyze(root, single_example=True).missing["head_metrics"]
    assert missing["ap_attended"] == SINGLE_EXAMPLE
    file = root / "l00h00q" / "data.parquet"
    table = pq.read_table(file)
    ids = np.asarray(table["example_id"]) + 1000
    pq.write_table(table.set_column(1, "example_id", [ids]), file)
    assert analyze(root).missing["head_metrics"]["ap_attended"] == NO_COMMON_TEXT
