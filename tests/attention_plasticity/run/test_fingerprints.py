"""Whether input files are still the same."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from attention_plasticity.run.fingerprints import InputFiles
from dumps import add_attended, make_dump
from odd_files import NOT_REGULAR, Maker, huge, replace_by
from qk_dump.heads import HeadId
from qk_dump.source import open_dump


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return make_dump(tmp_path / "dump", layers=1, n=60)


def fingerprint(inputs: InputFiles) -> str:
    return inputs.of_head(0, 0, 0)


def test_a_copy_has_the_same_fingerprint(dump: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dump, tmp_path / "copy", copy_function=shutil.copy)
    os.utime(copy / "l00h00q" / "data.parquet", (1, 1))
    one, two = (fingerprint(InputFiles(open_dump(path))) for path in (dump, copy))
    assert one == two


def test_other_content_has_another_fingerprint(dump: Path) -> None:
    before = fingerprint(InputFiles(open_dump(dump)))
    make_dump(dump, layers=1, n=60, drift=2.0)
    assert fingerprint(InputFiles(open_dump(dump))) != before
    shutil.rmtree(dump / "l00h00k")
    assert fingerprint(InputFiles(open_dump(dump))) != before


def test_keys_drawn_by_attention_are_files_of_their_key_head(dump: Path) -> None:
    before = fingerprint(InputFiles(open_dump(dump)))
    add_attended(dump)
    inputs = InputFiles(open_dump(dump))
    assert fingerprint(inputs) != before
    inputs.of_head(0, 2, 1)
    assert not inputs.changed()
    add_attended(dump, n=21)
    assert inputs.changed() == {HeadId(0, 0, "k")}


def test_a_change_after_the_first_look_is_seen(dump: Path) -> None:
    inputs = InputFiles(open_dump(dump))
    first = fingerprint(inputs)
    inputs.of_head(0, 1, 0)
    assert not inputs.changed()
    os.utime(dump / "l00h00q" / "data.parquet", (1, 1))
    assert fingerprint(inputs) == first
    assert inputs.changed() == {HeadId(0, 0, "q")}


@pytest.mark.parametrize("name", ["dump.json", "examples.parquet", "tokens.parquet"])
def test_a_changed_file_of_all_heads_changes_all_heads(dump: Path, name: str) -> None:
    (dump / name).write_text("{}")
    inputs = InputFiles(open_dump(dump))
    inputs.of_group(0, 0, [0, 1], None)
    os.utime(dump / name, (1, 1))  # a copy with the same content is no change
    assert not inputs.changed()
    (dump / name).write_text('{"seed": 1}')
    assert inputs.changed() == {HeadId(0, 0, "q"), HeadId(0, 1, "q"), HeadId(0, 0, "k")}


def test_the_fingerprint_is_that_of_the_first_look(dump: Path) -> None:
    inputs = InputFiles(open_dump(dump))
    before = fingerprint(inputs)
    make_dump(dump, layers=1, n=60, drift=2.0)
    assert fingerprint(inputs) == before


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


@pytest.mark.parametrize("make", [make for make, _ in NOT_REGULAR.values()], ids=NOT_REGULAR)
def test_what_is_no_regular_file_is_not_opened(dump: Path, make: Maker) -> None:
    before = fingerprint(InputFiles(open_dump(dump)))
    replace_by(make, dump / "l00h00q" / "data.parquet")
    inputs = InputFiles(open_dump(dump))
    assert fingerprint(inputs) != before
    assert not inputs.changed()


def test_a_file_is_hashed_in_bounded_memory(dump: Path) -> None:
    huge(dump / "l00h00q" / "data.parquet", size=600 << 20)
    tracemalloc.start()
    fingerprint(InputFiles(open_dump(dump)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_names_that_are_not_utf8_have_a_fingerprint(dump: Path) -> None:
    file = dump / "l00h00q" / "data.parquet"
    file.rename(file.with_name("caf\udce9.parquet"))
    assert fingerprint(InputFiles(open_dump(dump)))
