"""Records of finished heads: a head with an undamaged record is never computed again."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.run.records import Records, Unit, packed
from dumps import add_rotary, make_dump
from qk_dump.source import open_dump
from qk_toolkit.errors import OutputError, ToolkitError
from runs_here import (
    Here,
    Notes,
    analyse,
    compared_info,
    computed,
    records,
    run_info,
    state,
    tables,
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=2, q_heads=2, k_heads=1, n=60, d=4), 2, 4)


@pytest.fixture(scope="module")
def finished(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "out"
    analyse(dump, out)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def some_records(folder: Path) -> Records:
    kept = Records(folder, {"seed": 0})
    kept.begin()
    return kept


def test_a_record_is_read_back_bit_for_bit(dump: Path, tmp_path: Path) -> None:
    result = analyze_head(0, 1, 0, open_dump(dump))
    kept, unit = some_records(tmp_path), Unit(0, 1, "0123456789abcdef")
    assert not kept.has(unit)
    kept.add_failure(unit, "a reason")
    assert kept.failure(unit) == "a reason"
    kept.add(unit, packed(vars(result)))
    assert kept.failure(unit) is None
    assert repr(HeadResult(**(kept.read(unit) or {}))) == repr(result)
    assert any(math.isnan(value) for name, value in result.metrics.items() if name[0] == "a")
    assert list(kept.units()) == [unit]
    assert packed(vars(result)) == packed(kept.read(unit) or {})


def test_a_finished_run_is_not_written_again(dump: Path, out: Path) -> None:
    before, engine, watcher = state(out), Here(), Notes()
    outcome = analyse(dump, out, engine=engine, watcher=watcher)
    assert engine.heads == []
    assert state(out) == before
    assert "4 of 4 heads were finished earlier and are kept" in watcher.notes
    assert outcome.info == run_info(out)


@pytest.mark.parametrize(
    "lost",
    ["run.json", "head_metrics.csv", "*.csv", "*.*", "edited", "failures", "heads"],
)
def test_lost_tables_are_written_from_the_records(
    lost: str, dump: Path, finished: Path, out: Path
) -> None:
    for path in out.glob(lost):
        if path.is_file():
            path.unlink()
    if lost == "edited":
        (out / "head_metrics.csv").write_text("x")
    elif lost in (info := run_info(out) if (out / "run.json").exists() else {}):
        del info[lost]
        (out / "run.json").write_text(json.dumps(info))
    assert computed(dump, out) == []
    assert tables(out) == tables(finished)
    assert compared_info(out) == compared_info(finished)


def test_a_record_that_cannot_be_written_ends_the_run(
    dump: Path, finished: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attention_plasticity.run.records.sync", no_space)
    with pytest.raises(OutputError, match=r"l\d\dh\d\d-.*cannot be written: No space left"):
        analyse(dump, out, seed=1)
    assert tables(out) == tables(finished)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "one byte less": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"no record",
    "unpacked": gzip.decompress,
    "wrong checksum": lambda content: content[:-8] + b"abcd" + content[-4:],
    "twice": lambda content: content + content[:100],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_record_is_computed_again(
    how: str, dump: Path, finished: Path, out: Path
) -> None:
    path = records(out)[2]
    content = path.read_bytes()
    path.write_bytes(DAMAGE[how](content))
    assert computed(dump, out) == [(1, 0)]
    assert path.read_bytes() == content
    assert tables(out) == tables(finished)
    assert compared_info(out) == compared_info(finished)


def test_a_record_of_another_head_or_run_is_computed_again(
    dump: Path, finished: Path, out: Path, tmp_path: Path
) -> None:
    """A file under the name of another one, for example by a wrong copy."""
    analyse(dump, tmp_path / "other", seed=1)
    own = records(out)
    strangers = {own[1]: own[0].read_bytes(), own[2]: records(tmp_path / "other")[2].read_bytes()}
    for path, content in strangers.items():
        assert content != path.read_bytes()
        path.write_bytes(content)
    (out / "run.json").unlink()
    assert computed(dump, out) == [(0, 1), (1, 0)]
    assert tables(out) == tables(finished)


def test_a_damaged_record_never_reaches_a_table(dump: Path, finished: Path, out: Path) -> None:
    records(out)[2].write_bytes(b"")
    (out / "run.json").unlink()
    analyse(dump, out, layers=[0])
    assert run_info(out)["not_analysed"] == [[1, 0]]
    kept = (out / "head_metrics.csv").read_bytes().splitlines()
    whole = (finished / "head_metrics.csv").read_bytes().splitlines()
    assert kept == [*whole[:3], whole[4]]


def test_a_damaged_record_of_a_head_that_fails_now_gives_the_reason(
    dump: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records(out)[0].write_bytes(b"\x1f")
    monkeypatch.setattr("attention_plasticity.head_analysis.analyze_group", _fail)
    outcome = analyse(dump, out)
    [failure] = outcome.failures
    assert (failure.layer, failure.q_head) == (0, 0)
    assert "planted" in failure.reason
    assert len(records(out)) == 3


def _fail(*arguments: object) -> None:
    raise ToolkitError("planted")


def test_drafts_of_killed_processes_are_removed_later(dump: Path, out: Path) -> None:
    """A new draft may be of a command that works at the same time."""
    inner = records(out)[0].parent
    old = [out / ".head_metrics.csv.part-1-ab", inner / ".l00h01-12.json.gz.part-1-ab"]
    new = inner / ".l00h00-12.json.gz.part-2-ab"
    for draft in (*old, new):
        draft.write_text("half")
    for draft in old:
        os.utime(draft, (1, 1))
    (out / ".heads" / "tables-killed").mkdir()
    (out / "run.json").unlink()
    analyse(dump, out)
    assert not any(draft.exists() for draft in old)
    assert new.exists()
    assert not list((out / ".heads").glob("tables-*"))
