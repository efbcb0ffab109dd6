"""Position before RoPE: against the slow reference, kinds of RoPE, and where it is not known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_dumps import make_attention_dump
from attention_plasticity import analyze_head, make_config, open_dump
from attention_plasticity.head.layer import SINGLE_EXAMPLE
from attention_plasticity.head.result import HeadResult
from attention_plasticity.head.values import FEW_GROUPS
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.metrics import DRIFT_COLUMNS
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.rotary import RotaryRecord, rotate
from qk_dump.writer import write_head
from reference import analyse, write_rows
from reference_checks import assert_equals_reference

HALVES = RotaryRecord((1.0, 0.3, 0.01))
RECORDS = {
    "halves": HALVES,
    "interleaved": RotaryRecord((1.0, 0.3, 0.01), pairing="interleaved"),
    "partial": RotaryRecord((0.7, 0.02), start=2),
}


def entry(record: RotaryRecord | None) -> dict[str, Any]:
    """The layer in `dump.json`; without a record it has no rotary embedding."""
    facts = {"layer": 0, "type": "full_attention", "scale": 0.4, "rope": record is not None}
    return facts | ({} if record is None else {"rotary": record.to_json()})


@pytest.mark.parametrize("record", [*RECORDS.values(), None], ids=[*RECORDS, "no RoPE"])
def test_every_column_equals_the_reference(tmp_path: Path, record: RotaryRecord | None) -> None:
    manifest = {"layers": [entry(record)]}
    root = make_attention_dump(tmp_path, manifest=manifest, log_rate=8.0, bucket_size=2, length=64)
    config = make_config(num_pairs_per_bucket=30)
    result = analyze_head(0, 0, 0, open_dump(root), config)
    # the reference of attended pairs gives all rows the same weight
    assert_equals_reference(
        result, analyse(root, 0, 0, 0, config), without=("ap_attended", "n_later")
    )
    assert not set(DRIFT_COLUMNS) & set(result.missing)


def write_dump(root: Path, record: RotaryRecord, *, pre_rope: bool = False, **rows: Any) -> Path:
    """Two query heads whose content does not drift. RoPE turns their large mean."""
    rng = np.random.default_rng(0)
    text, position = np.divmod(np.arange(rows.get("texts", 8) * 100), 100)
    for name, kind in ((0, "q"), (1, "q"), (0, "k")):
        content = rng.standard_normal((len(text), 6)) + 3.0
        vectors = content if pre_rope else rotate(content, 0.0, position, record)
        bucket, head = position // 16, HeadId(0, name, kind)  # type: ignore[arg-type]
        fields = {"bucket": bucket, "example_id": text, "position": position}
        write_head(root, head, vectors=vectors.astype(np.float32), **fields)
    facts = {"num_layers": 1, "num_q_heads": 2, "num_k_heads": 1, "pre_rope": pre_rope}
    facts |= {"bucket_type": "uniform", "min_bucket_size": 16, "sampler": {"type": "all"}}
    write_manifest(root, DumpManifest(**facts, layers=[entry(record)]))
    return root


def metrics_of(root: Path, **settings: Any) -> tuple[dict[str, Any], dict[str, str]]:
    result = analyze_head(0, 0, 0, open_dump(root), make_config(**settings))
    return result.metrics, result.missing


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_rope_alone_is_no_drift(tmp_path: Path, record: RotaryRecord) -> None:
    """The slow pair turns the mean by 1 radian; the content does not change with position."""
    after, _ = metrics_of(write_dump(tmp_path / "after", record))
    before, _ = metrics_of(write_dump(tmp_path / "before", record, pre_rope=True))
    assert after["q_R2_total"] > 0.03
    for name in ("q_R2_unrotated", "k_R2_unrotated"):
        corrected = after[name] - after[f"{name}_bias"]
        assert abs(corrected) < 4 * after[f"{name}_se"] + 1e-3
        assert after[name] < 0.01
    assert after["q_mean_share"] == pytest.approx(0.9, abs=0.01)
    for name in DRIFT_COLUMNS:
        for column in (name, f"{name}_se", f"{name}_bias"):
            assert after[column] == pytest.approx(before[column], rel=1e-4, abs=1e-7)
    # the sums of turned queries are float32
    assert before["q_R2_total"] == pytest.approx(before["q_R2_unrotated"], rel=1e-5)


@pytest.mark.parametrize("factor", [1e-250, 3.0, 1e250])
def test_the_scale_of_queries_and_keys_has_no_effect(tmp_path: Path, factor: float) -> None:
    root = write_dump(tmp_path / "dump", HALVES)
    expected, _ = metrics_of(root)
    for name in ("l00h00q", "l00h00k"):
        table = pq.read_table(root / name / "data.parquet")
        vectors = factor * np.array(table["vector"].to_pylist(), np.float64)
        ids = {key: table[key].to_numpy() for key in ("bucket", "example_id", "position")}
        write_rows(root, name, vectors=vectors, **ids)
    scaled, missing = metrics_of(root)
    assert not set(DRIFT_COLUMNS) & set(missing)
    for name in DRIFT_COLUMNS:
        for column in (name, f"{name}_se", f"{name}_bias"):
            assert scaled[column] == pytest.approx(expected[column], rel=1e-4, abs=1e-7)


def test_one_key_head_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attention_plasticity.head import rows

    calls = []
    plain = rows.drift
    monkeypatch.setattr(rows, "drift", lambda *args: calls.append(1) or plain(*args))
    dump = open_dump(write_dump(tmp_path, HALVES))
    results = list(analyze_group(dump, 0, 0, [0, 1], make_config()))
    assert len(calls) == 1
    assert [result.q_head for result in results] == [0, 1]
    one, other = (result for result in results if isinstance(result, HeadResult))
    assert one.metrics["k_R2_unrotated"] == other.metrics["k_R2_unrotated"]


def test_without_a_record_the_reason_has_the_command(tmp_path: Path) -> None:
    root = write_dump(tmp_path, HALVES)
    write_manifest(root, DumpManifest(model="owner/tiny", layers=[{"layer": 0, "rope": True}]))
    metrics, missing = metrics_of(root)
    for name in DRIFT_COLUMNS:
        for column in (name, f"{name}_se", f"{name}_bias"):
            assert math.isnan(metrics[column])
            assert "attention-plasticity add-rotary DUMP --model.name owner/tiny" in missing[column]
    write_manifest(root, DumpManifest(pre_rope=True))  # no record is needed
    metrics, missing = metrics_of(root)
    assert metrics["q_R2_unrotated"] == pytest.approx(metrics["q_R2_total"], rel=1e-5)


def test_errors_need_texts(tmp_path: Path) -> None:
    root = write_dump(tmp_path / "few", HALVES, texts=3)
    metrics, missing = metrics_of(root)
    for name in DRIFT_COLUMNS:
        assert not math.isnan(metrics[name])
        assert missing[f"{name}_se"] == missing[f"{name}_bias"] == FEW_GROUPS
    for settings, why in (({"single_example": True}, SINGLE_EXAMPLE), ({"error_bars": False}, "")):
        metrics, missing = metrics_of(root, **settings)
        for name in DRIFT_COLUMNS:
            assert not math.isnan(metrics[name])
            assert missing[f"{name}_se"] == (why or "error_bars is off")
