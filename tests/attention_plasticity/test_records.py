"""Finished heads on disk: they come back bit for bit, or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from attention_plasticity.config import make_config
from attention_plasticity.fingerprints import InputFiles
from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.plan import make_plan
from attention_plasticity.records import Records, run_settings
from attention_plasticity.results import HeadResult
from dumps import make_dump
from qk_dump.errors import ConfigError
from qk_dump.layout import Dump, open_dump


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    return open_dump(make_dump(tmp_path / "dump", layers=1, n=60))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def records_in(out: Path, dump: Dump, **fields: object) -> Records:
    config = make_config(**fields)
    return Records(out, run_settings(config, make_plan(dump, config).layout))


def record(out: Path, dump: Dump, *heads: int) -> list[HeadResult]:
    records, inputs = records_in(out, dump), InputFiles(dump)
    records.begin(anew=False)
    results = [analyze_head(0, head, head // 2, dump) for head in heads]
    for result in results:
        records.add(result, inputs)
    return results


def test_a_record_reads_back_bit_for_bit(dump: Dump, out: Path) -> None:
    (result,) = record(out, dump, 1)
    records = records_in(out, dump)
    assert repr(records.load(0, 1)) == repr(result)
    assert any(math.isnan(value) for value in result.metrics.values())
    earlier = records.earlier(InputFiles(dump))
    assert repr(earlier.metrics[0, 1]) == repr(result.metrics)
    assert earlier.conflict is None


def test_other_settings_are_a_conflict_that_names_them(dump: Dump, out: Path) -> None:
    record(out, dump, 0)
    earlier = records_in(out, dump, seed=3, p_alpha=0.5).earlier(InputFiles(dump))
    assert earlier.metrics == {}
    assert earlier.conflict is not None
    assert "p_alpha (0.01 then, 0.5 now), seed (0 then, 3 now)" in earlier.conflict


def test_records_without_their_settings_file_serve_only_the_same_settings(
    dump: Dump, out: Path
) -> None:
    record(out, dump, 0)
    (out / ".heads" / "settings.json").unlink()
    assert list(records_in(out, dump).earlier(InputFiles(dump)).metrics) == [(0, 0)]
    assert records_in(out, dump, seed=3).earlier(InputFiles(dump)).metrics == {}


def test_a_touched_input_file_is_a_conflict(dump: Dump, out: Path) -> None:
    record(out, dump, 0, 1, 2)
    file = dump.path / "l00h00k" / "data.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # the footer does not tell
    file.write_bytes(content)
    earlier = records_in(out, dump).earlier(InputFiles(dump))
    assert earlier.conflict is not None
    assert "the input files of 2 heads (layer 0: 0-1)" in earlier.conflict


def test_a_moved_dump_is_still_the_same_input(dump: Dump, out: Path, tmp_path: Path) -> None:
    record(out, dump, 0)
    moved = open_dump(dump.path.rename(tmp_path / "elsewhere"))
    assert list(records_in(out, moved).earlier(InputFiles(moved)).metrics) == [(0, 0)]


@pytest.mark.parametrize("content", ["", "{}", "[]", "\x00", '{"settings": "x"}'])
def test_a_damaged_record_counts_as_not_finished(dump: Dump, out: Path, content: str) -> None:
    record(out, dump, 0, 1)
    (out / ".heads" / "l00h01.json").write_text(content)
    assert list(records_in(out, dump).earlier(InputFiles(dump)).metrics) == [(0, 0)]


def test_starting_anew_leaves_no_record_and_no_draft(dump: Dump, out: Path) -> None:
    record(out, dump, 0)
    (out / ".head_metrics.csv.part-123").write_text("half a table")
    (out / ".heads" / ".l00h01.json.part-123").write_text("half a record")
    records_in(out, dump).begin(anew=False)
    assert sorted(path.name for path in out.rglob("*.*")) == [
        ".heads",
        "l00h00.json",
        "settings.json",
    ]
    records_in(out, dump).begin(anew=True)
    assert [path.name for path in (out / ".heads").iterdir()] == ["settings.json"]
    assert json.loads((out / ".heads" / "settings.json").read_text())["seed"] == 0


def test_a_second_lock_is_refused_until_the_first_is_released(dump: Dump, out: Path) -> None:
    first, second = records_in(out, dump), records_in(out, dump)
    first.lock()
    with pytest.raises(ConfigError, match="another run is writing here"):
        second.lock()
    first.release()
    second.lock()
    second.release()
