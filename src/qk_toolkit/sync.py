"""Copies between a local folder and a URL.

For folders whose files do not change once they have their names, except those that are sent last.
So a file that has its size at the URL need not be sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from threading import Event, Lock, Thread

from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import StoreError, ToolkitError
from qk_toolkit.files import read_json, write_text
from qk_toolkit.store import DamagedFileError, Store, StoredFile

_SECONDS_TO_STOP = 1.0  # seconds that an interrupted run waits for requests in progress
_VERSIONS = ".versions.json"  # of fetched files

OnBytes = Callable[[int, int], None]


def fetch_missing(url: str, folder: Path, inner: str) -> int:
    """Fetch the files in `url/inner` that are not in `folder/inner`. Returns their number.

    Files that are damaged at the URL are left out. Local files are never replaced: they may have
    been made again because those at the URL are damaged.
    """
    store = Store(url)
    names = [
        name
        for name in store.files()
        if name.rpartition("/")[0] == inner and not (folder / name).exists()
    ]

    def fetch(name: str) -> None:
        try:
            store.download(name, folder / name)
        except DamagedFileError as error:
            show_traceback(error)

    store.each(fetch, names)
    return len(names)


def fetch_changed(store: Store, folder: Path, files: Mapping[str, StoredFile]) -> None:
    """Fetch files of the URL whose versions are not in the folder, and remove all others there."""
    try:
        known = read_json(folder / _VERSIONS)
    except (OSError, ValueError):
        known = {}
    wanted = {name: list(astuple(file)) for name, file in files.items()}
    kept = {name: one for name, one in wanted.items() if (folder / name).is_file()}
    kept = {name: one for name, one in kept.items() if known.get(name) == one}
    write_text(folder / _VERSIONS, json.dumps(kept))
    for name in known.keys() - kept.keys():
        (folder / name).unlink(missing_ok=True)
    store.each(lambda name: store.download(name, folder / name), wanted.keys() - kept.keys())
    write_text(folder / _VERSIONS, json.dumps(wanted))


class Sync:
    """Sends the files of a folder that `names` lists: in a thread every few seconds, or at the end.

    `on_bytes` gets the bytes that `finish` has sent and those that it has to send.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        names: Callable[[], Iterable[str]],
        note: Callable[[str], None],
        on_bytes: OnBytes | None = None,
        seconds: float = 10.0,
    ) -> None:
        self._store = Store(url)
        self._folder = folder
        self._names = names
        self._note = note
        self._on_bytes = on_bytes
        self._seconds = seconds
        self._sent: set[str] = set()
        self._sending = Lock()
        self._stopped = Event()
        self._thread = Thread(target=self._work, name="sync", daemon=True)

    def begin(self) -> None:
        """Send what is there, so that a wrong URL fails early, and start the thread."""
        names = set(self._names())
        self._sent = names - set(self._incomplete(names))
        self.send()
        self._thread.start()

    def send(self) -> None:
        """Send what is there now. The thread and its caller never send a file together."""
        with self._sending:
            self._upload([name for name in self._names() if name not in self._sent])

    def finish(self, last: Sequence[Sequence[str]]) -> None:
        """Send the rest, then the files of `last`, one list after the other, and check all sizes.

        Raises a `StoreError` that names the local folder.
        """
        self._stopped.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join()
        self._stopped.clear()
        try:
            self._complete(list(self._names()), self._on_bytes)
            for names in last:
                self._upload(names)
                self._complete(names)
        except StoreError as error:
            raise StoreError(f"{error}; all files are kept in {self._folder}") from error

    def stop(self) -> None:
        """End the thread. A request that the server does not answer is not waited for."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_SECONDS_TO_STOP)

    def _work(self) -> None:
        failed = False
        while not self._stopped.wait(self._seconds):
            try:
                self.send()
                failed = False
            except ToolkitError as error:
                if not failed and not self._stopped.is_set():
                    show_traceback(error)
                    self._note(f"sending failed and is tried again: {error}")
                failed = True

    def _upload(self, names: Sequence[str], on_bytes: OnBytes | None = None) -> None:
        sizes = {name: _size(self._folder / name) for name in names}
        done: list[int] = []  # sizes of the files that were sent

        def upload(name: str) -> None:
            if self._stopped.is_set():
                return
            self._store.upload(self._folder / name, name)
            self._sent.add(name)
            done.append(sizes[name])
            if on_bytes is not None:
                on_bytes(sum(done), sum(sizes.values()))

        self._store.each(upload, names)

    def _complete(self, names: Sequence[str], on_bytes: OnBytes | None = None) -> None:
        """Send the files that do not have their size at the URL, and check them."""
        wrong = self._incomplete(names)
        if wrong:
            self._upload(wrong, on_bytes)
            wrong = self._incomplete(wrong)
        if wrong:
            raise StoreError(f"{self._store.inside(wrong[0])}: has another size after it was sent")

    def _incomplete(self, names: Iterable[str]) -> list[str]:
        """The files that do not have their size at the URL."""
        present = self._store.files()
        return [
            name
            for name in names
            if name not in present or present[name].size != _size(self._folder / name)
        ]


def _size(path: Path) -> int:
    """Bytes of a file; −1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
