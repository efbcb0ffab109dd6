"""Files at URLs: s3://, gs:// and every other protocol of fsspec.

Credentials come from where fsspec and its packages take them: environment variables, files of the
home folder, and the configuration of fsspec. The clients repeat failed requests. A lasting failure
becomes a `StoreError` of one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from qk_toolkit.errors import StoreError, ToolkitError
from qk_toolkit.files import cannot_write, staged, sync
from qk_toolkit.raised_in import is_our_bug
from qk_toolkit.urls import FULL, file_system, reason_of, remedy, require_usable

_PARALLEL = 8  # transfers at a time
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "mtime", "LastModified")

Result = TypeVar("Result")
Item = TypeVar("Item")


class DamagedFileError(StoreError):
    """The content of a file at a URL does not have its checksum."""


@dataclass(frozen=True)
class StoredFile:
    """Size of a file, and an identifier that changes with its content."""

    size: int
    version: str


class Store:
    """A folder at a URL. Names of files are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = require_usable(url)

    def __repr__(self) -> str:
        return f"<Store {self.url!r}>"

    def __reduce__(self) -> Any:
        return Store, (self.url,)  # connections are not shared between processes

    def inside(self, name: str) -> str:
        """The URL of a file in the folder."""
        return f"{self.url}/{name}"

    def files(self) -> dict[str, StoredFile]:
        """All files in the folder and below, sorted by name, from one listing."""

        def request() -> Any:
            self._system.invalidate_cache()
            return self._system.find(self._root, detail=True)

        prefix = f"{self._root}/"
        found: dict[str, Any] = self._try_existing(request, self.url, "listing") or {}
        return {
            name.removeprefix(prefix): _stored(entry, name)
            for name, entry in sorted(found.items())
            if name.startswith(prefix) and not name.endswith("/")
        }

    def file(self, name: str) -> StoredFile | None:
        """Size and version of one file now; None if there is no such file."""

        def request() -> Any:
            self._system.invalidate_cache()
            return self._system.info(f"{self._root}/{name}")

        entry = self._try_existing(request, self.inside(name), "reading")
        return None if entry is None or entry["type"] != "file" else _stored(entry, name)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""
        request = partial(self._system.cat_file, f"{self._root}/{name}")
        return self._try_existing(request, self.inside(name), "reading")

    def read_parts(self, name: str, parts: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Parts of a file: from a first byte to the byte after the last. None without the file."""
        starts, ends = [start for start, _ in parts], [end for _, end in parts]

        def request() -> list[bytes]:
            paths = [f"{self._root}/{name}"] * len(parts)
            found: list[bytes] = self._system.cat_ranges(paths, starts, ends, on_error="raise")
            for content, (start, end) in zip(found, parts, strict=True):
                if len(content) != end - start:
                    problem = f"{len(content):,} of {end - start:,} bytes were received"
                    raise ConnectionError(problem)
            return found

        return self._try_existing(request, self.inside(name), "reading")

    def write(self, name: str, content: bytes) -> None:
        """Write a file. Readers see the old file or the complete new one."""
        request = partial(self._system.pipe_file, f"{self._root}/{name}", content)
        self._try(request, self.inside(name), "writing")

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file to the folder."""
        request = partial(self._system.put_file, str(source), f"{self._root}/{name}")
        self._try(request, self.inside(name), "writing")

    def download(self, name: str, target: Path) -> None:
        """Copy a file to `target`, in one step. Raises a `StoreError` if there is none."""
        with staged(target) as draft:

            def request() -> bool:
                try:
                    self._system.get_file(f"{self._root}/{name}", str(draft))
                except OSError as error:
                    if error.errno in FULL:
                        raise cannot_write(target, error) from error
                    raise
                return True

            if self._try_existing(request, self.inside(name), "reading") is None:
                raise StoreError(f"{self.inside(name)}: does not exist")
            with draft.open("rb+") as file:
                sync(file)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. Files that do not exist are skipped."""
        for name in names:
            request = partial(self._system.rm_file, f"{self._root}/{name}")
            self._try_existing(request, self.inside(name), "removing")

    def each(self, action: Callable[[str], Any], names: Iterable[str]) -> None:
        """Call `action` for every name, several at a time. The first error is raised."""
        for_each(action, names, _PARALLEL)

    @cached_property
    def _root(self) -> str:
        root: str = self._system._strip_protocol(self.url)
        return root.rstrip("/")

    @cached_property
    def _system(self) -> Any:
        """The file system of fsspec for the URL."""
        return file_system(self.url)

    def _try_existing(self, request: Callable[[], Result], url: str, doing: str) -> Result | None:
        """Run a request of the client. None if the file does not exist."""

        def found() -> Result | None:
            try:
                return request()
            except FileNotFoundError as error:
                if "bucket does not exist" in str(error):
                    raise
                return None

        return self._try(found, url, doing)

    def _try(self, request: Callable[[], Result], url: str, doing: str) -> Result:
        """Run a request of the client, and convert its errors."""
        try:
            return request()
        except ToolkitError:
            raise
        except Exception as error:  # clients have no common class of errors
            if is_our_bug(error):
                raise
            if "checksum" in type(error).__name__.lower():  # of botocore and gcsfs
                raise DamagedFileError(f"{url}: is damaged ({reason_of(error)})") from error
            raise StoreError(f"{url}: {doing} failed: {remedy(error)}") from error


def _stored(entry: dict[str, Any], name: str) -> StoredFile:
    if entry.get("size") is None:
        raise StoreError(f"{name}: the server does not give the size of the file")
    version = next((str(entry[key]) for key in _VERSION_KEYS if entry.get(key)), "")
    return StoredFile(int(entry["size"]), version)


def for_each(action: Callable[[Item], object], items: Iterable[Item], most_threads: int) -> None:
    """Call `action` for every item, several at a time. The first error is raised.

    After an error no call begins, and the calls in progress are completed. An interruption does
    not wait for them: a server that does not answer would delay it.
    """
    waiting: SimpleQueue[Item] = SimpleQueue()
    for item in items:
        waiting.put(item)
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            while True:
                action(waiting.get_nowait())
        except Empty:
            ended.put(None)
        except BaseException as error:  # raised in the thread of the caller
            _empty(waiting)
            ended.put(error)

    threads = [Thread(target=work, daemon=True) for _ in range(min(most_threads, waiting.qsize()))]
    try:
        for thread in threads:
            thread.start()
        errors = [error for error in [ended.get() for _ in threads] if error is not None]
    except BaseException:  # raised again
        _empty(waiting)
        raise
    if errors:
        raise errors[0]


def _empty(queue: SimpleQueue[Item]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass
