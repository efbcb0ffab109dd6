"""Files of one commit in the cache of the Hub client, each compared with its hash in the listing.

The client downloads, names and links the files. It does not compare what arrives with a checksum,
so this is done here, once per file. A file that differs is removed, and the fetch is repeated. What
was checked is recorded beside the files of the client, with the list of all files of the commit.
The record also serves without a network.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from qk_dump.hub.client import WrongContentError
from qk_dump.hub.files import RemoteFile
from qk_dump.hub.place import HubPlace
from qk_toolkit.errors import HubError
from qk_toolkit.files import read_json, resolved, write_text

_RECORDS = "attention-plasticity"


@dataclass(frozen=True)
class CachedCommit:
    """A commit, and its files in a cache folder of the client."""

    place: HubPlace
    cache: Path
    commit: str
    files: dict[str, RemoteFile]
    api: Any = None  # None: offline
    checked: dict[str, Any] = field(default_factory=dict)  # path → size and time of change

    def local(self, path: str) -> Path:
        """The local path of a file of the commit."""
        return _folder(self.cache, self.place) / "snapshots" / self.commit / path

    def fetch(
        self,
        paths: Sequence[str],
        workers: int = 1,
        on_bytes: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Download and check the files that are not recorded as checked."""
        missing = [path for path in paths if not self._is_checked(path)]
        if missing and self.api is None:
            raise HubError(
                f"{self.place}: offline, and the cache holds no checked copy of {missing[0]} of "
                f"commit {self.commit[:12]}; unset HF_HUB_OFFLINE to fetch it"
            )
        total = sum(self.files[path].size for path in paths)
        if missing:
            self._download(missing, workers, lambda left: on_bytes(total - left, total))
            self._check(missing, workers)
        on_bytes(total, total)

    def _download(self, paths: Sequence[str], workers: int, on_left: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_download, snapshot_download

        blobs = _folder(self.cache, self.place) / "blobs"
        wanted = {self.files[path] for path in paths}
        needed = sum(file.size for file in wanted if not (blobs / file.digest).exists())
        if needed:
            on_left(needed)
        options: dict[str, Any] = {
            "repo_type": "dataset",
            "revision": self.commit,
            "cache_dir": self.cache,
            "endpoint": self.api.endpoint,
            "token": self.api.token,
            "library_name": self.api.library_name,
            "tqdm_class": _bar(lambda done: on_left(max(needed - done, 1))),
        }
        try:
            if len(paths) == 1:  # without a list of all files of the commit
                hf_hub_download(self.place.repo, *paths, **options)
            else:
                patterns = [glob.escape(path) for path in paths]
                options |= {"allow_patterns": patterns, "max_workers": workers}
                snapshot_download(self.place.repo, **options)
        except OSError as error:
            if "Consistency check failed" not in str(error):
                raise
            raise self._wrong("the length of a downloaded file differs from") from error

    def _check(self, paths: Sequence[str], workers: int) -> None:
        """Record the files that are right, and remove the others."""
        with ThreadPoolExecutor(workers) as pool:
            right = list(pool.map(lambda path: self.files[path].is_at(self.local(path)), paths))
        wrong = [path for path, is_right in zip(paths, right, strict=True) if not is_right]
        for path in wrong:
            for file in (resolved(self.local(path)), self.local(path)):
                file.unlink(missing_ok=True)
        self.checked.update({path: _stamp(self.local(path)) for path in {*paths} - {*wrong}})
        if wrong:
            raise self._wrong(f"the downloaded {wrong[0]} differs from")

    def _wrong(self, problem: str) -> WrongContentError:
        return WrongContentError(
            f"{self.place}: {problem} commit {self.commit[:12]}; run the same command again"
        )

    def _is_checked(self, path: str) -> bool:
        stamp = _stamp(self.local(path))
        return stamp is not None and stamp == self.checked.get(path)

    def save(self) -> None:
        """Record the commit under its id and the name of the revision, unless nothing is new."""
        files = {path: [file.size, file.digest] for path, file in self.files.items()}
        record = {"commit": self.commit, "files": files, "checked": self.checked}
        for name in {self.commit, self.place.revision}:
            path = _record_path(self.cache, self.place, name)
            if _record(path) != record:
                write_text(path, json.dumps(record))


def current_commit(
    cache: Path, place: HubPlace, commit: str, files: dict[str, RemoteFile], api: Any
) -> CachedCommit:
    """The commit with what was checked on this machine."""
    checked = _record(_record_path(cache, place, commit)).get("checked", {})
    return CachedCommit(place, cache, commit, files, api, checked)


def last_commit(cache: Path, place: HubPlace) -> CachedCommit:
    """The commit of the revision that was fetched last, for use offline."""
    record = _record(_record_path(cache, place, place.revision))
    if not record:
        raise HubError(
            f"{place}: offline, and the cache holds no checked copy of it; unset HF_HUB_OFFLINE to "
            "fetch it"
        )
    files = {path: RemoteFile(*facts) for path, facts in record["files"].items()}
    return CachedCommit(place, cache, record["commit"], files, checked=record["checked"])


def _folder(cache: Path, place: HubPlace) -> Path:
    """The folder of the dataset, as the client names it."""
    return cache / f"datasets--{place.repo.replace('/', '--')}"


def _record_path(cache: Path, place: HubPlace, revision: str) -> Path:
    return _folder(cache, place) / _RECORDS / f"{quote(revision, safe='')}.json"


def _record(path: Path) -> dict[str, Any]:
    """The record of a revision; empty if there is none that can be read."""
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


def _stamp(file: Path) -> list[int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _bar(on_done: Callable[[int], None]) -> Any:
    """A progress bar for the client that shows nothing and gives the number of bytes."""
    import huggingface_hub.utils

    client: Any = huggingface_hub.utils
    lock, done = Lock(), [0]

    class Bar(client.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, name: str | None = None, **options: Any) -> None:
            self.counts = name is not None and not name.endswith(".transfer")
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            with lock:
                done[0] += int(n or 0) if self.counts else 0
                on_done(done[0])

    return Bar
