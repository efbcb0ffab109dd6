"""Copies between a local folder and a URL.

Most files do not change once they have their names. So a file that has its size at the URL need not
be sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import StoreError
from qk_toolkit.files import read_json, write_text
from qk_toolkit.store import DamagedFileError, Store, StoredFile

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


def send_files(
    url: str,
    folder: Path,
    names: Sequence[str],
    on_bytes: OnBytes | None = None,
    *,
    always: bool = False,
) -> None:
    """Send the files of a folder that do not have their size at the URL; with `always`, all.

    `on_bytes` gets the bytes that are sent and those of all these files. A file that has another
    size afterwards is sent again, once. Raises a `StoreError` that names the folder.
    """
    store = Store(url)
    try:
        wrong = list(names) if always else _incomplete(store, folder, names)
        for _ in range(2):
            _upload(store, folder, wrong, on_bytes)
            wrong = _incomplete(store, folder, wrong)
        if wrong:
            raise StoreError(f"{store.inside(wrong[0])}: has another size after it was sent")
    except StoreError as error:
        raise StoreError(f"{error}; all files are kept in {folder}") from error


def _upload(store: Store, folder: Path, names: Sequence[str], on_bytes: OnBytes | None) -> None:
    sizes = {name: (folder / name).stat().st_size for name in names}
    done: list[int] = []  # sizes of the files that were sent

    def upload(name: str) -> None:
        store.upload(folder / name, name)
        done.append(sizes[name])
        if on_bytes is not None:
            on_bytes(sum(done), sum(sizes.values()))

    store.each(upload, names)


def _incomplete(store: Store, folder: Path, names: Sequence[str]) -> list[str]:
    """The files that do not have their size at the URL."""
    found = store.files() if names else {}
    sizes = {name: (folder / name).stat().st_size for name in names}
    return [name for name in names if name not in found or found[name].size != sizes[name]]
