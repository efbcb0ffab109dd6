"""Segments on disks that damage them or have no room, and in little memory."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from captures import (
    HEADS,
    add,
    content,
    finish,
    in_process,
    opened,
    schema_of,
    segments,
    undisturbed,
)
from odd_files import replace_by
from qk_sniffer.pipeline.segment_files import DamagedSegmentError, Segment, read_segment
from qk_toolkit.errors import OutputError


@pytest.mark.parametrize("name", ["rows-4k-2.arrow", "segment.json"])
@pytest.mark.parametrize("damage", ["truncated", "removed", "emptied", "a pipe", "nested"])
def test_a_damaged_segment_is_captured_anew(tmp_path: Path, name: str, damage: str) -> None:
    capture = opened(tmp_path)
    for batch in range(5):
        add(capture, [batch])
        capture.flush()
    capture.close()
    file = segments(tmp_path)[2] / name
    if damage == "removed":
        file.unlink()
    elif damage == "a pipe":
        replace_by(os.mkfifo, file)
    elif damage == "nested":
        file.write_bytes(b"[" * 100_000)
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "truncated" else b"")

    again = opened(tmp_path)
    assert again.finished == {0, 1, 3, 4}
    add(again, [2])
    finish(again, 5)
    assert content(tmp_path) == undisturbed(5)


def test_rows_that_were_damaged_are_captured_again(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    for batch in range(3):
        add(capture, [batch])
        capture.flush()
    file = segments(tmp_path)[1] / "rows-6q.arrow"
    content_then = bytearray(file.read_bytes())
    content_then[-70] ^= 4  # a bit of a vector
    file.write_bytes(content_then)
    assert not capture.missing(3)  # the files are as long as they should be
    assert finish(capture, 3) is False
    assert capture.finished == {0, 2}
    assert not (tmp_path / "dump.json").exists()
    add(capture, [1])
    assert finish(capture, 3) is True
    assert content(tmp_path) == undisturbed(3)


def test_no_flipped_bit_of_a_segment_is_accepted(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, [1])
    capture.flush()
    [folder] = segments(tmp_path)
    whole = read_segment(folder)
    assert whole is not None

    def rows(segment: Segment) -> list[pa.Table]:
        return [segment.rows(expected.head, schema_of(expected)) for expected in HEADS]

    expected = rows(whole)
    for file in sorted(folder.iterdir()):
        right = file.read_bytes()
        for place in range(0, len(right), 29):  # make reliability flips every byte
            wrong = bytearray(right)
            wrong[place] ^= 1 << (place % 8)
            file.write_bytes(wrong)
            found = read_segment(folder)
            if found is None:
                continue
            assert (found.batches, found.num_rows) == (whole.batches, whole.num_rows)
            with suppress(DamagedSegmentError):
                assert rows(found) == expected
        file.write_bytes(right)


def filled(disk: Path) -> Path:
    """A file that takes all the space there is."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def occupied(disk: Path) -> int:
    status = os.statvfs(disk)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def enlarge(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def test_a_full_disk_harms_no_earlier_segment(small_disk: Path) -> None:
    folder = small_disk / "dump"
    with closing(opened(folder)) as capture:
        add(capture, [0])
        capture.flush()
        filler = filled(small_disk)
        add(capture, range(1, 7))
        with pytest.raises(OutputError, match="No space left on device") as caught:
            capture.flush()
    assert str(caught.value).startswith(f"{folder}: cannot be written")
    assert "free some space" in str(caught.value)
    assert len(segments(folder)) == 1

    filler.unlink()
    enlarge(small_disk, "4m")
    with closing(opened(folder)) as again:
        assert again.finished == {0}
        add(again, range(1, 7))
        finish(again, 7)
    assert content(folder) == undisturbed(7)


def test_the_same_process_may_go_on_after_a_full_disk(small_disk: Path) -> None:
    folder = small_disk / "dump"
    with closing(opened(folder)) as capture:
        add(capture, range(7))
        filler = filled(small_disk)
        with pytest.raises(OutputError, match="No space left on device"):
            capture.flush()
        filler.unlink()
        enlarge(small_disk, "4m")
        finish(capture, 7)
    assert content(folder) == undisturbed(7)


def test_a_disk_that_fills_while_the_heads_are_written(small_disk: Path) -> None:
    folder = small_disk / "dump"
    enlarge(small_disk, "256k")
    with closing(opened(folder)) as capture:
        add(capture, range(7))
        capture.flush()
        enlarge(small_disk, f"{occupied(small_disk) + 20_000}")
        with pytest.raises(OutputError, match="No space left on device"):
            finish(capture, 7)
    assert not (folder / "dump.json").exists()
    assert not list(folder.rglob("*.part-*"))

    enlarge(small_disk, "4m")
    with closing(opened(folder)) as again:
        assert again.missing(7) == []
        finish(again, 7)
    assert content(folder) == undisturbed(7)


def test_a_disk_without_room_for_the_plan_is_left_as_it_was(small_disk: Path) -> None:
    filled(small_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        opened(small_disk)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


SINGLE_HEAD = """
import resource, pyarrow as pa
heads = [ExpectedHead(HeadId(0, 0, "k"), 64, None)]
capture = opened(folder)
capture.flush_bytes = 1
for batch in range(60):
    n = 4096
    ids = np.full(n, batch)
    vectors = np.full((n, 1, 64), batch, np.float32)  # 1 MiB
    block = Block(0, "k", (0,), np.zeros(n, int), ids, np.arange(n), vectors, None)
    capture.add(batch, [block], [Example(batch, batch, n, "")])
assert len(segments(folder)) == 60
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
finish(capture, 60, heads=heads, token_texts=None)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(pa.default_memory_pool().max_memory() >> 20, grown >> 10)
"""


def test_memory_does_not_grow_with_the_capture(tmp_path: Path) -> None:
    run = in_process(SINGLE_HEAD, tmp_path)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    arrow_mib, grown_mib = map(int, out.split())
    assert arrow_mib < 30  # of 60 MiB of rows
    assert grown_mib < 40
