"""Whether input files are still the same."""

import os
import shutil
import tracemalloc

import pytest

from attention_plasticity.run.fingerprints import InputFiles, group_digest
from dumps import make_dump
from odd_files import huge
from qk_dump.source import open_dump


@pytest.fixture
def dump(tmp_path):
    return make_dump(tmp_path / "dump", layers=1, n=60)


def fingerprint(inputs):
    return inputs.of_group(0, 0, [0, 1])


def test_the_first_look_is_kept_and_a_change_is_seen_by_a_new_one(dump):
    opened = open_dump(dump)
    inputs = InputFiles(opened)
    first = fingerprint(inputs)
    os.utime(dump / "l00h00q" / "data.parquet", (1, 1))
    assert group_digest(opened, 0, 0, [0, 1]) == first  # times are not content
    assert group_digest(opened, 0, 0, [0]) != first
    shutil.copy(dump / "l00h02q" / "data.parquet", dump / "l00h00q" / "data.parquet")
    assert fingerprint(inputs) == first
    assert group_digest(opened, 0, 0, [0, 1]) != first


def test_unreadable_files_have_a_state_as_well(dump):
    path, opened, found = dump / "l00h00q" / "data.parquet", open_dump(dump), set()
    for change in (
        lambda: path.write_text("x"),
        path.unlink,
        lambda: path.symlink_to("data.parquet"),
        lambda: shutil.rmtree(path.parent),
    ):
        change()
        found.add(group_digest(opened, 0, 0, [0, 1]))
    assert len(found) >= 3


def test_a_file_is_hashed_in_bounded_memory(dump):
    huge(dump / "l00h00q" / "data.parquet", size=600 << 20)
    tracemalloc.start()
    fingerprint(InputFiles(open_dump(dump)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
