"""Reading ahead: the right bytes from any place, and the next row groups are requested early."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qk_dump import read_ahead
from qk_dump.read_ahead import RemoteFile, read_in_turn, steps
from qk_dump.remote import Part, RemotePath

CONTENT = np.random.default_rng(0).bytes(100_000)


class Source:
    """A file whose ranges are counted."""

    size = len(CONTENT)

    def __init__(self) -> None:
        self.requests: list[Part] = []

    def read(self, start: int, end: int) -> bytes:
        return self.read_parts([(start, end)])[0]

    def read_parts(self, parts: list[Part]) -> list[bytes]:
        self.requests += parts
        return [CONTENT[start:end] for start, end in parts]

    def tail(self) -> bytes:
        return CONTENT[-1000:]


def test_any_order_of_reads_gives_the_bytes_of_the_file() -> None:
    rng, source, plain = np.random.default_rng(1), Source(), io.BytesIO(CONTENT)
    file = RemoteFile(cast(RemotePath, source))
    file.hold([(start, CONTENT[start : start + 20_000]) for start in (4, 40_000)])
    for _ in range(300):
        start, size = int(rng.integers(0, 101_000)), int(rng.integers(0, 9000))
        assert file.seek(start) == plain.seek(start) == file.tell()
        assert file.read(size) == plain.read(size)
    assert file.seek(-10, io.SEEK_END) == plain.seek(-10, io.SEEK_END)
    assert file.read() == plain.read()
    assert file.read(5) == b""
    source.requests.clear()
    for start in (4, 50_000, 99_500):  # held, and the end of the file
        file.seek(start)
        assert file.read(400) == CONTENT[start : start + 400]
    assert source.requests == []


def test_two_steps_are_requested_ahead() -> None:
    source, parts = Source(), [[(start, start + 100)] for start in range(0, 1000, 100)]
    contents = read_in_turn(cast(RemotePath, source), parts)
    for index, content in enumerate(contents):
        assert content == [(100 * index, CONTENT[100 * index : 100 * index + 100])]
        assert len(source.requests) <= index + 3
    assert sorted(source.requests) == [part for step in parts for part in step]


def test_steps_cover_the_wanted_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((3, 4000))
    table = pa.table(dict(zip("abc", values, strict=True)))
    pq.write_table(table, tmp_path / "a", row_group_size=500, compression="none")
    metadata = pq.read_metadata(tmp_path / "a")
    for name, size in (("_STEP_BYTES", 6000), ("_GAP", 10)):
        monkeypatch.setattr(read_ahead, name, size)
    found = steps(metadata, {"a", "c"})
    assert [groups for groups, _ in found] == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert all(len(parts) == 2 for _, parts in found)
    assert all(end - start < 6000 for _, parts in found for start, end in parts)
    assert [groups for groups, _ in steps(metadata, {"b"})] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    monkeypatch.setattr(read_ahead, "_MOST_BYTES", 5000)
    assert {len(parts) for _, parts in steps(metadata, {"a", "c"})} == {0}
