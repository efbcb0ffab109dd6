"""A local folder whose files are copied to a URL.

Work happens in the local folder, so it needs no connection. `.mirror.json` in the folder lists the
files that are equal here and at the URL. A copy that was interrupted continues with the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath
from threading import Event, Lock, Thread, current_thread

from qk_toolkit.cache import cache_folder
from qk_toolkit.errors import StoreError
from qk_toolkit.files import read_json, write_text
from qk_toolkit.store import Store, StoredFile

_STATE = ".mirror.json"
_CHUNK = 16  # files between two records of what was sent
_TRIES = 3  # for a file that arrives damaged

OnBytes = Callable[[int, int], None]


@dataclass(frozen=True)
class _Sent:
    """State of a local file when it was sent or fetched."""

    size: int
    modified: int  # nanoseconds
    version: str = ""  # at the URL; empty until the next listing

    def is_like(self, other: _Sent | None) -> bool:
        """Whether a local file has not changed in between."""
        return other is not None and (self.size, self.modified) == (other.size, other.modified)


def mirror_folder(url: str, purpose: str, parent: Path | None = None) -> Path:
    """The local folder for a URL, in the cache or in `parent`.

    Its name is the last part of the URL.
    """
    url = url.rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", url.rpartition("/")[2].rpartition("@")[2]).strip(".")
    return (parent or cache_folder() / purpose) / digest / (name or "root")


class Mirror:
    """A local folder and its copy at a URL.

    Hidden files, such as locks and drafts, are not copied, except those in the folders `hidden`.
    `last` is the name of the file that makes the others valid; it is sent after them. `note` is
    called with a line about every file that is damaged at the URL.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        last: str,
        hidden: Collection[str] = (),
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.store = Store(url)
        self.url = self.store.url
        self.folder = folder
        self.listed: dict[str, StoredFile] = {}  # of the last listing
        self._last = last
        self._hidden = frozenset(hidden)
        self._note = note
        self._sent = self._read_state(self.url)
        self._present: set[str] = set()  # names that were here and at the URL in this process
        self._threads: set[Thread] = set()  # that send files

    @property
    def senders(self) -> list[Thread]:
        """Threads that still send files. An interruption does not wait for them."""
        return [thread for thread in list(self._threads) if thread.is_alive()]

    def pull(self, wanted: Callable[[str], bool]) -> None:
        """Fetch the wanted files that are missing here or have changed at the URL.

        A file that was changed here after it was fetched is kept, and so is a file that is not at
        the URL yet. Files that were removed at the URL are removed here, wanted or not.
        """
        for name, sent in self._list().items():
            if name not in self.listed and sent.is_like(_state_of(self.folder / name)):
                (self.folder / name).unlink(missing_ok=True)
        missing = [
            name
            for name in self.listed
            if self._is_copied(name) and wanted(name) and not self._is_here(name)
        ]
        self.store.each(self._fetch, missing)
        self._note_versions()

    def pull_exactly(self, wanted: Callable[[str], bool]) -> None:
        """Fetch the wanted files, and remove all others that are not at the URL.

        For folders in which nothing else is written.
        """
        self.pull(wanted)
        for name in self._local_files().keys() - self.listed.keys():
            (self.folder / name).unlink(missing_ok=True)

    def compare(self) -> None:
        """List the files at the URL. No file is fetched or removed here."""
        self._list()
        self._note_versions()

    def push(self, on_bytes: OnBytes | None = None, stopped: Event | None = None) -> None:
        """Send new and changed files, and remove files that were removed here.

        Sizes are checked in a listing. A file with another size at the URL is sent again. Raises a
        `StoreError` that names the local folder, and a `StoppedError` after `stopped` was set.
        """
        store = self.store if stopped is None else Store(self.url, stopped)
        try:
            local = self._local_files()
            gone = sorted(self._present - local.keys())
            store.remove(gone)
            self._present -= set(gone)
            self._sent = {name: sent for name, sent in self._sent.items() if name not in gone}
            changed = [
                name for name, state in local.items() if not state.is_like(self._sent.get(name))
            ]
            if not changed and not gone:
                return
            progress = _Progress(sum(local[name].size for name in changed), on_bytes)
            self._send([name for name in changed if name != self._last], local, store, progress)
            if self._last in changed:
                self._send([self._last], local, store, progress)
        except StoreError as error:
            raise StoreError(f"{error}; all files are kept in {self.folder}") from error

    def clear(self, keep: Collection[str] = ()) -> None:
        """Delete the local copies, except hidden files and `keep`. Locks stay."""
        for name in self._local_files():
            if name not in keep:
                (self.folder / name).unlink(missing_ok=True)
        (self.folder / _STATE).unlink(missing_ok=True)
        self._sent, self._present = {}, set()
        for folder in sorted(self.folder.rglob("*"), reverse=True):
            if folder.is_dir():
                with suppress(OSError):  # it has other files
                    folder.rmdir()

    def _list(self) -> dict[str, _Sent]:
        """List the files at the URL. Returns the files that are no longer the same there."""
        self.listed = self.store.files()
        return {name: self._sent.pop(name) for name in list(self._sent) if self._is_stale(name)}

    def _send(
        self, names: Sequence[str], local: dict[str, _Sent], store: Store, progress: _Progress
    ) -> None:
        """Send files and check their sizes. Files that arrive damaged are sent again."""
        self._upload(names, local, store, progress)
        for tries_left in reversed(range(_TRIES)):
            damage = {name: text for name in names if (text := self._damage(name, local[name]))}
            if not damage:
                break
            if not tries_left:
                self._write_state()
                raise StoreError(next(iter(damage.values())))
            for text in damage.values():
                self._note(f"{text}; it is sent again")
            self._upload(list(damage), local, store)
        self._note_versions()

    def _upload(
        self,
        names: Sequence[str],
        local: dict[str, _Sent],
        store: Store,
        progress: _Progress | None = None,
    ) -> None:
        def send(name: str) -> None:
            self._threads.add(current_thread())
            try:
                store.upload(self.folder / name, name)
            except StoreError:
                if (self.folder / name).exists():
                    raise
                return  # it was removed meanwhile, for example by a run that sets it aside
            self._sent[name] = local[name]
            if progress is not None:
                progress.add(local[name].size)

        self._threads = set(self.senders)
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK]
            try:
                store.each(send, chunk)
            finally:
                self._write_state()
        self.listed = store.files()

    def _damage(self, name: str, state: _Sent) -> str | None:
        """What is wrong with a file that was sent; None if it has its size at the URL.

        A file that changed here meanwhile is not damaged. It is sent again later.
        """
        found = self.listed.get(name)
        if found is not None and found.size == state.size:
            return None
        self._sent.pop(name, None)
        if not state.is_like(_state_of(self.folder / name)):
            return None
        have = "is missing" if found is None else f"has {found.size:,} bytes"
        return f"{self.store.inside(name)}: {have} after it was sent with {state.size:,} bytes"

    def _fetch(self, name: str) -> None:
        self.store.download(name, self.folder / name)
        state = _state_of(self.folder / name)
        if state is not None:
            self._sent[name] = state

    def _note_versions(self) -> None:
        """Record the versions of the last listing for all files that are equal."""
        self._sent = {
            name: _Sent(sent.size, sent.modified, self.listed[name].version)
            for name, sent in self._sent.items()
            if name in self.listed
        }
        self._present |= self._sent.keys()
        if self._sent or (self.folder / _STATE).exists():
            self._write_state()

    def _is_stale(self, name: str) -> bool:
        """Whether the file at the URL is no longer the one that was sent or fetched."""
        sent, now = self._sent[name], self.listed.get(name)
        if now is None or now.size != sent.size:
            return True
        return sent.version not in ("", now.version)

    def _is_here(self, name: str) -> bool:
        return name in self._sent and (self.folder / name).is_file()

    def _is_copied(self, name: str) -> bool:
        parts = PurePosixPath(name).parts
        if name.startswith("/"):
            return False
        return all(part in self._hidden or not part.startswith(".") for part in parts)

    def _local_files(self) -> dict[str, _Sent]:
        found = {}
        for folder, _, names in os.walk(self.folder):  # skips folders that vanish meanwhile
            for path in (Path(folder) / name for name in names):
                name = path.relative_to(self.folder).as_posix()
                state = _state_of(path) if self._is_copied(name) else None
                if state is not None:
                    found[name] = state
        return dict(sorted(found.items()))

    def _read_state(self, key: str) -> dict[str, _Sent]:
        try:
            content = read_json(self.folder / _STATE)
            return {name: _Sent(*values) for name, values in content[key].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write_state(self) -> None:
        sent = self._sent.copy()  # threads that were interrupted may still add files
        content = {self.url: {name: astuple(one) for name, one in sent.items()}}
        write_text(self.folder / _STATE, json.dumps(content))


class _Progress:
    """Adds up the bytes of finished files, which several threads send."""

    def __init__(self, total: int, on_bytes: OnBytes | None) -> None:
        self._total = total
        self._on_bytes = on_bytes
        self._done = 0
        self._lock = Lock()
        self.add(0)

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._on_bytes is not None:
                self._on_bytes(self._done, self._total)


def _state_of(path: Path) -> _Sent | None:
    """Size and time of a regular file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return _Sent(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
