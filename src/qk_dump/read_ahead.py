"""A file at a URL for Arrow: blocks are read ahead in threads while Arrow decodes earlier ones.

Arrow reads the columns of a row group in turns, each from its own place. `expect` gets the parts of
the file that will be read. They are cut into blocks. A block is dropped when all of it was read, so
memory holds a few blocks, for files of any size.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from qk_dump.remote import RemotePath

_BLOCK = 16 << 20  # bytes of a request
_FIRST_BLOCK = 4 << 20  # decoding begins when it is there
_GAP = 1 << 18  # parts that are closer than this are read in one request
_AHEAD_BYTES = 2 * _BLOCK
_AHEAD_BLOCKS = 8  # requests at a time
_MOST_BLOCKS = 8  # in memory, if Arrow reads from many places in turns

Part = tuple[int, int]  # first byte, and the byte after the last


class ReadAheadFile:
    """A seekable file with the methods that Arrow calls. One thread may read it."""

    def __init__(self, path: RemotePath) -> None:
        self.closed = False
        self._path = path
        self._size = path.size
        self._tail = memoryview(path.tail())
        self._position = 0
        self._blocks: list[Part] = []
        self._starts: list[int] = []
        self._unread: list[int] = []  # bytes of every block that were not read
        self._requested: dict[int, Future[bytes]] = {}  # in the order of their last use
        self._pool: ThreadPoolExecutor | None = None
        self._check: Future[None] | None = None

    def expect(self, parts: Iterable[Part]) -> None:
        """Begin to read these parts of the file. Other parts are read when they are needed."""
        limit = self._size - len(self._tail)
        self._drop_all()
        self._check = None
        self._blocks = _blocks([(start, min(end, limit)) for start, end in parts])
        self._starts = [start for start, _ in self._blocks]
        self._unread = [end - start for start, end in self._blocks]
        self._request_from(0)

    def __enter__(self) -> ReadAheadFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        """The next bytes; fewer at the end of the file. They are not copied if possible."""
        left = self._size - self._position
        left = max(0, left if size is None or size < 0 else min(size, left))
        pieces: list[memoryview] = []
        while left:
            pieces.append(self._piece(self._position, left))
            self._position += len(pieces[-1])
            left -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def require_unchanged(self) -> None:
        """Raise a `DumpError` if the file was removed or replaced since the listing."""
        if self._check is None:
            self._path.require_unchanged()
        else:
            self._check.result()

    def close(self) -> None:
        """Stop reading ahead."""
        self._drop_all()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.closed = True

    def _piece(self, position: int, size: int) -> memoryview:
        """At least one byte from `position` on, and at most `size`."""
        tail_start = self._size - len(self._tail)
        if position >= tail_start:
            return self._tail[position - tail_start :][:size]
        index = bisect_right(self._starts, position) - 1
        if index < 0 or position >= self._blocks[index][1]:
            following = self._starts[index + 1] if index + 1 < len(self._starts) else tail_start
            return memoryview(self._path.read(position, min(position + size, following)))
        start, _ = self._blocks[index]
        content = memoryview(self._content(index))[position - start :][:size]
        self._unread[index] -= len(content)
        if self._unread[index] <= 0:
            self._requested.pop(index, None)
        return content

    def _content(self, index: int) -> bytes:
        if index not in self._requested and len(self._requested) >= _MOST_BLOCKS:
            self._requested.pop(next(iter(self._requested))).cancel()
        self._request(index)
        self._requested[index] = future = self._requested.pop(index)  # the last one used
        self._request_from(index + 1)
        content = future.result()
        if index == len(self._blocks) - 1:
            self._check_early()
        return content

    def _check_early(self) -> None:
        """Begin `require_unchanged` while the last block is decoded, if all others are there."""
        there = all(other.done() for other in self._requested.values())
        if there and self._check is None and self._pool is not None:
            self._check = self._pool.submit(self._path.require_unchanged)

    def _request_from(self, first: int) -> None:
        """Request the next blocks that were not read."""
        ahead = 0
        for index in range(first, min(first + _AHEAD_BLOCKS, len(self._blocks))):
            start, end = self._blocks[index]
            ahead += end - start
            if ahead > _AHEAD_BYTES or len(self._requested) >= _MOST_BLOCKS:
                return
            if self._unread[index] == end - start:
                self._request(index)

    def _request(self, index: int) -> None:
        if index not in self._requested:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AHEAD_BLOCKS, "read-ahead")
            self._requested[index] = self._pool.submit(self._path.read, *self._blocks[index])

    def _drop_all(self) -> None:
        for future in self._requested.values():
            future.cancel()
        self._requested.clear()


def _blocks(parts: Iterable[Part]) -> list[Part]:
    """Parts in the order of the file, joined where they are close, in blocks of bounded size."""
    joined: list[Part] = []
    for start, end in sorted(parts):
        if end <= start:
            continue
        if joined and start <= joined[-1][1] + _GAP:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    cut: list[Part] = []
    for start, end in joined:
        while start < end:
            length = _BLOCK if cut else _FIRST_BLOCK
            cut.append((start, min(start + length, end)))
            start += length
    return cut
