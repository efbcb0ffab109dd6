"""A file at a URL for Arrow: blocks are read ahead in threads while Arrow decodes earlier ones.

Arrow reads the columns of a row group in turns, each from its own place. `expect` gets the parts of
the file that will be read. They are cut into blocks. A block is dropped when all of it was read, so
memory holds a few blocks, for files of any size. `FileStarts` requests the first bytes of files
before their footers are known.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import ceil
from typing import NamedTuple

from qk_dump.remote import TAIL_BYTES, DumpPath, RemotePath

_BLOCK = 12 << 20  # most bytes of a request
_START_BYTES = 8 << 20  # a row group of 16,384 vectors of 128 dimensions
_GAP = 1 << 18  # parts that are closer than this are read in one request
_AHEAD_BYTES = 3 * _BLOCK
_AHEAD_BLOCKS = 8  # requests at a time
_MOST_BLOCKS = 8  # in memory, if Arrow reads from many places in turns

Part = tuple[int, int]  # first byte, and the byte after the last


class FileStart(NamedTuple):
    """A request for the first bytes of a file."""

    length: int
    content: Future[bytes]


class FileStarts:
    """The first bytes of files that are read one after another, requested early.

    Those of the first file are requested at once, at the same time as its footer. Those of every
    other file are requested when the file before it is begun.
    """

    def __init__(self, files: Sequence[DumpPath]) -> None:
        self._left = [path for path in reversed(files) if isinstance(path, RemotePath)]
        self._pool = ThreadPoolExecutor(1, "first-bytes") if self._left else None
        self._following = self._request()

    def __enter__(self) -> FileStarts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def take(self) -> FileStart | None:
        """The start of the next file. None for files on this machine."""
        start, self._following = self._following, self._request()
        return start

    def _request(self) -> FileStart | None:
        if self._pool is None or not self._left:
            return None
        path = self._left.pop()
        length = max(0, min(_START_BYTES, path.size - TAIL_BYTES))
        return FileStart(length, self._pool.submit(path.read, 0, length))


class ReadAheadFile:
    """A seekable file with the methods that Arrow calls. One thread may read it."""

    def __init__(self, path: RemotePath, start: FileStart | None = None) -> None:
        self.closed = False
        self._path = path
        self._size = path.size
        self._tail = memoryview(path.tail())
        self._start = start
        self._position = 0
        self._blocks: list[Part] = []
        self._starts: list[int] = []
        self._unread: list[int] = []  # bytes of every block that were not read
        self._requested: dict[int, Future[bytes]] = {}  # in the order of their last use
        self._pool: ThreadPoolExecutor | None = None
        self._check: Future[None] | None = None

    def expect(self, parts: Iterable[Part]) -> None:
        """Begin to read these parts of the file. Other parts are read when they are needed."""
        first, limit = self._start.length if self._start else 0, self._size - len(self._tail)
        self._drop_all()
        self._check = None
        self._blocks = _blocks([(max(start, first), min(end, limit)) for start, end in parts])
        self._starts = [start for start, _ in self._blocks]
        self._unread = [end - start for start, end in self._blocks]
        self._request_from(0)
        if not self._blocks:
            self._begin_check()

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
        if self._start is not None and position < self._start.length:
            return memoryview(self._start.content.result())[position:][:size]
        index = bisect_right(self._starts, position) - 1
        if index < 0 or position >= self._blocks[index][1]:
            following = self._starts[index + 1] if index + 1 < len(self._starts) else tail_start
            self._check = None
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
        if index == len(self._blocks) - 1 and self._check is None:
            self._begin_check()
        return content

    def _begin_check(self) -> None:
        """Begin `require_unchanged` while the last bytes are decoded, if all of them are there."""
        requests = [*self._requested.values(), *([self._start.content] if self._start else [])]
        if all(request.done() for request in requests):
            self._check = self._threads.submit(self._path.require_unchanged)

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
            self._check = None  # an earlier one would not notice a change since then
            self._requested[index] = self._threads.submit(self._path.read, *self._blocks[index])

    @property
    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AHEAD_BLOCKS, "read-ahead")
        return self._pool

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
        length = ceil((end - start) / ceil((end - start) / _BLOCK))  # blocks of equal size
        cut += [(first, min(first + length, end)) for first in range(start, end, length)]
    return cut
