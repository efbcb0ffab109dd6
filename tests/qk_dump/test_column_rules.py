"""Columns that contradict dump.json are refused; all others are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from attention_dumps import Layer, make_attention_dump
from head_files import INTEGERS, LATE, read, refusal, save
from qk_dump.attention_queries import LayerAttention
from qk_dump.buckets import BucketGeometry
from qk_dump.column_rules import ColumnRules, rules_of
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_toolkit.errors import ConfigError

UNIFORM = ColumnRules(3, geometry=BucketGeometry("uniform", 10))
LOG = ColumnRules(3, geometry=BucketGeometry("log", 8))
GEOMETRIES = [UNIFORM, LOG]


def rows(rules: ColumnRules, n: int = 40, kind: str = "int32", **changes: Any) -> dict[str, Any]:
    """Columns whose buckets follow from their positions."""
    assert rules.geometry is not None
    position = np.arange(n) % 120
    bucket = rules.geometry.bucket(position)
    return {"bucket": pa.array(bucket), "position": pa.array(position.astype(kind)), **changes}


@pytest.mark.parametrize("rules", GEOMETRIES)
def test_buckets_that_follow_from_positions_are_read(file: Path, rules: ColumnRules) -> None:
    for kind in (*INTEGERS, "float32", "float64"):
        assert len(read(save(file, 40, **rows(rules, kind=kind)), rules=rules)) == 40
    shifted = pa.array(np.arange(40) + np.float32(0.75))
    assert len(read(save(file, 40, **rows(rules, position=shifted)), rules=rules)) == 40


@pytest.mark.parametrize("rules", GEOMETRIES)
@pytest.mark.parametrize("damage", ["shuffled", "swapped", "one row"])
def test_a_bucket_that_does_not_follow_is_refused_with_both_values(
    file: Path, rules: ColumnRules, damage: str
) -> None:
    content = rows(rules, n := LATE + 100)
    bucket, position = (content[name].to_numpy().copy() for name in ("bucket", "position"))
    expected, row = bucket.copy(), LATE
    if damage == "shuffled":
        np.random.default_rng(0).shuffle(bucket)
    elif damage == "swapped":
        bucket, position = position, bucket
        assert rules.geometry is not None
        expected = rules.geometry.bucket(position)
    else:
        bucket[row] += 1
    row = int(np.argmax(bucket != expected))
    told = refusal(save(file, n, bucket=pa.array(bucket), position=pa.array(position)), rules=rules)
    assert f"row {row}: bucket is {bucket[row]}, " in told
    assert f"position {position[row]} belongs to bucket {expected[row]}" in told
    assert "dump.json" in told
    assert len(read(save(file, n, bucket=pa.array(bucket)))) == n  # nothing told, nothing checked


def test_rows_that_are_not_chosen_are_checked_too(file: Path) -> None:
    content = rows(UNIFORM, 200)
    bucket = content["bucket"].to_numpy().copy()
    bucket[137] = 0
    path = save(file, 200, **{**content, "bucket": pa.array(bucket)})
    assert "row 137" in refusal(path, max_rows=5, rules=UNIFORM)


WINDOWED = ColumnRules(3, window_known=True, window=64)
FULL = ColumnRules(3, window_known=True, window=None)


def windows(n: int, *values: int | None) -> pa.Array:
    return pa.array([*values, *[values[-1]] * (n - len(values))], pa.int32())


@pytest.mark.parametrize(
    ("rules", "column", "told"),
    [
        (WINDOWED, None, "has no column 'sliding_window', expected 64 (dump.json: layer 3)"),
        (WINDOWED, windows(6, 32), "row 0: sliding_window is 32, expected 64 (dump.json: layer 3)"),
        (WINDOWED, windows(6, None), "row 0: sliding_window is null, expected 64"),
        (WINDOWED, windows(6, 64, 64, None), "row 2: sliding_window is null, expected 64"),
        (FULL, windows(6, 64), "row 0: sliding_window is 64, expected null (dump.json: layer 3)"),
        (WINDOWED, windows(6, 64), None),
        (FULL, windows(6, None), None),
        (FULL, None, None),
        (ColumnRules(3), windows(6, 5), None),
    ],
)
def test_windows_must_be_those_of_dump_json(
    file: Path, rules: ColumnRules, column: pa.Array | None, told: str | None
) -> None:
    if column is None:
        save(file, without="sliding_window")
    else:
        save(file, sliding_window=column)
    if told is None:
        assert len(read(file, rules=rules)) == 6
    else:
        assert told in refusal(file, rules=rules)


def test_a_second_shard_without_the_column_is_refused(file: Path) -> None:
    first = save(file.with_name("a.parquet"), sliding_window=windows(6, 64))
    second = save(file.with_name("b.parquet"), without="sliding_window")
    assert "'sliding_window'" in refusal(first, second, rules=WINDOWED)


def dump_of(**fields: Any) -> Dump:
    return Dump(Path("some/dump"), {}, DumpManifest.model_validate(fields))


def test_rules_come_from_dump_json() -> None:
    layers = [{"layer": 0, "type": "full_attention"}, {"layer": 3, "window": 64}]
    told = dump_of(bucket_type="log", min_bucket_size=8, layers=layers)
    log = BucketGeometry("log", 8)
    assert rules_of(told, 3) == ColumnRules(3, log, window_known=True, window=64)
    assert rules_of(told, 0) == ColumnRules(0, log, window_known=True, window=None)
    assert rules_of(told, 7) == ColumnRules(7, log)
    assert rules_of(dump_of(bucket_type="log"), 0) == ColumnRules(0)
    assert rules_of(Dump(Path("some/dump"), {}), 2) == ColumnRules(2)


@pytest.mark.parametrize("window", ["64", 0, -1, True, 6.5, [64], {}])
def test_a_window_that_is_none_is_refused(window: object) -> None:
    told = dump_of(layers=[{"layer": 3, "window": window}])
    with pytest.raises(ConfigError, match=r"some/dump/dump\.json: layers: window of layer 3"):
        rules_of(told, 3)
    assert rules_of(told, 2) == ColumnRules(2)


def test_two_entries_for_one_layer_must_agree() -> None:
    told = dump_of(layers=[{"layer": 3, "window": 64}, {"layer": 3}])
    with pytest.raises(ConfigError, match=r"dump\.json: layers: layer 3 has two windows"):
        rules_of(told, 3)


def test_attention_of_a_layer_is_that_of_its_record() -> None:
    layers = [
        {"layer": 0, "type": "chunked_attention", "softcap": 20, "learned_sinks": False},
        {
            "layer": 1,
            "type": "full_attention",
            "softcap": 20,
            "learned_sinks": True,
            "biased": True,
        },
        {"layer": 2, "learned_sinks": "no"},
    ]
    dump = Dump(Path("dump"), {}, DumpManifest(layers=layers))
    assert rules_of(dump, 0).attention == LayerAttention(True, False, 20)
    assert rules_of(dump, 1).attention == LayerAttention(
        False, True
    )  # the bias comes after the cap
    assert rules_of(dump, 2).attention == rules_of(dump, 3).attention == LayerAttention()


def test_impossible_attention_is_refused_by_the_rules_of_the_layer(tmp_path: Path) -> None:
    root = make_attention_dump(tmp_path, texts=1, layer=Layer(window=16, softcap=3.0))
    file = root / "l00h00q" / "data.parquet"
    options = {"with_attention": True}
    entry = {"layer": 0, "window": 16}
    for facts, message in (
        ({"softcap": 3.0, "learned_sinks": False}, None),
        ({"softcap": 1e-9}, "is beyond the softcap 1e-09 in dump.json"),
        ({"type": "chunked_attention"}, "beyond the 1 that the query sees"),
    ):
        rules = rules_of(Dump(root, {}, DumpManifest(layers=[{**entry, **facts}])), 0)
        if message is None:
            assert read(file, rules=rules, **options).attention is not None
        else:
            assert message in refusal(file, rules=rules, **options)
