"""Attended plasticity of dumps with keys drawn by attention: what it estimates, and its keys."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attention_plasticity as ap
from attended_counts import LAYER, counted, counted_through, peaked_dump
from attention_plasticity.head.attended import FROM_CAPTURE
from attention_plasticity.head.key_pool import KeyPool, read_pool
from attention_plasticity.head.rows import KeyHead, read_queries
from attention_plasticity.head_analysis import analyze_rows
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.received_columns import ReceivedRows, joint_inclusion
from qk_dump.writer import write_head

BOTH = ("ap_attended", "ap_attended_aligned")
TEXTS, LENGTH = 48, 384
HEADS = range(4)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> ap.Dump:
    """One position in 16, and keys drawn by attention."""
    folder = tmp_path_factory.mktemp("sampled")
    return peaked_dump(folder, TEXTS, LENGTH, sampler="uniform", base_rate=1.0, min_bucket_size=16)


def corrected(dump: ap.Dump, q_head: int, **settings: object) -> list[float]:
    config = ap.make_config(bin_size=48, counting=False, **settings)
    row = ap.analyze_head(LAYER, q_head, dump=dump, config=config).metrics
    return [row[name] - row[f"{name}_bias"] for name in BOTH]


def test_a_sample_of_keys_gives_the_value_of_all_keys(sampled: ap.Dump, tmp_path: Path) -> None:
    """Without the keys that were drawn by attention, it does not."""
    full = peaked_dump(tmp_path / "full", TEXTS, LENGTH)
    assert not any(
        pq.read_metadata(f"{folder}/data.parquet").num_rows for folder in full.attended.values()
    )
    old = tmp_path / "old"
    shutil.copytree(str(sampled.path), old)
    shutil.rmtree(old / "attended")
    right = np.array([corrected(full, head) for head in HEADS])
    found = np.array([corrected(sampled, head) for head in HEADS])
    without = np.array([corrected(ap.open_dump(old), head) for head in HEADS])
    assert np.abs(found - right).max() <= 0.02
    assert np.abs(found - right).mean() < 0.008 < 0.015 < np.abs(without - right).mean()
    assert np.abs(right[:, 0] - right[:, 1]).min() > 0.1  # rotation inside a bin


def test_it_is_what_queries_of_one_position_count(tmp_path: Path) -> None:
    dump = peaked_dump(tmp_path, 24, 96)
    config = ap.make_config(bin_size=12)
    differences = []
    for q_head in HEADS:
        row = ap.analyze_head(LAYER, q_head, dump=dump, config=config).metrics
        right = counted(dump, q_head, q_head // 2, bin_size=12)
        differences.append(row["ap_attended_aligned"] - row["ap_attended_aligned_bias"] - right)
        differences.append(row["ap_attended_aligned_counted"] - right)
        assert abs(row["ap_attended"] - right) > 0.05
    assert np.abs(differences).mean() <= 0.01
    assert np.abs(differences).max() <= 0.03


@pytest.mark.parametrize("size", [12, 48])
def test_through_a_window_too(tmp_path: Path, size: int) -> None:
    """Bins may be wider than the window."""
    dump = peaked_dump(tmp_path, 24, 96, window=32)
    differences = []
    for q_head in (0, 3):
        config = ap.make_config(bin_size=size)
        row = ap.analyze_head(LAYER, q_head, dump=dump, config=config).metrics
        right = counted_through(dump, q_head, q_head // 2, size, window=32)
        differences.append(row["ap_attended_aligned"] - row["ap_attended_aligned_bias"] - right)
        differences.append(row["ap_attended_aligned_counted"] - right)
        assert row["ap_attended"] - right > 0.05
        config = ap.make_config(bin_size=size, pair_sampling="attended")
        pairs = ap.analyze_head(LAYER, q_head, dump=dump, config=config).metrics
        differences.append(pairs["ap_aligned"] - pairs["ap_aligned_bias"] - right)
    assert np.abs(differences).max() <= 0.03


def test_a_sample_through_a_window_gives_the_value_of_all_keys(tmp_path: Path) -> None:
    full = peaked_dump(tmp_path / "full", TEXTS, LENGTH, window=96)
    how = {"sampler": "uniform", "base_rate": 1.0, "min_bucket_size": 16}
    part = peaked_dump(tmp_path / "part", TEXTS, LENGTH, window=96, **how)
    right, found = (np.array([corrected(dump, head) for head in HEADS]) for dump in (full, part))
    assert np.abs(found - right).max() <= 0.02


def test_attended_pairs_of_the_run_are_those_beside_it(sampled: ap.Dump) -> None:
    """With `pair_sampling: attended`, plasticity in bins is attended plasticity."""
    config = ap.make_config(bin_size=48, pair_sampling="attended", num_pairs_per_bucket=200)
    result = ap.analyze_head(LAYER, 1, dump=sampled, config=config)
    row = result.metrics
    assert row["ap_pooled"] == pytest.approx(row["ap_attended"], abs=0.015)
    assert row["ap_aligned"] == pytest.approx(row["ap_attended_aligned"], abs=0.015)
    assert row["ap_phase"] == row["ap_pooled"] - row["ap_aligned"]
    bins = result.bins
    for q_bin in range(1, 8):
        rows = [n for n, number in enumerate(bins["q_bin"]) if number == q_bin]
        assert sum(bins["n_pairs"][n] for n in rows) == 200 * q_bin
    assert math.isfinite(row["ap_overall"])


def pool_of(dump: ap.Dump, **settings: object) -> tuple[KeyHead, KeyPool]:
    config = ap.make_config(**settings)
    keys = KeyHead.read(dump, LAYER, 0, config)
    pool = read_pool(dump, LAYER, 0, keys, config)
    assert pool is not None
    return keys, pool


def test_scales_do_not_matter(sampled: ap.Dump) -> None:
    """A power of two is exact; the values of `received` may have any unit."""
    config = ap.make_config(bin_size=48)
    keys, pool = pool_of(sampled, bin_size=48)
    rows, _ = read_queries(sampled, HeadId(LAYER, 1, "q"), keys, config)
    plain = analyze_rows(LAYER, 1, 0, rows, keys, config, pool=pool).metrics
    larger = replace(pool.keys, rows=replace(pool.keys.rows, vectors=4 * pool.keys.rows.vectors))
    moved = KeyPool(larger, 0.25 * pool.received)
    queries = replace(rows, vectors=2 * rows.vectors)
    scaled = analyze_rows(LAYER, 1, 0, queries, keys, config, pool=moved).metrics
    for name in (*BOTH, "ap_attended_se", "ap_attended_aligned_counted", "ap_attended_ess"):
        assert scaled[name] == pytest.approx(plain[name], rel=1e-6)


def test_the_capture_gives_the_attention_of_the_keys(sampled: ap.Dump) -> None:
    """The number of later queries is then not known; attention columns are not needed."""
    result = ap.analyze_head(LAYER, 0, dump=sampled)
    assert result.missing["n_later_queries"] == FROM_CAPTURE
    keys, pool = pool_of(sampled)
    assert len(pool.keys.rows) > 2 * len(keys.rows)
    assert pool.keys.weights.weight.min() >= 1
    assert (pool.attention(2) == pool.attention(0)).all()  # two query heads per key head
    assert (pool.attention(1) != pool.attention(0)).any()


@pytest.mark.parametrize("most", [60, 100, 10**6])
def test_weights_of_a_pool_count_all_tokens(tmp_path: Path, most: int) -> None:
    """Also if `max_tokens_per_head` keeps a part of the base rows, or of both files."""
    texts, length, dumps = 4, 100, 60
    totals, attention = [], []
    for number in range(dumps):
        rng = np.random.default_rng(number)
        received = (
            np.random.default_rng(0).exponential(size=(texts, length)).astype(np.float32) / 100
        )
        by_attention = np.minimum(1.0, 30 * received)
        base = rng.random((texts, length)) < 0.25
        drawn = (rng.random((texts, length)) < by_attention) & ~base
        root = tmp_path / str(number)
        inclusion = joint_inclusion(np.full((texts, length), 0.25), by_attention)
        for kept, is_drawn in ((base, False), (drawn, True)):
            text, position = np.nonzero(kept)
            write_head(
                root,
                HeadId(LAYER, 0, "k", attended=is_drawn),
                bucket=position // 4,
                example_id=text,
                position=position,
                vectors=rng.standard_normal((len(text), 4)).astype(np.float32),
                received=ReceivedRows(received[kept][:, None], inclusion[kept]),
            )
        facts = {"sampler": {"type": "uniform", "base_rate": 1.0}, "bucket_type": "uniform"}
        write_manifest(root, DumpManifest(min_bucket_size=4, **facts))
        settings = {"max_tokens_per_head": most, "seed": number, "bin_size": 16}
        _, pool = pool_of(ap.open_dump(root), **settings)
        weight = pool.keys.weights.weight
        totals.append(weight.sum())
        attention.append(weight @ pool.attention(0))
        assert len(pool.keys.rows) <= 2 * most
    for found, right in ((totals, texts * length), (attention, received.sum(dtype=float))):
        error = np.std(found) / math.sqrt(dumps)
        assert abs(np.mean(found) - right) < 3 * error < 0.1 * right


def test_vectors_before_rope_give_the_same_values(sampled: ap.Dump, tmp_path: Path) -> None:
    how = {"sampler": "uniform", "base_rate": 1.0, "min_bucket_size": 16, "pre_rope": True}
    before = peaked_dump(tmp_path, TEXTS, LENGTH, **how)
    found, right = (
        ap.analyze_head(LAYER, 0, dump=dump, config=ap.make_config(bin_size=48)).metrics
        for dump in (before, sampled)
    )
    for name in (*BOTH, "ap_attended_se", "ap_attended_aligned_se"):
        assert found[name] == pytest.approx(right[name], abs=1e-5)


def test_a_dump_without_rotary_record_has_values_over_a_bin(
    sampled: ap.Dump, tmp_path: Path
) -> None:
    shutil.copytree(str(sampled.path), tmp_path / "dump")
    file = tmp_path / "dump" / "dump.json"
    manifest = json.loads(file.read_text())
    for entry in manifest["layers"]:
        entry.pop("rotary")
    file.write_text(json.dumps(manifest))
    result = ap.analyze_head(LAYER, 0, dump=tmp_path / "dump")
    right = ap.analyze_head(LAYER, 0, dump=sampled).metrics
    for name in ("ap_attended", "ap_attended_se", "ap_attended_counted", "ap_attended_ess"):
        assert result.metrics[name] == right[name]
    for name in ("ap_attended_aligned", "ap_attended_aligned_counted", "ap_aligned"):
        assert "attention-plasticity add-rotary" in result.missing[name]


@pytest.mark.parametrize("damage", ["no folder", "null"])
def test_captured_queries_take_the_place_of_unknown_values(
    sampled: ap.Dump, tmp_path: Path, damage: str
) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(str(sampled.path), dump)
    if damage == "no folder":
        shutil.rmtree(dump / "attended")
    else:
        for file in (dump / "l01h00k", dump / "attended" / "l01h00k"):
            table = pq.read_table(file / "data.parquet")
            place = table.column_names.index("received")
            null = pa.nulls(len(table), table.schema.field(place).type)
            table = table.set_column(place, table.schema.field(place), null)
            pq.write_table(table, file / "data.parquet")
    row = ap.analyze_head(LAYER, 0, dump=dump).metrics
    assert row["n_later_queries"] > 8
    assert all(math.isfinite(row[name]) for name in BOTH)
