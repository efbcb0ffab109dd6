"""Heads of dumps with attention columns: against the slow reference, and where they are missing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from attention_dumps import Layer, make_attention_dump
from attention_plasticity import HeadError, analyze_head, make_config, open_dump
from attention_plasticity.head import attended
from attention_plasticity.head.layer import (
    BIASED,
    NO_COLUMNS,
    NO_COMMON_TEXT,
    PRE_ROPE,
    SELECTIVE,
    SINGLE_EXAMPLE,
    WRONG_SCALE,
)
from attention_plasticity.head.result import HeadResult
from attention_plasticity.head.rows import KeyHead, read_queries
from attention_plasticity.head_analysis import analyze_rows
from attention_plasticity.metrics import ATTENTION_MEANS
from qk_dump.layout import HeadId
from reference import analyse
from reference_checks import assert_equals_reference

LAYERS = {
    "all keys": (Layer(), {}),
    "few rows": (Layer(), {"share": 0.4, "texts": 9}),
    "few texts": (Layer(), {"texts": 3}),
    "soft-cap": (Layer(softcap=1.5), {"share": 0.7}),
    "window": (Layer(window=14), {"share": 0.8}),
    "chunks": (Layer(window=16, chunked=True), {}),
    "some queries without attention": (Layer(), {"unknown": 0.4}),
    "few bins": (Layer(), {"bins": 4}),
    "many bins": (Layer(), {"bins": 30}),
    "sharp": (Layer(scale=4.0), {"share": 0.8}),
    "many early rows": (Layer(), {"log_rate": 8.0, "bucket_size": 2, "length": 64}),
}
ATTENDED = ("ap_attended", "ap_attended_se", "ap_attended_counted", "ap_attended_ess")


def analyze(root: Path, **settings: Any) -> HeadResult:
    return analyze_head(0, 0, 0, open_dump(root), make_config(**settings))


@pytest.mark.parametrize(("layer", "dump"), LAYERS.values(), ids=LAYERS)
def test_every_column_equals_the_reference(
    tmp_path: Path, layer: Layer, dump: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attended, "PAIRS", 40)
    root = make_attention_dump(tmp_path, layer=layer, **dump)
    for settings in ({"distant_from": 4}, {"query_model": "full", "num_pairs_per_bucket": 30}):
        config = make_config(**{"num_pairs_per_bucket": 60, **settings})
        result = analyze_head(0, 0, 0, open_dump(root), config)
        without = ("ap_attended", "n_later") if "log_rate" in dump else ()  # needs equal weights
        assert_equals_reference(result, analyse(root, 0, 0, 0, config), without=without)
        assert "ap_attended" not in result.missing


def test_attended_pairs_can_be_the_pairs_of_the_run(tmp_path: Path) -> None:
    root = make_attention_dump(tmp_path, length=64)
    beside = analyze(root, num_pairs_per_bucket=400).metrics
    result = analyze(root, num_pairs_per_bucket=400, pair_sampling="attended", bin_size=8)
    for name in ("ap_attended", "ap_attended_ess", "n_later_queries"):  # in bins of 8 tokens
        assert math.isfinite(result.metrics[name])
    error = math.hypot(result.metrics["ap_overall_se"], beside["ap_attended_se"])
    assert abs(result.metrics["ap_overall"] - result.metrics["ap_attended"]) < 2 * error
    cells = result.bucket_plasticity
    assert dict(cells.groupby("q_bucket")["n_pairs"].sum()) == {j: 400 * j for j in range(1, 8)}
    assert sum(result.distances["n_pairs"]) == 400 * sum(range(1, 8))


UNKNOWN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "wrong scale": ({"layers": [{"layer": 0, "scale": 9.0}]}, {}, WRONG_SCALE),
    "pre-rope": ({"pre_rope": True}, {}, PRE_ROPE),
    "selective": ({"layers": [{"layer": 0, "scale": 0.4, "selective": True}]}, {}, SELECTIVE),
    "biased": ({"layers": [{"layer": 0, "scale": 0.4, "biased": True}]}, {}, BIASED),
    "one example": ({}, {"single_example": True}, SINGLE_EXAMPLE),
}


@pytest.mark.parametrize(("manifest", "settings", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_attended_plasticity_is_nan_for_a_reason(
    tmp_path: Path, manifest: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    root = make_attention_dump(tmp_path, manifest=manifest)
    result = analyze(root, **settings)
    assert {result.missing[name] for name in ATTENDED} == {reason}
    assert all(math.isnan(result.metrics[name]) for name in ATTENDED)
    assert all(math.isfinite(result.metrics[name]) for name in ATTENTION_MEANS)
    assert len(result.attention["q_bucket"]) == 6  # also bucket 0
    with pytest.raises(HeadError, match="l00h00q: attended pairs cannot be drawn: ") as caught:
        analyze(root, pair_sampling="attended", **settings)
    assert reason in str(caught.value)


def test_keys_of_other_texts_receive_no_attention(tmp_path: Path) -> None:
    """The run has a note, because a damaged `example_id` gives this too."""
    root = make_attention_dump(tmp_path)
    file = root / "l00h00q" / "data.parquet"
    table = pq.read_table(file)
    ids = pa.array(np.asarray(table["example_id"]) + 1000)
    pq.write_table(table.set_column(1, "example_id", ids), file)
    result = analyze(root)
    assert result.missing["ap_attended"] == NO_COMMON_TEXT
    assert math.isnan(result.metrics["ap_attended"])


def test_without_columns_everything_is_nan_and_nothing_else_changes(tmp_path: Path) -> None:
    """The pairs of the settings are the same with and without attended pairs beside them."""
    with_columns = analyze(make_attention_dump(tmp_path / "with"))
    without = analyze(make_attention_dump(tmp_path / "without", without=(0,)))
    new = [name for name in without.metrics if name.startswith(("attn_", "ap_attended", "n_later"))]
    assert len(new) == 24
    assert all(math.isnan(without.metrics[name]) for name in new)
    assert without.attention == {}
    assert {without.missing[name] for name in new} == {NO_COLUMNS}
    old = [name for name in without.metrics if name not in new]
    assert repr([without.metrics[name] for name in old]) == repr(
        [with_columns.metrics[name] for name in old]
    )
    assert repr(without.buckets) == repr(with_columns.buckets)
    with pytest.raises(HeadError, match="the queries have no attention columns"):
        analyze(tmp_path / "without", pair_sampling="attended")


def test_errors_are_nan_without_error_bars_or_with_few_groups(tmp_path: Path) -> None:
    few = analyze(make_attention_dump(tmp_path / "few", texts=2))
    none = analyze(make_attention_dump(tmp_path / "all"), error_bars=False)
    for result in (few, none):
        errors = [name for name in result.metrics if name.startswith("a") and name.endswith("_se")]
        assert all(math.isnan(result.metrics[name]) for name in errors)
        assert np.isnan(result.attention["entropy_se"]).all()
        assert math.isfinite(result.metrics["ap_attended"])
    assert few.attention["n_groups"] == [2] * 6


def test_scaled_float64_vectors_give_the_same_attention(tmp_path: Path) -> None:
    """Large vectors are divided by a power of two; queries · keys stays the same."""
    root = make_attention_dump(tmp_path)
    dump, config = open_dump(root), make_config()
    keys = KeyHead.read(dump, 0, 0, config)
    rows, _ = read_queries(dump, HeadId(0, 0, "q"), keys, config)
    rows = replace(rows, vectors=rows.vectors.astype(np.float64))
    keys = replace(keys, rows=replace(keys.rows, vectors=keys.rows.vectors.astype(np.float64)))
    plain = analyze_rows(0, 0, 0, rows, keys, config)
    small = replace(rows, vectors=np.ldexp(rows.vectors, -90))
    large = replace(keys.rows, vectors=np.ldexp(keys.rows.vectors, 30))
    moved = analyze_rows(0, 0, 0, small, replace(keys, rows=large, exponent=-50), config, None, 110)
    for name in ("ap_attended", "ap_attended_ess", "ap_overall"):
        assert moved.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-12)


def test_texts_with_known_attention_may_all_be_left_out(tmp_path: Path) -> None:
    """Only text 0 is long, and its attention is null."""
    root = make_attention_dump(tmp_path)
    for name in ("l00h00q", "l00h00k"):
        file = root / name / "data.parquet"
        table = pq.read_table(file)
        text, position = (np.asarray(table[column]) for column in ("example_id", "position"))
        kept = (text == 0) | (position < position.max() // 2)
        table = table.filter(pa.array(kept))
        for column in set(table.column_names) & {"lse", "max_logit", "entropy", "sink_mass"}:
            null = pa.array(text[kept] == 0)
            values = pc.if_else(null, None, table[column])
            table = table.set_column(table.column_names.index(column), column, values)
        pq.write_table(table, file)
    assert "attn_entropy" not in analyze(root).missing
    result = analyze(root, equal_texts=True)
    assert {result.missing[name] for name in (*ATTENTION_MEANS, *ATTENDED)} == {NO_COLUMNS}
    assert result.attention == {}
