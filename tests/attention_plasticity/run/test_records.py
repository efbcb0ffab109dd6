"""Finished heads on disk: they come back bit for bit, or not at all."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attention_plasticity.config import make_config
from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.read.texts import UNKNOWN_TEXTS
from attention_plasticity.run.fingerprints import InputFiles
from attention_plasticity.run.plan import make_plan
from attention_plasticity.run.records import Records, read_sealed, sealed
from attention_plasticity.run.run_info import run_settings
from dumps import add_rotary, make_dump
from qk_dump.layout import Dump
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    return open_dump(add_rotary(make_dump(tmp_path / "dump", layers=1, n=60)))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def records_in(out: Path, dump: Dump, **fields: object) -> Records:
    config = make_config(**fields)
    return Records(out, run_settings(config, make_plan(dump, config).layout, dump))


def record(out: Path, dump: Dump, *heads: int) -> list[HeadResult]:
    records, inputs = records_in(out, dump), InputFiles(dump)
    records.begin(discard=False)
    results = [analyze_head(0, head, head // 2, dump) for head in heads]
    for result in results:
        records.add(result, inputs, UNKNOWN_TEXTS.digest)
    return results


def test_a_record_reads_back_bit_for_bit(dump: Dump, out: Path) -> None:
    (result,) = record(out, dump, 1)
    records = records_in(out, dump)
    assert repr(records.load(0, 1)) == repr(result)
    assert any(math.isnan(value) for value in result.metrics.values())
    earlier = records.finished_heads(InputFiles(dump))
    assert repr(earlier.metrics[0, 1]) == repr(result.metrics)
    assert earlier.conflict is None


def test_other_settings_are_a_conflict_that_names_them(dump: Dump, out: Path) -> None:
    record(out, dump, 0)
    earlier = records_in(out, dump, seed=3, p_alpha=0.5).finished_heads(InputFiles(dump))
    assert earlier.metrics == {}
    assert earlier.conflict is not None
    assert "p_alpha (0.01 then, 0.5 now), seed (0 then, 3 now)" in earlier.conflict
    older = run_settings(make_config(), make_plan(dump, make_config()).layout, dump)
    del older["equal_texts"]
    Records(out, older).begin(discard=False)
    conflict = records_in(out, dump).finished_heads(InputFiles(dump)).conflict
    assert "equal_texts (not recorded then, False now)" in (conflict or "")


def test_records_without_their_settings_file_serve_only_the_same_settings(
    dump: Dump, out: Path
) -> None:
    record(out, dump, 0)
    (out / ".heads" / "settings.json").unlink()
    assert list(records_in(out, dump).finished_heads(InputFiles(dump)).metrics) == [(0, 0)]
    refused = records_in(out, dump, seed=3).finished_heads(InputFiles(dump))
    assert refused.metrics == {}
    assert refused.conflict is not None


def test_a_touched_input_file_is_a_conflict(dump: Dump, out: Path) -> None:
    record(out, dump, 0, 1, 2)
    file = dump.path / "l00h00k" / "data.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # the footer does not tell
    file.write_bytes(content)
    earlier = records_in(out, dump).finished_heads(InputFiles(dump))
    assert earlier.conflict is not None
    assert "the input files of 2 heads (layer 0: 0-1)" in earlier.conflict


def test_a_moved_dump_is_still_the_same_input(dump: Dump, out: Path, tmp_path: Path) -> None:
    record(out, dump, 0)
    moved = open_dump(dump.path.rename(tmp_path / "elsewhere"))
    assert list(records_in(out, moved).finished_heads(InputFiles(moved)).metrics) == [(0, 0)]


@pytest.mark.parametrize("content", ["", "{}", "[]", "\x00", '{"settings": "x"}', "\udcff"])
def test_a_damaged_record_counts_as_not_finished(dump: Dump, out: Path, content: str) -> None:
    record(out, dump, 0, 1)
    (out / ".heads" / "l00h01.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    earlier = records_in(out, dump).finished_heads(InputFiles(dump))
    assert list(earlier.metrics) == [(0, 0)]
    assert earlier.damaged == [(0, 1)]
    assert earlier.conflict is None


@pytest.mark.parametrize(
    "field", ["key_head", "missing", "metrics/ap_aligned", "tables/bins/pooled", "tables/new"]
)
def test_a_record_with_other_fields_or_columns_is_computed_again(
    dump: Dump, out: Path, field: str
) -> None:
    record(out, dump, 0, 1)
    path = out / ".heads" / "l00h01.json"
    content = read_sealed(path)
    assert content is not None
    *places, name = field.split("/")
    part = content
    for place in places:
        part = part[place]
    if name in part:
        del part[name]
    else:
        part[name] = {"plasticity": [0.5]}
    path.write_text(sealed(content))
    records = records_in(out, dump)
    earlier = records.finished_heads(InputFiles(dump))
    assert (list(earlier.metrics), earlier.damaged, earlier.conflict) == ([(0, 0)], [], None)
    assert [head for head, _ in records.usable()] == [(0, 0)]


def flips(content: bytes) -> Iterator[bytes]:
    """The content with each of its bytes changed; the lowest bit makes a digit another digit."""
    for place in range(len(content)):
        for bit in (1, 128):
            yield content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]


def test_no_record_with_a_changed_byte_is_taken(dump: Dump, out: Path) -> None:
    metrics = {"layer": 0, "q_head": 1, "k_head": 0, "ap_overall": 0.123, "ap_aligned": math.nan}
    tables = {"bins": {"plasticity": [0.5, 1e-300]}, "components": {"weight": [1.0]}}
    result = HeadResult(0, 1, 0, metrics, tables, missing={"drift": {"q_drift_r": "no texts"}})
    records, inputs = records_in(out, dump), InputFiles(dump)
    records.begin(discard=False)
    records.add(result, inputs, UNKNOWN_TEXTS.digest)
    path = out / ".heads" / "l00h01.json"
    whole = path.read_bytes()
    for content in flips(whole):
        path.write_bytes(content)
        earlier = records.finished_heads(inputs)
        assert (earlier.metrics, earlier.damaged) == ({}, [(0, 1)])
        with pytest.raises(ToolkitError, match=r"l00h01\.json: changed"):
            records.load(0, 1)
    path.write_bytes(whole)
    assert repr(records.load(0, 1)) == repr(result)


def test_a_changed_byte_in_the_settings_neither_loses_a_head_nor_takes_a_wrong_one(
    dump: Dump, out: Path
) -> None:
    record(out, dump, 0)
    path, inputs = out / ".heads" / "settings.json", InputFiles(dump)
    same, other = records_in(out, dump), records_in(out, dump, seed=1)
    for content in flips(path.read_bytes()):
        path.write_bytes(content)
        found = same.finished_heads(inputs)
        assert (list(found.metrics), found.conflict) == ([(0, 0)], None)
        refused = other.finished_heads(inputs)
        assert refused.metrics == {}
        assert refused.conflict is not None
        assert "settings.json is damaged" in refused.conflict


def test_a_record_under_the_name_of_another_head_is_not_taken(dump: Dump, out: Path) -> None:
    record(out, dump, 0, 1)
    heads = out / ".heads"
    (heads / "l00h01.json").write_bytes((heads / "l00h00.json").read_bytes())
    earlier = records_in(out, dump).finished_heads(InputFiles(dump))
    assert (list(earlier.metrics), earlier.damaged) == ([(0, 0)], [(0, 1)])


def test_starting_anew_leaves_no_record_and_no_draft(dump: Dump, out: Path) -> None:
    record(out, dump, 0)
    (out / ".head_metrics.csv.part-123").write_text("half a table")
    (out / ".heads" / ".l00h01.json.part-123").write_text("half a record")
    records_in(out, dump).begin(discard=False)
    assert sorted(path.name for path in out.rglob("*.*")) == [
        ".heads",
        "l00h00.json",
        "settings.json",
    ]
    records_in(out, dump).begin(discard=True)
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


@contextmanager
def another_user(folder: Path) -> Iterator[None]:
    """Work as a user who owns the folder, if this process may read everything."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, -1)
    modes = {place: place.stat().st_mode for place in folder.parents}
    closed = {place: mode for place, mode in modes.items() if not mode & stat.S_IXOTH}
    for place, mode in closed.items():
        place.chmod(mode | stat.S_IXGRP | stat.S_IXOTH)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for place, mode in closed.items():
            place.chmod(mode)


def test_records_and_locks_without_permission_are_named(dump: Dump, out: Path) -> None:
    record(out, dump, 0)
    heads, inputs = out / ".heads", InputFiles(dump)
    (out / ".lock").touch()
    record_file = heads / "l00h00.json"
    with another_user(out):
        for path in (heads, record_file):
            path.chmod(0)
            with pytest.raises(ConfigError) as caught:
                records_in(out, dump).finished_heads(inputs)
            assert str(caught.value) == (
                f"{path}: cannot be read: Permission denied. Remove it, or choose another "
                "output_dir."
            )
            path.chmod(0o700)
        (out / ".lock").chmod(0)
        with pytest.raises(ConfigError, match=r"out/\.lock: cannot be locked: Permission denied"):
            records_in(out, dump).lock()
        heads.chmod(0o500)
        with pytest.raises(OutputError, match=r"\.heads: cannot be written: Permission denied"):
            records_in(out, dump).begin(discard=True)
    for path in out.glob(".heads*"):
        path.chmod(0o700)  # so that the folder of the test can be removed
