"""Copies new files of a local folder to a URL, at intervals and at the end.

For folders whose files do not change once they have their names, except those that are sent at the
end. So a file that has its size at the URL need not be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread

from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import StoreError, ToolkitError
from qk_toolkit.store import DamagedFileError, StoppedError, Store

_TRIES = 3  # for a file that arrives with another size
_SECONDS_TO_STOP = 1.0  # seconds that an interrupted run waits for requests in progress


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


class Sync:
    """Sends the files of a folder that `names` lists, every few seconds, in a thread."""

    def __init__(
        self,
        url: str,
        folder: Path,
        names: Callable[[], Iterable[str]],
        note: Callable[[str], None],
        seconds: float = 10.0,
    ) -> None:
        self._store = Store(url)
        self._folder = folder
        self._names = names
        self._note = note
        self._seconds = seconds
        self._sent: set[str] = set()
        self._stopped = Event()
        self._thread = Thread(target=self._work, name="sync", daemon=True)

    def begin(self) -> None:
        """Send what is there, so that a wrong URL fails early, and start the thread."""
        present = self._store.files()
        self._sent = {
            name
            for name in self._names()
            if name in present and _size(self._folder / name) == present[name].size
        }
        self._send(self._store)
        self._thread.start()

    def send(self) -> None:
        """Send what is there now."""
        self._send(self._store)

    def finish(self, last: list[list[str]]) -> None:
        """Send the rest, then the files of `last`, one list after the other, and check all sizes.

        Raises a `StoreError` that names the local folder.
        """
        self._stopped.set()
        self._thread.join()
        try:
            self._send(self._store)
            for names in last:
                self._send_checked(names)
            self._send_checked([name for name in self._names() if name in self._sent])
        except StoreError as error:
            raise StoreError(f"{error}; all files are kept in {self._folder}") from error

    def stop(self) -> None:
        """End the thread. A request that the server does not answer is not waited for."""
        self._stopped.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(_SECONDS_TO_STOP)

    def _work(self) -> None:
        failed = False
        store = Store(self._store.url, self._stopped)
        while not self._stopped.wait(self._seconds):
            try:
                self._send(store)
                failed = False
            except StoppedError:
                return
            except ToolkitError as error:
                if not failed:
                    show_traceback(error)
                    self._note(f"sending failed and is tried again: {error}")
                failed = True

    def _send(self, store: Store) -> None:
        """Send the files that are not at the URL."""

        def upload(name: str) -> None:
            store.upload(self._folder / name, name)
            self._sent.add(name)

        store.each(upload, [name for name in self._names() if name not in self._sent])

    def _send_checked(self, names: list[str]) -> None:
        """Send files, unless they have their size at the URL and were sent before."""
        wrong = [name for name in names if name not in self._sent]
        for _ in range(_TRIES):
            self._store.each(lambda name: self._store.upload(self._folder / name, name), wrong)
            present = self._store.files()
            wrong = [
                name
                for name in names
                if name not in present or present[name].size != _size(self._folder / name)
            ]
            if not wrong:
                return
        raise StoreError(f"{self._store.inside(wrong[0])}: has another size after it was sent")


def _size(path: Path) -> int:
    """Bytes of a file; −1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
