"""Reading ahead: the right bytes from any place, few requests, few blocks in memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from qk_dump import read_ahead
from qk_dump.read_ahead import FileStarts, ReadAheadFile
from qk_dump.remote import RemotePath

CONTENT = np.random.default_rng(0).bytes(100_000)


class Source:
    """A file whose ranges are counted."""

    size = len(CONTENT)

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.checks = 0

    def read(self, start: int, end: int) -> bytes:
        self.requests.append((start, end))
        return CONTENT[start:end]

    def tail(self) -> bytes:
        return CONTENT[-1000:]

    def require_unchanged(self) -> None:
        self.checks += 1


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"_BLOCK": 4000, "_GAP": 100, "_AHEAD_BYTES": 8000}
    for name, value in (sizes | {"_MOST_BLOCKS": 6, "_START_BYTES": 900}).items():
        monkeypatch.setattr(read_ahead, name, value)


def opened(source: Source) -> ReadAheadFile:
    return ReadAheadFile(cast(RemotePath, source))


def test_any_order_of_reads_gives_the_bytes_of_the_file() -> None:
    rng = np.random.default_rng(1)
    plain = io.BytesIO(CONTENT)
    with opened(Source()) as file:
        file.expect([(4, 30_000), (30_050, 60_000), (70_000, 200_000)])
        for _ in range(500):
            start, size = int(rng.integers(0, 101_000)), int(rng.integers(0, 9000))
            assert file.seek(start) == plain.seek(start) == file.tell()
            assert file.read(size) == plain.read(size)
            assert len(file._requested) <= 6
        assert file.seek(-10, io.SEEK_END) == plain.seek(-10, io.SEEK_END)
        assert file.read() == plain.read()
        assert file.read(5) == b""


def test_every_byte_is_requested_once_and_dropped_after_reading() -> None:
    source = Source()
    with opened(source) as file:
        file.expect([(4, 50_000), (60_000, 99_500)])
        most = 0
        for first, last in ((4, 50_000), (60_000, 99_500)):
            file.seek(first)
            while file.tell() < last:
                assert file.read(min(700, last - file.tell()))
                most = max(most, len(file._requested))
        assert not file._requested
        file.require_unchanged()
    assert most <= 4  # the current block and those of 8,000 bytes
    assert sum(end - start for start, end in source.requests) == 49_996 + 39_000
    assert source.checks == 1


def test_bytes_that_are_requested_after_the_check_are_checked_too() -> None:
    source = Source()
    with opened(source) as file:
        file.expect([(0, 4000), (50_000, 54_000)])
        for place in (0, 50_000):  # the check begins with the last block
            file.seek(place)
            file.read(4000)
        file.require_unchanged()
        for count, place in enumerate((0, 20_000), start=2):  # a block again, and other bytes
            file.seek(place)
            file.read(4000)
            file.require_unchanged()
            assert source.checks == count


def test_columns_in_turns_need_few_blocks() -> None:
    """As Arrow reads a large row group: several columns, a piece of each in turns."""
    source = Source()
    columns = [range(start, start + 20_000, 500) for start in (0, 30_000, 60_000)]
    with opened(source) as file:
        file.expect([(column.start, column.stop) for column in columns])
        for starts in zip(*columns, strict=True):
            for start in starts:
                file.seek(start)
                assert file.read(500) == CONTENT[start : start + 500]
                assert len(file._requested) <= 6
    assert sum(end - start for start, end in source.requests) < 90_000


def test_the_start_of_a_file_is_requested_while_the_file_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "TAIL_BYTES", 1000)
    monkeypatch.setattr(read_ahead, "RemotePath", Source)
    sources = [Source() for _ in range(3)]
    with FileStarts(cast(list[RemotePath], sources)) as starts:
        for index, source in enumerate(sources):
            start = starts.take()
            assert start is not None
            assert start.content.result() == CONTENT[:900]
            assert starts._following is not None or source is sources[-1]
            with ReadAheadFile(cast(RemotePath, source), start) as file:
                file.expect([(4, 99_500)])
                file.seek(4)
                assert file.read(99_496) == CONTENT[4:99_500]
                file.require_unchanged()
            assert sorted(source.requests)[:2] == [(0, 900), (900, 4824)]  # 25 equal blocks
            assert sum(end - start for start, end in source.requests) == 99_000
            assert source.checks == 1
            assert all(not later.requests for later in sources[index + 2 :])
        assert starts.take() is None


def test_files_of_this_machine_have_no_early_start(tmp_path: Path) -> None:
    with FileStarts([tmp_path / "a.parquet"]) as starts:
        assert starts.take() is None


def test_an_error_of_a_request_reaches_the_reader() -> None:
    class Broken(Source):
        def read(self, start: int, end: int) -> bytes:
            raise ConnectionError("gone")

    with opened(Broken()) as file:
        file.expect([(0, 50_000)])
        with pytest.raises(ConnectionError):
            file.read(10)
