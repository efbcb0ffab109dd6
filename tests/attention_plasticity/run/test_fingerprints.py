"""Whether input files are still the same."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from attention_plasticity.run.fingerprints import InputFiles
from dumps import make_dump
from odd_files import huge
from qk_dump.heads import HeadId
from qk_dump.source import open_dump


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return make_dump(tmp_path / "dump", layers=1, n=60)


def fingerprint(inputs: InputFiles) -> str:
    return inputs.of_head(0, 0, 0)


def test_a_change_after_the_first_look_is_seen(dump: Path) -> None:
    inputs = InputFiles(open_dump(dump))
    first = fingerprint(inputs)
    inputs.of_head(0, 1, 0)
    assert not inputs.changed()
    os.utime(dump / "l00h00q" / "data.parquet", (1, 1))
    assert fingerprint(inputs) == first
    assert inputs.changed() == {HeadId(0, 0, "q")}


def test_unreadable_files_have_a_state_as_well(dump: Path) -> None:
    path = dump / "l00h00q" / "data.parquet"
    path.write_text("x")
    inputs = InputFiles(open_dump(dump))
    fingerprint(inputs)
    assert not inputs.changed()
    path.unlink()
    path.symlink_to("data.parquet")
    assert inputs.changed() == {HeadId(0, 0, "q")}
    shutil.rmtree(path.parent)
    assert inputs.changed() == {HeadId(0, 0, "q")}


def test_a_file_is_hashed_in_bounded_memory(dump: Path) -> None:
    huge(dump / "l00h00q" / "data.parquet", size=600 << 20)
    tracemalloc.start()
    fingerprint(InputFiles(open_dump(dump)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
