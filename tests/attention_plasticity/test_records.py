"""Finished heads on disk: they come back bit for bit, or not at all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from attention_plasticity.config import make_config
from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.plan import make_plan
from attention_plasticity.records import Records
from attention_plasticity.results import HeadResult
from dumps import make_dump
from qk_dump.errors import ConfigError
from qk_dump.layout import Dump, HeadId, open_dump


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    return open_dump(make_dump(tmp_path / "dump", layers=1, n=60))


def recorded(out: Path, dump: Dump, *heads: int) -> list[HeadResult]:
    out.mkdir(exist_ok=True)
    records = Records(out)
    resume(records, dump)
    results = [analyze_head(0, head, head // 2, dump) for head in heads]
    for result in results:
        records.add(result, dump)
    return results


def resume(
    records: Records, dump: Dump, *, overwrite: bool = False, **settings: object
) -> dict[tuple[int, int], HeadResult]:
    config = make_config(**settings)
    return records.resume(dump, config, make_plan(dump, config).layout, overwrite=overwrite)


def test_a_record_reads_back_bit_for_bit(dump: Dump, tmp_path: Path) -> None:
    (result,) = recorded(tmp_path / "out", dump, 1)
    back = resume(Records(tmp_path / "out"), dump)[0, 1]
    assert repr(back) == repr(result)
    assert any(math.isnan(value) for value in back.metrics.values())


def test_a_changed_input_file_is_refused_then_thrown_away(dump: Dump, tmp_path: Path) -> None:
    out = tmp_path / "out"
    recorded(out, dump, 0, 1, 2)
    make_dump(dump.path, layers=1, k_heads=1, q_heads=1, n=61)
    with pytest.raises(ConfigError, match=r"input files of 2 heads \(layer 0: 0-1\)"):
        resume(Records(out), dump)
    assert resume(Records(out), dump, overwrite=True) == {}
    assert list((out / ".heads").iterdir()) == [out / ".heads" / "settings.json"]


def test_a_moved_dump_is_still_the_same_input(dump: Dump, tmp_path: Path) -> None:
    recorded(tmp_path / "out", dump, 0)
    moved = dump.path.rename(tmp_path / "elsewhere")
    assert list(resume(Records(tmp_path / "out"), open_dump(moved))) == [(0, 0)]


def test_overwrite_continues_a_run_that_fits(dump: Dump, tmp_path: Path) -> None:
    recorded(tmp_path / "out", dump, 0)
    assert list(resume(Records(tmp_path / "out"), dump, overwrite=True)) == [(0, 0)]


def test_a_missing_key_head_shows_in_the_fingerprint(dump: Dump, tmp_path: Path) -> None:
    records = Records(tmp_path)
    both = [HeadId(0, 0, "q"), HeadId(0, 0, "k")]
    assert records.fingerprint(dump, both) != records.fingerprint(dump, both[:1])
    assert records.fingerprint(dump, both) == Records(tmp_path).fingerprint(dump, both)


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first, second = Records(tmp_path), Records(tmp_path)
    first.lock()
    with pytest.raises(ConfigError, match="another run is writing here"):
        second.lock()
    first.release()
    second.lock()
    second.release()
