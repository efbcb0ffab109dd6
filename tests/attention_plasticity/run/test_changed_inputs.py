"""Other settings, other files: the tables are those of a new run, and have nothing of earlier ones.

The law of this file: after any change, a run into the same folder gives the bytes of a run into an
empty folder, and computes the heads that the change concerns.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_plasticity.run.preparation import prepare
from dumps import add_attended, add_rotary, head_rows, make_dump, rotary_file, write_columns
from helpers.attention_dumps import make_attention_dump
from qk_dump.heads import HeadId
from qk_dump.manifest import MANIFEST_NAME, read_manifest, write_manifest
from qk_dump.side_files import Example, write_examples, write_tokens
from runs_here import Here, analyse, compared_info, computed, records, run_info, settings, tables

TEXTS = 6
HEADS = [(0, 0), (0, 1), (0, 2), (0, 3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """`dump`, with two key heads of two query heads, and `out`, its run."""
    folder = tmp_path_factory.mktemp("whole")
    dump = make_dump(folder / "dump", layers=1, q_heads=4, k_heads=2, n=90, d=4, examples=TEXTS)
    add_rotary(dump, 1, 4)
    name_texts(dump, range(TEXTS))
    add_attended(dump, 0, 0, d=4, examples=TEXTS)
    analyse(dump, folder / "out")
    return folder


@pytest.fixture
def place(whole, tmp_path):
    """A copy of the dump and its run."""
    return Path(shutil.copytree(whole, tmp_path / "place"))


def name_texts(dump, ids, tokens=1024):
    write_examples(dump, [Example(number, f"text {number}", tokens, "") for number in ids])


def change_manifest(dump, **facts):
    manifest = read_manifest(dump / MANIFEST_NAME)
    write_manifest(dump, manifest.model_copy(update=facts))


def change_middle(path):
    """Other bytes in the middle: size and footer stay."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle + 8 : middle + 12] = np.float32(0.5).tobytes()
    path.write_bytes(content)


def assert_like_new(place, **fields):
    """Run again. The files must be those of a new run. Returns the heads that were computed."""
    done = computed(place / "dump", place / "out", **fields)
    analyse(place / "dump", place / "new", **fields)
    assert tables(place / "out") == tables(place / "new")
    assert compared_info(place / "out") == compared_info(place / "new")
    return done


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1},
        {"num_pairs_per_bucket": 7},
        {"query_model": "full"},
        {"pair_sampling": "context"},
        {"max_tokens_per_head": 50},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_other_settings_give_other_tables_and_switching_back_needs_no_computation(
    fields, place, whole
):
    assert assert_like_new(place, **fields) == HEADS
    assert tables(place / "out") != tables(whole / "out")
    assert len(records(place / "out")) == 4
    assert computed(place / "dump", place / "out") == []
    assert tables(place / "out") == tables(whole / "out")
    assert compared_info(place / "out")["config"]["seed"] == 0


def test_other_thresholds_of_roles_change_the_tables_without_computation(tmp_path):
    dump, out = make_attention_dump(tmp_path / "dump", q_heads=2), tmp_path / "out"
    analyse(dump, out)
    before = tables(out)
    everywhere = {"role_thresholds": {"previous": 0.001}}
    assert computed(dump, out, **everywhere) == []
    after = tables(out)
    assert {name for name in after if after[name] != before[name]} == {"head_roles.csv"}
    assert b"previous" in after["head_roles.csv"]
    assert run_info(out)["config"]["role_thresholds"] == {"previous": 0.001}
    analyse(dump, tmp_path / "new", **everywhere)
    assert tables(tmp_path / "new") == after
    assert computed(dump, out) == []
    assert tables(out) == before


CHANGES = {
    "bytes in the middle": (lambda dump: change_middle(dump / "l00h03q/data.parquet"), HEADS[2:]),
    "keys of one head": (
        lambda dump: write_columns(dump, HeadId(0, 1, "k"), **head_rows(90, 4, seed=5)),
        [(0, 2), (0, 3)],
    ),
    "no keys drawn by attention": (lambda dump: shutil.rmtree(dump / "attended"), [(0, 0), (0, 1)]),
    "another file of a head": (
        lambda dump: shutil.copy(dump / "l00h01q/data.parquet", dump / "l00h01q/more.parquet"),
        HEADS[:2],
    ),
    "lengths of texts": (lambda dump: name_texts(dump, range(TEXTS), 2048), HEADS),
    "no examples.parquet": (lambda dump: (dump / "examples.parquet").unlink(), HEADS),
    "a model in dump.json": (lambda dump: change_manifest(dump, model="another"), HEADS),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_dump_gives_the_tables_of_its_new_state(how, place, whole):
    change, concerned = CHANGES[how]
    change(place / "dump")
    assert assert_like_new(place) == concerned
    shutil.rmtree(place / "dump")
    shutil.copytree(whole / "dump", place / "dump")
    assert computed(place / "dump", place / "out") == []  # the earlier state is back
    assert tables(place / "out") == tables(whole / "out")


def test_a_head_that_goes_and_comes(place, whole):
    moved = (place / "dump" / "l00h01q").rename(place / "l00h01q")
    change_manifest(place / "dump", num_layers=1, num_q_heads=4, num_k_heads=2)
    assert assert_like_new(place) == [(0, 0), (0, 2), (0, 3)]  # dump.json changed
    assert run_info(place / "out")["not_captured"] == [[0, 1]]
    moved.rename(place / "dump" / "l00h01q")
    assert computed(place / "dump", place / "out") == HEADS[:2]
    assert tables(place / "out") == tables(whole / "out")


def test_a_copy_of_the_dump_elsewhere_needs_no_computation(place, whole):
    """Times, places, and settings that change no number are not content."""
    for path in (place / "dump").rglob("*.parquet"):
        os.utime(path, (1, 1))
    assert computed(place / "dump", place / "out") == []
    before = compared_info(place / "out")
    assert computed(place / "dump", place / "out", max_workers=3, layers=[0]) == []
    assert compared_info(place / "out") == before
    assert tables(place / "out") == tables(whole / "out")
    assert run_info(place / "out")["input"]["path"] == str(place / "dump")


def test_texts_of_tokens_are_followed(tmp_path):
    dump, out = make_attention_dump(tmp_path / "dump"), tmp_path / "out"
    write_tokens(dump, {number: f"old {number}" for number in range(12)})
    analyse(dump, out)
    assert b"old 4" in (out / "head_words.csv").read_bytes()
    write_tokens(dump, {number: f"new {number}" for number in range(12)})
    assert computed(dump, out) == [(0, 0)]
    words = (out / "head_words.csv").read_bytes()
    assert b"new 4" in words
    assert b"old" not in words


def test_the_dump_of_repeated_tokens_is_followed(tmp_path):
    made = {"synthetic": {"type": "repeated", "length": 24}}
    dump = make_attention_dump(tmp_path / "dump", q_heads=2)
    repeated = make_attention_dump(tmp_path / "repeated", q_heads=2, seed=9, manifest=made)
    out = tmp_path / "out"
    how = {"repeated": str(repeated)}
    assert computed(dump, out) == [(0, 0), (0, 1)]
    assert computed(dump, out, **how) == [(0, 0), (0, 1)]
    other = make_attention_dump(tmp_path / "other", q_heads=2, seed=3, manifest=made)
    shutil.copy(other / "l00h01q" / "data.parquet", repeated / "l00h01q")
    assert computed(dump, out, **how) == [(0, 0), (0, 1)]
    analyse(dump, tmp_path / "new", **how)
    assert tables(out) == tables(tmp_path / "new")


def test_rotary_records_in_a_file_count_by_their_content(place, whole):
    file = rotary_file(whole / "dump", place / "rotary.json")
    assert computed(place / "dump", place / "out", rotary=str(file)) == HEADS
    assert tables(place / "out") == tables(whole / "out")
    copy = file.rename(place / "copy.json")
    assert computed(place / "dump", place / "out", rotary=str(copy)) == []


# records of other settings


def test_other_records_are_left_alone(place, whole):
    dump, out = place / "dump", place / "out"
    first = {path: path.read_bytes() for path in records(out)}
    analyse(dump, out, seed=1)
    write_columns(dump, HeadId(0, 3, "q"), **head_rows(90, 4, seed=5))
    analyse(dump, out, seed=1)
    assert len(records(out)) == 5
    assert {path: path.read_bytes() for path in first} == first


# files that change while a run reads them


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("l00h01q", []),  # its key head was read before
        ("l00h03q", HEADS[2:]),
        ("l00h01k", HEADS[2:]),
        ("dump.json", HEADS),
    ],
)
def test_a_file_that_changes_during_the_run_is_the_reason_of_its_heads(
    name, failed, whole, tmp_path
):
    """Of a head when a worker reads it; of dump.json when a worker opens the dump."""
    dump = Path(shutil.copytree(whole / "dump", tmp_path / "dump"))
    out, before = tmp_path / "out", 0 if name == "dump.json" else 1

    def change(layer, k_head):
        if k_head != before:
            return
        if name == "dump.json":
            (dump / name).write_bytes((dump / name).read_bytes() + b" ")
        else:
            head = HeadId(0, int(name[4:6]), "q" if name[6] == "q" else "k")
            write_columns(dump, head, **head_rows(90, 4, seed=5))

    outcome = analyse(dump, out, engine=Here(change))
    found = {(failure.layer, failure.q_head): failure.reason for failure in outcome.failures}
    assert found == dict.fromkeys(
        failed, "its files changed during the run; run the same command again"
    )
    again = analyse(dump, out)
    assert again.failures == []
    analyse(dump, tmp_path / "new")
    assert tables(out) == tables(tmp_path / "new")


def test_a_touched_file_beside_the_heads_is_no_change(whole, tmp_path):
    dump = Path(shutil.copytree(whole / "dump", tmp_path / "dump"))
    engine = Here(lambda layer, k_head: os.utime(dump / "dump.json", (1, 1)))
    assert analyse(dump, tmp_path / "out", engine=engine).failures == []


# texts that examples.parquet does not name


def test_texts_of_layers_that_are_not_chosen_count(place):
    """So any choice of layers has the same groups of texts, and its heads fit together."""
    dump = place / "dump"
    for kind in "qk":
        shutil.copytree(dump / f"l00h00{kind}", dump / f"l01h00{kind}")
    for file in dump.glob("l00*/data.parquet"):
        pq.write_table(pq.read_table(file, filters=[("example_id", "!=", 0)]), file)
    change_manifest(dump, num_layers=2, num_q_heads=4, num_k_heads=2)
    name_texts(dump, range(3))
    analyse(dump, place / "parts", layers=[1])
    analyse(dump, place / "parts", layers=[0])
    analyse(dump, place / "whole")
    assert tables(place / "parts") == tables(place / "whole")
    assert prepare(settings(dump, place / "x", layers=[0])).texts.count == TEXTS
