"""Segments and the dump that is made of them, on disks that damage them or have no room."""

import os
import shutil
import subprocess
from contextlib import suppress
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from captures import (
    CHUNK,
    HEADS,
    PLAN,
    complete,
    content,
    in_process,
    make_capture,
    names_of,
    opened,
    rows_of,
    save,
    schemas,
    segments,
    tables,
    undisturbed,
)
from odd_files import replace_by
from qk_dump import writer
from qk_dump.columns import table_of
from qk_dump.manifest import read_manifest
from qk_dump.rows import Rows
from qk_dump.side_files import read_examples
from qk_dump.source import open_dump
from qk_sniffer.capture.segments import head_groups, read_segment, saved_chunks, write_segment
from qk_sniffer.rows.layer_tables import LayerTable, Part
from qk_toolkit.errors import ConfigError, DumpError, OutputError
from waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def _small_row_groups():
    with mock.patch.object(writer, "ROWS_PER_GROUP", 7):
        yield


def table(folder, head):
    return pq.read_table(folder / head.folder / "data.parquet")


@pytest.mark.parametrize("half", [False, True])
def test_the_dump_holds_every_row_in_order_and_nothing_else(tmp_path, half):
    make_capture(tmp_path, 7, half)
    written = schemas(half)
    for head in HEADS:
        found = table(tmp_path, head)
        parts = [rows_of(chunk, half)[head] for chunk in range(7) if head in rows_of(chunk)]
        assert found.schema.equals(written[head])
        if head.layer == 2:
            assert found.num_rows == 0
            continue
        assert found.num_rows > 7  # several row groups
        assert found.equals(table_of(Rows.joined(parts), head.layer, written[head], head.head))
    examples = read_examples(tmp_path)
    assert examples["original_id"].to_pylist() == [f"text {i}" for i in range(7 * CHUNK)]
    beside = {"dump.json", "examples.parquet", "tokens.parquet", "README.md"}
    assert set(content(tmp_path)) == beside | {f"{head.folder}/data.parquet" for head in HEADS}
    dump = open_dump(tmp_path)
    assert sorted(dump.all_folders) == sorted(HEADS)
    assert (dump.manifest.capture, dump.manifest.num_examples) == (PLAN, 7 * CHUNK)


def test_segments_are_written_in_any_order_and_heads_are_counted(tmp_path):
    heard = []
    capture = opened(tmp_path)
    save(capture, [5, 0, 6, 2, 1, 4, 3])
    assert saved_chunks(tmp_path) == {*range(7)}
    complete(capture, 7, on_head=lambda done, total: heard.append((done, total)))
    assert content(tmp_path) == undisturbed(7)
    assert heard[-1] == (len(HEADS), len(HEADS))


def test_a_dump_is_made_of_exactly_the_chunks_of_the_texts(tmp_path):
    capture = opened(tmp_path)
    save(capture, [0, 1, 3])
    with pytest.raises(OutputError, match=r"2 of 5 chunks .* first: 2"):
        complete(capture, 5)
    with pytest.raises(ConfigError, match=r"more texts than the dataset now has; .*overwrite"):
        complete(capture, 2)
    assert not (tmp_path / "dump.json").exists()
    save(capture, [2, 4])
    complete(capture, 5)
    assert content(tmp_path) == undisturbed(5)


@pytest.mark.parametrize("name", ["l00k.parquet", "segment.json"])
@pytest.mark.parametrize("damage", ["truncated", "emptied", "a pipe", "of another layer"])
def test_a_damaged_segment_is_refused_with_the_way_out(tmp_path, name, damage):
    capture = opened(tmp_path)
    save(capture, range(3))
    folder = segments(tmp_path)[1]
    file = folder / name
    if damage == "a pipe":
        replace_by(os.mkfifo, file)
    elif damage == "of another layer":
        file.write_bytes((folder / "l01k.parquet").read_bytes())
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "truncated" else b"")
    with pytest.raises(DumpError, match=r"is damaged .* Remove this folder and run") as caught:
        complete(capture, 3)
    assert str(caught.value).startswith(f"{folder}: ")
    shutil.rmtree(folder)
    save(capture, [1])
    complete(capture, 3)
    assert content(tmp_path) == undisturbed(3)


def test_no_flipped_bit_of_a_segment_is_accepted(tmp_path):
    save(opened(tmp_path), [1])
    [folder] = segments(tmp_path)
    whole = read_segment(folder)
    assert whole is not None
    expected = rows_in(whole)
    assert expected
    for file in sorted(folder.iterdir()):
        right = file.read_bytes()
        for place in range(0, len(right), 53):  # make reliability flips every byte
            wrong = bytearray(right)
            wrong[place] ^= 1 << (place % 8)
            file.write_bytes(wrong)
            with suppress(DumpError):
                found = read_segment(folder)
                assert found.examples == whole.examples
                assert rows_in(found) == expected
        file.write_bytes(right)


