"""Results at URLs: a run works in a local folder, and its files are sent when it is finished.

Records are sent too, and those at the URL are fetched first, so commands on several machines can
share the layers of a dump.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attention_plasticity.metrics import TABLES
from attention_plasticity.run.folder import RunFolder
from attention_plasticity.run.records import ENDING, FOLDER, Records
from attention_plasticity.tables.run_info import RUN_FILE
from qk_dump.hub.place import is_hub_path, parse_place
from qk_dump.hub.publish import open_branch, push_files
from qk_toolkit.errors import ConfigError, HubError, StoreError
from qk_toolkit.files import try_lock
from qk_toolkit.store import Store
from qk_toolkit.sync import fetch_missing, send_files

_WRITE_TEST = ".write-test"
_TABLES = [table.file for table in TABLES.values()]


class Destination:
    """Where the files of a run go after they are written. Nothing is to be done for a folder."""

    def begin(self) -> None:
        """The run begins. Raises if the place cannot be written to."""

    def collect(self) -> None:
        """Exchange records with other commands, before the tables are written."""

    def finish(self) -> None:
        """All files are written."""


class _AtUrl(Destination):
    def __init__(self, place: RunFolder, records: Records) -> None:
        assert place.url is not None
        self._place, self._url, self._folder = place, place.url, place.folder
        self._records = records

    def begin(self) -> None:
        store = Store(self._url)
        store.write(_WRITE_TEST, b"")  # so that a missing permission fails early
        store.remove([_WRITE_TEST])

    def collect(self) -> None:
        inner = self._records.folder
        files = [*sorted(inner.glob(f"l*{ENDING}")), *inner.glob("settings.json")]
        # first, so that of two commands that end together one has all heads
        send_files(self._url, self._folder, [self._name(path) for path in files])
        try:
            fetch_records(self._place, self._records)
        except StoreError as error:
            raise StoreError(f"{error}; all files are kept in {self._folder}") from error

    def finish(self) -> None:
        present = [name for name in _TABLES if (self._folder / name).exists()]
        for names in (present, [RUN_FILE]):
            send_files(self._url, self._folder, names, always=True)
        Store(self._url).remove([name for name in _TABLES if name not in present])
        shutil.rmtree(self._folder, ignore_errors=True)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()


class _OnTheHub(Destination):
    """A branch of a dataset, which gets the tables in one commit at the end of the run.

    Records are not sent, because every upload is a commit. They stay in the local folder.
    """

    def __init__(self, place: RunFolder) -> None:
        self._folder = place.folder
        self._place = parse_place(place.place)

    def begin(self) -> None:
        open_branch(self._place)

    def finish(self) -> None:
        paths = [self._folder / name for name in (*_TABLES, RUN_FILE)]
        files: dict[str, Path] = {path.name: path for path in paths if path.exists()}
        try:
            push_files(files, self._place, _TABLES.__contains__)
        except HubError as error:
            raise HubError(f"{error}; all files are kept in {self._folder}") from error


def fetch_records(place: RunFolder, records: Records) -> None:
    """Fetch the records with these settings, if the run is at a URL that keeps records."""
    if place.url is not None and not is_hub_path(place.url):
        fetch_missing(place.url, place.folder, f"{FOLDER}/{records.folder.name}")


@contextmanager
def destination(place: RunFolder, records: Records) -> Iterator[Destination]:
    """The place of a run, locked during the block. Records at a URL are fetched."""
    if place.url is None:
        yield Destination()
    elif is_hub_path(place.url):
        yield _OnTheHub(place)
    else:
        lock = try_lock(place.folder.with_name(f".lock-{place.folder.name}"))
        if lock is None:  # the end of that command removes the local folder
            raise ConfigError(f"{place.url}: another command on this machine is writing here")
        try:
            fetch_records(place, records)
            yield _AtUrl(place, records)
        finally:
            lock.release()
