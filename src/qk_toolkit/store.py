"""Files at URLs: s3://, gs:// and every other protocol of fsspec.

Credentials come from where fsspec and its packages take them: environment variables, files of the
home folder, and the configuration of fsspec. A failed request is tried a few times. A lasting
failure becomes a `StoreError` of one line.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from qk_toolkit.errors import ConfigError, StoreError, ToolkitError
from qk_toolkit.files import staged, sync

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://", re.ASCII)
_WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before each retry
_PARALLEL = 8  # transfers at a time
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs"}
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "mtime", "LastModified")

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoredFile:
    """Size of a file, and an identifier that changes with its content."""

    size: int
    version: str


def is_url(text: object) -> bool:
    """Whether a path is a URL such as s3://bucket/folder."""
    return _URL.match(str(text)) is not None


class Store:
    """A folder at a URL. Names of files are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

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
        found: dict[str, Any] = self._try(request, self.url, "listing") or {}
        return {
            name.removeprefix(prefix): _stored(entry)
            for name, entry in sorted(found.items())
            if name.startswith(prefix) and not name.endswith("/")
        }

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """The bytes from `start` to `end` of a file; None if there is no such file."""

        def request() -> bytes:
            content: bytes = self._system.cat_file(f"{self._root}/{name}", start=start, end=end)
            if start is not None and end is not None and len(content) != end - start:
                raise ConnectionError(f"{len(content):,} of {end - start:,} bytes were received")
            return content

        return self._try(request, self.inside(name), "reading")

    def write(self, name: str, content: bytes) -> None:
        """Write a file. Readers see the old file or the complete new one."""
        path = f"{self._root}/{name}"
        self._try(lambda: self._system.pipe_file(path, content), self.inside(name), "writing")

    def download(self, name: str, target: Path) -> None:
        """Copy a file to `target`, in one step. Raises a `StoreError` if there is none."""
        with staged(target) as draft:

            def request() -> bool:
                self._system.get_file(f"{self._root}/{name}", str(draft))
                return True

            if self._try(request, self.inside(name), "reading") is None:
                raise StoreError(f"{self.inside(name)}: does not exist")
            with draft.open("rb+") as file:
                sync(file)

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file to the folder."""
        path = f"{self._root}/{name}"
        self._try(lambda: self._system.put_file(str(source), path), self.inside(name), "writing")

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. Files that do not exist are skipped."""
        for name in names:
            request = partial(self._system.rm_file, f"{self._root}/{name}")
            self._try(request, self.inside(name), "removing")

    def each(self, action: Callable[[str], Any], names: Iterable[str]) -> None:
        """Call `action` for every name, several at a time. The first error is raised."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            futures = [pool.submit(action, name) for name in names]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    @cached_property
    def _root(self) -> str:
        root: str = self._system._strip_protocol(self.url)
        return root.rstrip("/")

    @cached_property
    def _system(self) -> Any:
        """The file system of fsspec for the URL."""
        import fsspec

        protocol = self.url.partition("://")[0]
        try:
            system, _ = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            package = _PACKAGES.get(protocol, "a package of fsspec")
            raise ConfigError(
                f"{self.url}: needs {package} (pip install {package})"
                if package in _PACKAGES.values()
                else f"{self.url}: needs {package}: {error}"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{self.url}: is not a usable URL ({_reason(error)})") from error
        return system

    def _try(self, request: Callable[[], Result], url: str, doing: str) -> Result | None:
        """Run a request and retry it. None if the file does not exist."""
        for wait in (*_WAITS, None):
            try:
                return request()
            except ToolkitError:
                raise
            except FileNotFoundError:
                return None
            except Exception as error:
                if wait is None or not _is_transient(error):
                    raise StoreError(f"{url}: {doing} failed: {_remedy(error)}") from error
            time.sleep(wait)
        raise AssertionError("unreachable")


def _stored(entry: dict[str, Any]) -> StoredFile:
    version = next((str(entry[key]) for key in _VERSION_KEYS if entry.get(key)), "")
    return StoredFile(int(entry["size"] or 0), version)


def _is_transient(error: Exception) -> bool:
    """Whether a retry may help."""
    return not isinstance(error, PermissionError) and "credentials" not in str(error).lower()


def _remedy(error: Exception) -> str:
    if isinstance(error, PermissionError) or "credentials" in str(error).lower():
        return f"no access ({_reason(error)}); check the credentials, then run the same command"
    return f"{_reason(error)}; run the same command again"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