@pytest.mark.parametrize("exact", [False, True])
def test_vectors_that_fit_in_bfloat16_take_half_of_the_space(tmp_path, exact):
    """Their lower bits are zero, and come back as zero."""
    table, rng = LayerTable(Part(0, "q"), (0, 1), names_of(1, "q"), 64, 2), np.random.default_rng(0)
    vectors = rng.standard_normal((2000, 64)).astype(np.float32)
    vectors.view(np.uint32)[:] &= 0xFFFFFFFF if exact else 0xFFFF0000
    columns = {name: np.zeros(2000, np.int32) for name in ("bucket", "example_id", "head")}
    columns |= {"position": np.arange(2000), "sliding_window": np.full(2000, -1), "vector": vectors}
    rows = table_of(Rows(columns), 0, table.schema)
    write_segment(tmp_path / "00000", [table], {table.part: [rows]}, [])
    segment = read_segment(tmp_path / "00000")
    assert segment.examples == []
    [(head, found)] = segment.rows(table, 0)
    assert head == 0
    assert found.equals(rows)
    size = segment.file(table.part).stat().st_size
    assert (size > vectors.nbytes) == exact
    assert exact or size < vectors.nbytes / 2


def test_the_disk_never_holds_the_rows_twice(tmp_path):
    """A table leaves the segments when its heads are written, whatever happens later."""
    capture = opened(tmp_path)
    save(capture, range(7))
    before = {path.name for path in tmp_path.rglob("l*.parquet")}
    assert before == {f"{table.part.name}.parquet" for table in tables()}

    def left(done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(capture, 7, on_head=left)
    places = tmp_path.rglob("l*.parquet")
    assert len({path.name for path in places if path.parent.parent.name == "segments"}) <= 1
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("**/data.parquet")}
    complete(opened(tmp_path), 7)
    assert content(tmp_path) == undisturbed(7)
    assert {path: path.stat().st_mtime_ns for path in written} == written  # not written again


def test_other_texts_after_the_end_had_begun_are_refused(tmp_path):
    """Rows that are only in files of heads have the id of the capture with the texts of then."""
    capture = opened(tmp_path)
    save(capture, range(6))

    def killed(done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(capture, 6, on_head=killed)
    save(capture, [6])
    with pytest.raises(ConfigError, match="were written with other texts, or have changed"):
        complete(capture, 7)
    shutil.rmtree(segments(tmp_path)[6])
    complete(capture, 6)
    assert content(tmp_path) == undisturbed(6)


def rows_in(segment):
    """All rows of a segment, in the order in which they are read."""
    return [
        found
        for table in tables()
        for group in range(len(head_groups(table)))
        for found in segment.rows(table, group)
    ]


def filled(disk):
    """A file that takes all the space there is."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def enlarge(disk, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def test_a_full_disk_harms_no_earlier_segment(small_disk):
    folder = small_disk / "dump"
    enlarge(small_disk, "1m")
    capture = opened(folder)
    save(capture, [0])
    filler = filled(small_disk)
    with pytest.raises(OSError, match="No space left on device"):
        save(capture, [1])
    assert [path.name for path in segments(folder)] == ["00000"]
    filler.unlink()
    enlarge(small_disk, "4m")
    save(capture, range(1, 7))
    status = os.statvfs(small_disk)
    occupied = (status.f_blocks - status.f_bfree) * status.f_frsize
    enlarge(small_disk, f"{occupied + 20_000}")
    with pytest.raises(OutputError, match="No space left on device") as caught:
        complete(capture, 7)
    assert "free some space" in str(caught.value)
    assert not (folder / "dump.json").exists()
    assert not list(folder.rglob("*.part-*"))
    enlarge(small_disk, "4m")
    complete(capture, 7)
    assert content(folder) == undisturbed(7)


SINGLE_HEAD = """
import resource
from captures import LayerTable, Part, Rows, finish, segment_path, table_of, write_segment
table = LayerTable(Part(0, "k"), (0,), names_of(1, "k"), 64, 2)
capture = opened(folder)
for chunk in range(60):
    n = 4096
    columns = {"bucket": np.zeros(n, int), "example_id": np.full(n, chunk)}
    columns |= {"position": np.arange(n), "sliding_window": np.full(n, -1, np.int32)}
    columns |= {"head": np.zeros(n, np.int32), "vector": np.full((n, 64), chunk + 0.1, np.float32)}
    rows = table_of(Rows(columns), 0, table.schema)  # 1 MiB
    examples = [Example(chunk, chunk, n, "")]
    write_segment(segment_path(folder, chunk), [table], {table.part: [rows]}, examples)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
finish(capture, 60, [table], MANIFEST)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(pa.default_memory_pool().max_memory() >> 20, grown >> 10)
"""


def test_memory_does_not_grow_with_the_capture(tmp_path):
    run = in_process(SINGLE_HEAD, tmp_path)
    out, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, err
    arrow_mib, grown_mib = map(int, out.split())
    assert arrow_mib < 30  # of 60 MiB of rows
    assert grown_mib < 40


def test_a_kill_while_heads_are_written_loses_nothing(tmp_path):
    stop = """
import os, signal
writer.ROWS_PER_GROUP = 7  # as in this file
capture = opened(folder)
save(capture, range(7))
complete(capture, 7, on_head=lambda done, total: done < 5 or os.kill(os.getpid(), signal.SIGKILL))
"""
    run = in_process(stop, tmp_path)
    run.communicate(timeout=PATIENCE)
    assert run.returncode == -9
    assert read_manifest(tmp_path / "dump.json") is None
    assert len(list(tmp_path.glob("**/l*/data.parquet"))) >= 5
    (tmp_path / "l00h00q" / ".data.parquet.part-77").write_bytes(b"half")
    (tmp_path / ".dump.json.part-77").write_bytes(b"half")
    capture = opened(tmp_path)
    complete(capture, 7)
    assert content(tmp_path) == undisturbed(7)
