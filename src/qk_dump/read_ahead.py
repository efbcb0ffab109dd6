"""A file at a URL for Arrow: the next row groups are requested while Arrow decodes one of them.

A step is a few row groups. The parts of the file that a step needs come together, in concurrent
requests. Memory holds the current step and the next ones.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow.parquet as pq

from qk_dump.remote import Part, RemotePath

_STEP_BYTES = 4 << 20  # at least, if there are more row groups
_MOST_BYTES = 512 << 20  # of a step; a larger one is read piece by piece when Arrow needs it
_AHEAD = 2  # steps
_GAP = 1 << 18  # parts that are closer than this are read as one


class RemoteFile:
    """A seekable file with the methods that Arrow calls. One thread may read it."""

    def __init__(self, path: RemotePath) -> None:
        self.closed = False
        self._path = path
        self._size = path.size
        tail = path.tail()
        self._tail = (path.size - len(tail), tail)
        self._held = [self._tail]
        self._position = 0

    def hold(self, contents: Sequence[tuple[int, bytes]]) -> None:
        """Keep these parts of the file, each with its first byte, in place of the earlier ones."""
        self._held = [self._tail, *contents]

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int | None = -1) -> memoryview:
        """The next bytes; fewer at the end of the file. A part that is not held is requested."""
        left = max(0, self._size - self._position)
        start, size = self._position, left if size is None or size < 0 else min(size, left)
        self._position = end = start + size
        for first, content in self._held:
            if first <= start and end <= first + len(content):
                return memoryview(content)[start - first : end - first]
        return memoryview(self._path.read(start, end))

    def close(self) -> None:
        """Arrow calls it."""
        self.closed = True


def steps(metadata: pq.FileMetaData, columns: set[str]) -> list[tuple[list[int], list[Part]]]:
    """Row groups that are read together, and the parts of the file that have their columns."""
    found: list[tuple[list[int], list[Part]]] = []
    for index in range(metadata.num_row_groups):
        if not found or _num_bytes(found[-1][1]) >= _STEP_BYTES:
            found.append(([], []))
        groups, parts = found[-1]
        groups.append(index)
        group = metadata.row_group(index)
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema.partition(".")[0] in columns:
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                parts.append((start, start + chunk.total_compressed_size))
    return [(groups, _joined(parts)) for groups, parts in found]


def read_in_turn(
    path: RemotePath, parts: Sequence[list[Part]]
) -> Iterator[list[tuple[int, bytes]]]:
    """The contents of the parts of every step, each with its first byte. The next are requested."""
    pool = ThreadPoolExecutor(_AHEAD + 1, "read-ahead")
    requests: deque[Future[list[bytes]]] = deque()
    try:
        for index, step in enumerate(parts):
            while len(requests) <= _AHEAD and index + len(requests) < len(parts):
                requests.append(pool.submit(path.read_parts, parts[index + len(requests)]))
            contents = requests.popleft().result()
            yield list(zip([start for start, _ in step], contents, strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _num_bytes(parts: Sequence[Part]) -> int:
    return sum(end - start for start, end in parts)


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Parts in the order of the file, joined where they are close. Empty if they are too large."""
    joined: list[Part] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1] + _GAP:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif 0 <= start < end:
            joined.append((start, end))
    return joined if _num_bytes(joined) <= _MOST_BYTES else []
