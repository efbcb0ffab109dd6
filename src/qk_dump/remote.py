"""Files of a dump at a URL, found by one listing.

A `RemotePath` stands for a `Path` wherever a dump is read: it has a name, members, a size, and a
text for messages. Contents are read in ranges.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from qk_toolkit.errors import ConfigError, DumpError, StoreError
from qk_toolkit.files import UnusableFileError
from qk_toolkit.store import Store, StoredFile

_BLOCK = 8 << 20  # most bytes of a request


class _Members(NamedTuple):
    files: list[str]
    folders: list[str]


class Listing:
    """The files below a URL at one moment."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files = store.files()

    @cached_property
    def members(self) -> dict[str, _Members]:
        """Names of the files and folders in every folder, sorted."""
        found: dict[str, _Members] = {"": _Members([], [])}
        for path in self.files:  # sorted
            *folders, name = path.split("/")
            parent = ""
            for folder in folders:
                inner = f"{parent}/{folder}" if parent else folder
                if inner not in found:
                    found[inner] = _Members([], [])
                    found[parent].folders.append(folder)
                parent = inner
            found[parent].files.append(name)
        return found


class RemotePath:
    """A file or a folder of a listing."""

    def __init__(self, listing: Listing, inner: str = "") -> None:
        self._listing = listing
        self._inner = inner

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self._listing, str(PurePosixPath(self._inner, name.strip("/"))))

    def __str__(self) -> str:
        store = self._listing.store
        return store.inside(self._inner) if self._inner else store.url

    def __repr__(self) -> str:
        return f"<RemotePath {str(self)!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, StoredFile | None]:
        """URL and version: the key of caches of contents."""
        return str(self), self._listing.files.get(self._inner)

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return str(self).rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The folder that it is in."""
        return RemotePath(self._listing, self._inner.rpartition("/")[0])

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on."""
        return PurePosixPath(self.name).suffix

    def is_dir(self) -> bool:
        """Whether there are files below it."""
        return self._inner in self._listing.members

    def is_file(self) -> bool:
        """Whether there is a file."""
        return self._inner in self._listing.files

    def iterdir(self) -> Iterator[RemotePath]:
        """The files and folders in the folder."""
        found = self._listing.members.get(self._inner, _Members([], []))
        return (self / name for name in sorted({*found.files, *found.folders}))

    def listed_again(self) -> RemotePath:
        """The same path in a new listing."""
        return RemotePath(Listing(self._listing.store), self._inner)

    @property
    def stored(self) -> StoredFile:
        """Size and version of the file in the listing; raises `FileNotFoundError`."""
        try:
            return self._listing.files[self._inner]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "does not exist", str(self)) from None

    @property
    def size(self) -> int:
        """Number of bytes of the file."""
        return self.stored.size

    def read(self, start: int, end: int) -> bytes:
        """Bytes of the file. Raises a `DumpError` if it was removed or replaced."""
        blocks = [(first, min(first + _BLOCK, end)) for first in range(start, end, _BLOCK)]
        try:
            found = self._listing.store.read_parts(self._inner, blocks) if blocks else []
        except StoreError:
            self.require_unchanged()
            raise
        if found is None:
            raise DumpError(f"{self}: was removed while it was read")
        return b"".join(found)

    def read_bounded(self, most_bytes: int) -> bytes:
        """The whole file, which may have at most `most_bytes`."""
        size = self.size
        if size > most_bytes:
            raise UnusableFileError(errno.EFBIG, f"is larger than {most_bytes:,} bytes", str(self))
        return self.read(0, size)

    def require_unchanged(self) -> None:
        """Raise a `DumpError` if the file is no longer the one of the listing."""
        now = self._listing.store.file(self._inner)
        if now != self.stored:
            problem = "was removed" if now is None else "changed"
            raise DumpError(f"{self}: {problem} while it was read; run the same command again")


class RemoteFile(io.RawIOBase):
    """A file at a URL, as Arrow reads it. One thread at a time may read it."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._size = path.size
        self._position = 0

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

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes; fewer at the end of the file."""
        left = max(0, self._size - self._position)
        start, size = self._position, left if size is None or size < 0 else min(size, left)
        self._position += size
        return self._path.read(start, start + size)


DumpPath = Path | RemotePath
"""A file or a folder of a dump, on this machine or at a URL."""


def local(path: DumpPath) -> Path:
    """The path, which must be on this machine."""
    if isinstance(path, RemotePath):
        raise ConfigError(f"{path}: is not on this machine; download the folder first")
    return path


def size_of(path: DumpPath) -> int:
    """Number of bytes of a file."""
    return path.stat().st_size if isinstance(path, Path) else path.size
