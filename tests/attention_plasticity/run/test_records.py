"""Records of finished key heads: one with an undamaged record is never computed again."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from attention_plasticity.config import make_config
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.metrics import KEY_HEADS, TABLES
from attention_plasticity.run.record import packed, unpacked
from attention_plasticity.run.records import Records, Unit
from attention_plasticity.run.worker import failed_group
from dumps import add_rotary, make_dump
from qk_dump.source import open_dump
from qk_toolkit.errors import OutputError, ToolkitError
from runs_here import Here, Notes, analyse, compared_info, computed, records, run_info, tables

HEADS = [(layer, head) for layer in range(2) for head in range(4)]


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=2, q_heads=4, k_heads=2, n=60, d=4), 2, 4)


@pytest.fixture(scope="module")
def finished(dump, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "out"
    analyse(dump, out)
    return out


@pytest.fixture
def out(finished, tmp_path):
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def test_a_record_has_what_was_found_bit_for_bit(dump, tmp_path):
    result = analyze_group(open_dump(dump), 0, 1, [2, 3], make_config())
    kept, unit = Records(tmp_path, {"seed": 0}), Unit(0, 1, "0123456789abcdef")
    kept.begin()
    assert kept.read(unit) is None
    kept.add(unit, packed(result))
    found = kept.read(unit)
    assert list(kept.units()) == [unit]
    assert found.q_heads == [2, 3]
    assert found.failures == []
    for head, own in zip(found.heads, result.heads, strict=True):
        assert head["missing"] == own.missing
        for name, value in head["values"].items():
            assert repr(value) == repr(own.metrics[name])  # with NaN
    lines = found.texts["head_metrics"].decode().splitlines()
    for line, own in zip(lines, result.heads, strict=True):
        assert line == ",".join(map(str, own.metrics.values()))
    for name, value in found.key_head["values"].items():
        assert repr(value) == repr(result.key_head.values[name])
    values = [str(result.key_head.values[name]) for name in KEY_HEADS.names]
    assert found.texts["key_heads"].decode() == ",".join(values) + "\n"
    for (q_head, name), numbers in zip(found.quantities, found.numbers, strict=True):
        if q_head is None:
            one = result.key_head.quantities[name]
            np.testing.assert_equal(numbers, [one.value, one.groups, *one.influences])
    assert {q_head for q_head, _ in found.quantities} == {2, 3, None}
    assert set(found.texts) == set(TABLES) - {"roles", "words", "attention"}
    assert packed(result) == packed(result)


def test_a_record_lists_failures_with_their_tracebacks():
    result = failed_group(0, 1, [2, 3], "a reason", "Traceback")
    found = unpacked(packed(result))
    assert found.failures == result.failures
    assert [(one.q_head, one.traceback) for one in found.failures] == [
        (2, "Traceback"),
        (3, "Traceback"),
    ]
    assert found.q_heads == []


def test_a_finished_run_computes_nothing(dump, finished, out):
    engine, watcher = Here(), Notes()
    outcome = analyse(dump, out, engine=engine, watcher=watcher)
    assert engine.heads == []
    assert tables(out) == tables(finished)
    assert compared_info(out) == compared_info(finished)
    assert "8 of 8 heads were finished earlier and are kept" in watcher.notes
    assert outcome.info == run_info(out)


@pytest.mark.parametrize("lost", ["run.json", "head_metrics.csv", "*.csv", "*.*", "edited"])
def test_lost_tables_are_written_from_the_records(lost, dump, finished, out):
    for path in out.glob(lost):
        if path.is_file():
            path.unlink()
    if lost == "edited":
        (out / "head_metrics.csv").write_text("x")
        (out / "run.json").write_text("{}")
    assert computed(dump, out) == []
    assert tables(out) == tables(finished)
    assert compared_info(out) == compared_info(finished)


def test_a_record_that_cannot_be_written_ends_the_run(dump, finished, out, monkeypatch):
    def no_space(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attention_plasticity.run.records.sync", no_space)
    with pytest.raises(OutputError, match=r"l\d\dk\d\d-.*cannot be written: No space left"):
        analyse(dump, out, seed=1)
    assert tables(out) == tables(finished)


DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "one byte less": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"no record",
    "one line": lambda content: content.partition(b"\n")[0] + b"\n",
    "another bit": lambda content: content[:-8] + bytes([content[-8] ^ 1]) + content[-7:],
    "twice": lambda content: content + content[:100],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_record_is_computed_again(how, dump, finished, out):
    path = records(out)[2]
    content = path.read_bytes()
    path.write_bytes(DAMAGE[how](content))
    assert computed(dump, out) == [(1, 0), (1, 1)]
    assert path.read_bytes() == content
    assert tables(out) == tables(finished)
    assert compared_info(out) == compared_info(finished)


def test_a_record_of_another_head_or_run_is_computed_again(dump, finished, out, tmp_path):
    """A file under the name of another one, for example by a wrong copy."""
    analyse(dump, tmp_path / "other", seed=1)
    own = records(out)
    strangers = {own[1]: own[0].read_bytes(), own[2]: records(tmp_path / "other")[2].read_bytes()}
    for path, content in strangers.items():
        assert content != path.read_bytes()
        path.write_bytes(content)
    assert computed(dump, out) == [(0, 2), (0, 3), (1, 0), (1, 1)]
    assert tables(out) == tables(finished)


def test_a_damaged_record_never_reaches_a_table(dump, finished, out):
    records(out)[2].write_bytes(b"")
    analyse(dump, out, layers=[0])
    assert run_info(out)["not_analysed"] == [[1, 0], [1, 1]]
    kept = (out / "head_metrics.csv").read_bytes().splitlines()
    whole = (finished / "head_metrics.csv").read_bytes().splitlines()
    assert kept == [*whole[:5], *whole[7:]]


def test_a_head_that_fails_now_gives_the_reason(dump, out, monkeypatch):
    records(out)[0].write_bytes(b"\x1f")
    monkeypatch.setattr("attention_plasticity.head_analysis.analyze_group", _fail)
    outcome = analyse(dump, out)
    assert [(one.layer, one.q_head) for one in outcome.failures] == [(0, 0), (0, 1)]
    assert {one.reason for one in outcome.failures} == {"planted"}
    assert outcome.info["heads"]["analysed"] == 6
    monkeypatch.undo()
    assert computed(dump, out) == [(0, 0), (0, 1)]


def _fail(*arguments):
    raise ToolkitError("planted")


def test_a_record_grows_with_the_chosen_query_heads(dump, finished, tmp_path):
    """A record has the heads of all commands; the row of a key head is of all of them."""
    out = tmp_path / "out"
    assert computed(dump, out, heads=[1]) == [(0, 1), (1, 1)]
    assert run_info(out)["not_analysed"] == [[0, 0], [0, 2], [0, 3], [1, 0], [1, 2], [1, 3]]
    assert computed(dump, out, heads=[0, 2]) == [*HEADS[:3], *HEADS[4:7]]
    assert computed(dump, out, heads=[1]) == []
    assert len(records(out)) == 4
    assert computed(dump, out) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert tables(out) == tables(finished)
    assert compared_info(out) == compared_info(finished)


def test_drafts_of_killed_processes_are_removed_later(dump, out):
    """A new draft may be of a command that works at the same time."""
    inner = records(out)[0].parent
    old = [out / ".head_metrics.csv.part-1-ab", inner / ".l00k01-12.record.part-1-ab"]
    new = inner / ".l00k00-12.record.part-2-ab"
    for draft in (*old, new):
        draft.write_text("half")
    for draft in old:
        os.utime(draft, (1, 1))
    (out / ".heads" / "tables-killed").mkdir()
    analyse(dump, out)
    assert not any(draft.exists() for draft in old)
    assert new.exists()
    assert not list((out / ".heads").glob("tables-*"))


def test_settings_beside_the_records_tell_what_they_depend_on(out):
    settings = json.loads((records(out)[0].parent / "settings.json").read_text())
    assert {"schema", "version", "seed", "texts", "files"} <= set(settings)
