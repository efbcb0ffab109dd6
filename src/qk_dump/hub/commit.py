"""The files of a commit: their listing, their copies in the client's cache or in a folder.

The client does not compare what arrives with a checksum, so every file is compared with its hash in
the listing after its download. A file that differs is removed, and the fetch is repeated. The list
of files of the last commit is kept beside those of the client; it serves without a network.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from qk_dump.hub.client import WrongContentError
from qk_dump.hub.place import HubPlace
from qk_toolkit.errors import HubError
from qk_toolkit.files import open_regular, read_json, resolved, write_text

OnBytes = Callable[[int, int], None]

_LISTS = "attention-plasticity"  # folder of lists of files


@dataclass(frozen=True)
class RemoteFile:
    """A file of a commit: its size and its hash (64 digits: sha256, 40 digits: git's)."""

    size: int
    digest: str

    def is_same(self, content: Path | bytes) -> bool:
        """Whether a local file, or bytes, equal the file of the commit."""
        with io.BytesIO(content) if isinstance(content, bytes) else open_regular(content) as file:
            if file.seek(0, os.SEEK_END) != self.size:
                return False
            digest = hashlib.sha256()
            if len(self.digest) == 40:
                digest = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
            file.seek(0)
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest() == self.digest


def list_files(
    api: Any, place: HubPlace, commit: str, folder: str | None = None
) -> dict[str, RemoteFile]:
    """The files of a commit by path, or those below a folder; none if it does not exist."""
    from huggingface_hub.errors import EntryNotFoundError

    options = {"repo_type": "dataset", "revision": commit, "recursive": True}
    try:
        return files_in(api.list_repo_tree(place.repo, folder, **options))
    except EntryNotFoundError:
        if folder is None:
            raise
        return {}


def files_in(entries: Iterable[Any]) -> dict[str, RemoteFile]:
    """The files among the entries of a listing."""
    from huggingface_hub.hf_api import RepoFile

    files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return {
        one.path: RemoteFile(one.size, one.lfs.sha256 if one.lfs else one.blob_id) for one in files
    }


@dataclass(frozen=True)
class CachedCommit:
    """A commit, and its files in the cache of the client or in a folder."""

    place: HubPlace
    cache: Path
    commit: str
    files: Mapping[str, RemoteFile]
    api: Any = None  # None: offline
    folder: Path | None = None  # None: in the cache

    def local(self, path: str) -> Path:
        """The local path of a file of the commit."""
        if self.folder is not None:
            return self.folder / path
        return _folder(self.cache, self.place) / "snapshots" / self.commit / path

    def fetch(
        self,
        paths: Sequence[str],
        workers: int,
        on_bytes: OnBytes = lambda done, total: None,
    ) -> None:
        """Download the files that are not here with their size, and check them."""
        missing = [path for path in paths if not self.is_here(path)]
        if missing and self.api is None:
            raise HubError(
                f"{self.place}: offline, and the cache holds no checked copy of {missing[0]} of "
                f"commit {self.commit[:12]}; unset HF_HUB_OFFLINE to fetch it"
            )
        total = sum(self.files[path].size for path in paths)
        if missing:
            for path in missing:
                self.local(path).unlink(missing_ok=True)  # the client keeps what is there
            wrong: list[str] = []
            try:
                self._download(missing, workers, lambda left: on_bytes(total - left, total))
            finally:
                wrong += self.remove_wrong(missing, workers)
            if wrong:
                raise self._wrong(f"the downloaded {wrong[0]} differs from")
        on_bytes(total, total)

    def is_here(self, path: str) -> bool:
        """Whether the file is here with its size."""
        try:
            return self.local(path).stat().st_size == self.files[path].size
        except OSError:
            return False

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
            "cache_dir": self.folder or self.cache,  # with a folder: what the cache has was tried
            "local_dir": self.folder,
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

    def remove_wrong(self, paths: Sequence[str], workers: int) -> list[str]:
        """Remove the files among those that arrived whose content is another one."""
        arrived = [path for path in paths if self.local(path).exists()]
        with ThreadPoolExecutor(workers) as pool:
            right = pool.map(lambda path: self.files[path].is_same(self.local(path)), arrived)
            wrong = [path for path, is_right in zip(arrived, right, strict=True) if not is_right]
        for path in wrong:
            for file in (resolved(self.local(path)), self.local(path)):
                file.unlink(missing_ok=True)
        return wrong

    def _wrong(self, problem: str) -> WrongContentError:
        return WrongContentError(
            f"{self.place}: {problem} commit {self.commit[:12]}; run the same command again"
        )

    def save_list(self) -> None:
        """Keep the list of files under the commit and the revision, unless nothing is new."""
        files = {path: [file.size, file.digest] for path, file in self.files.items()}
        content = {"commit": self.commit, "files": files}
        for name in {self.commit, self.place.revision}:
            path = _list_path(self.cache, self.place, name)
            if _read_list(path) != content:
                write_text(path, json.dumps(content))


def listed_now(api: Any, place: HubPlace, cache: Path) -> CachedCommit:
    """The commit of the revision now."""
    commit = api.dataset_info(place.repo, revision=place.revision).sha
    return CachedCommit(place, cache, commit, list_files(api, place, commit), api)


def listed_before(cache: Path, place: HubPlace) -> CachedCommit:
    """The commit of the revision that was fetched last, for use offline."""
    content = _read_list(_list_path(cache, place, place.revision))
    if not content:
        raise HubError(
            f"{place}: offline, and the cache holds no checked copy of it; unset HF_HUB_OFFLINE to "
            "fetch it"
        )
    files = {path: RemoteFile(*facts) for path, facts in content["files"].items()}
    return CachedCommit(place, cache, content["commit"], files)


def _folder(cache: Path, place: HubPlace) -> Path:
    """The folder of the dataset, as the client names it."""
    return cache / f"datasets--{place.repo.replace('/', '--')}"


def _list_path(cache: Path, place: HubPlace, revision: str) -> Path:
    return _folder(cache, place) / _LISTS / f"{quote(revision, safe='')}.json"


def _read_list(path: Path) -> dict[str, Any]:
    """A list of files; empty if there is none that can be read."""
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


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
