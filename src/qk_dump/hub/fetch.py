"""Fetching a dump: a branch is resolved to a commit, and its files come into the client's cache.

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
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any
from urllib.parse import quote

from qk_dump.heads import CARD_FILE, EXAMPLES_FILE, HeadId
from qk_dump.hub.client import WrongContentError, hub_api, hub_errors, repeated
from qk_dump.hub.place import HubPlace
from qk_dump.layout import FILES_BESIDE_HEADS, PLAN, UNFINISHED, models_in, refuse_unfinished
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, read_manifest
from qk_toolkit.errors import ConfigError, HubError
from qk_toolkit.files import open_regular, read_json, resolved, user_path, write_text

OnBytes = Callable[[int, int], None]

_WORKERS = 8
_LISTS = "attention-plasticity"  # folder of lists of files
_PLAN = f"{UNFINISHED}/{PLAN}"


@dataclass(frozen=True)
class HeadChoice:
    """Heads to fetch: layers, and query heads together with their key heads; None means all.

    An analysis also needs the other query heads of these key heads, because one record has all of
    them, and the first query head if its rows decide the bins of a run.
    """

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    group: int | None = None  # query heads per key head; None: from dump.json
    for_analysis: bool = False

    def wants(self, head: HeadId, manifest: DumpManifest | None) -> bool:
        """Whether a head is to be fetched. All key heads of a layer are if the group is unknown."""
        if self.layers is not None and head.layer not in self.layers:
            return False
        if self.heads is None:
            return True
        if head.kind == "q" and not self.for_analysis:
            return head.head in self.heads
        group = self.group
        if not group and manifest and manifest.num_q_heads and manifest.num_k_heads:
            group = manifest.num_q_heads // manifest.num_k_heads
        if not group:
            return True
        k_head = head.head // group if head.kind == "q" else head.head
        return k_head in {q_head // group for q_head in self.heads}


@dataclass(frozen=True)
class Fetched:
    """A dump in the cache."""

    folder: Path
    place: HubPlace
    commit: str
    checked_online: bool  # False when a checked copy was used offline
    heads: dict[HeadId, Path] = field(repr=False)  # all heads of the commit, also unfetched ones

    def describe(self) -> str:
        """One line with the place and the commit."""
        suffix = "" if self.checked_online else ", offline: the checked copy in the cache"
        return f"{self.place}: commit {self.commit}{suffix}"

    def as_record(self) -> dict[str, Any]:
        """Place and commit for `run.json`."""
        record = {
            "dataset": self.place.repo,
            "revision": self.place.revision,
            "commit": self.commit,
            "checked_online": self.checked_online,
        }
        return record | ({"model_dir": self.place.folder} if self.place.folder else {})


def fetch_dump(
    place: HubPlace,
    *,
    choice: HeadChoice | None = None,
    cache_dir: str | None = None,
    max_workers: int | None = None,
    token: str | None = None,
    on_bytes: OnBytes | None = None,
) -> Fetched:
    """Fetch the selected heads of a dump into the cache and check every file.

    `on_bytes` is called with (bytes done, bytes in total).
    """
    from huggingface_hub import constants

    cache = user_path(cache_dir) if cache_dir is not None else Path(constants.HF_HUB_CACHE)
    api = None if constants.HF_HUB_OFFLINE else hub_api(token)

    def fetched() -> Fetched:
        copy = _listed_before(cache, place) if api is None else _listed_now(api, place, cache)
        return _fetch(copy, choice or HeadChoice(), max_workers or _WORKERS, on_bytes)

    with hub_errors(place, "fetching"):
        return repeated(fetched)


def _fetch(
    copy: _CachedCommit, choice: HeadChoice, workers: int, on_bytes: OnBytes | None
) -> Fetched:
    place, heads = _heads_of(copy.place, copy.files)
    beside = [place.inside(name) for name in (*FILES_BESIDE_HEADS, CARD_FILE, _PLAN)]
    copy.fetch([path for path in beside if path in copy.files], workers)
    folder = copy.local(place.folder or "")
    if place.inside(_PLAN) in copy.files:
        refuse_unfinished(folder)
    manifest = read_manifest(folder / MANIFEST_NAME)
    wanted = {head for head in heads if choice.wants(head, manifest)}
    if all(head.attended for head in wanted):
        layers = sorted({head.layer for head in heads})
        raise ConfigError(
            f"{place}: none of the selected query heads is in the dump. "
            f"Its layers: {', '.join(map(str, layers))}."
        )
    has_examples = place.inside(EXAMPLES_FILE) in copy.files
    if choice.for_analysis and not (has_examples and manifest and manifest.sampler is not None):
        # the bins of all layers are then made from the first query head
        wanted.update(sorted(head for head in heads if head.kind == "q")[:1])
    paths = [path for head in sorted(wanted) for path in _shards(copy.files, heads[head])]
    copy.fetch(paths, workers, on_bytes or (lambda done, total: None))
    if copy.api is not None:
        copy.save_list()
    folders = {head: copy.local(path) for head, path in heads.items()}
    return Fetched(folder, place, copy.commit, copy.api is not None, folders)


def _heads_of(place: HubPlace, files: Iterable[str]) -> tuple[HubPlace, dict[HeadId, str]]:
    """The place with the folder of its model, and the folder of every head in the branch."""
    folders = {path.rpartition("/")[0] for path in files if _is_shard(path)}
    models = models_in(folders, place)
    if place.folder is not None:
        folder = str(PurePosixPath(place.folder))
        model = "" if folder == "." else folder
    else:
        model = "" if "" in models or len(models) != 1 else next(iter(models))
    place = HubPlace(place.repo, place.revision, model or None)
    if model in models:
        return place, {head: place.inside(inner) for head, inner in models[model].items()}
    hint = "Name the branch of a model: owner/name@branch, or dataset_revision; the card on main "
    hint += "lists them."
    if "" in models:
        hint = "The heads are in the root of the branch: leave model_dir out."
    elif models:
        names = ", ".join(models)
        hint = f"Set model_dir to one of: {names}, or add it: owner/name@branch/model."
    raise ConfigError(f"{place}: no heads found. {hint}")


def _is_shard(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith(".")


def _shards(files: Iterable[str], folder: str) -> list[str]:
    """The Parquet files of a head."""
    return [path for path in files if path.rpartition("/")[0] == folder and _is_shard(path)]


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
class _CachedCommit:
    """A commit, and its files in a cache folder of the client."""

    place: HubPlace
    cache: Path
    commit: str
    files: Mapping[str, RemoteFile]
    api: Any = None  # None: offline

    def local(self, path: str) -> Path:
        """The local path of a file of the commit."""
        return _folder(self.cache, self.place) / "snapshots" / self.commit / path

    def fetch(
        self,
        paths: Sequence[str],
        workers: int,
        on_bytes: OnBytes = lambda done, total: None,
    ) -> None:
        """Download the files that are not here with their size, and check them."""
        missing = [path for path in paths if not self._is_here(path)]
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
                wrong += self._remove_wrong(missing, workers)
            if wrong:
                raise self._wrong(f"the downloaded {wrong[0]} differs from")
        on_bytes(total, total)

    def _is_here(self, path: str) -> bool:
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

    def _remove_wrong(self, paths: Sequence[str], workers: int) -> list[str]:
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


def _listed_now(api: Any, place: HubPlace, cache: Path) -> _CachedCommit:
    """The commit of the revision now."""
    commit = api.dataset_info(place.repo, revision=place.revision).sha
    return _CachedCommit(place, cache, commit, list_files(api, place, commit), api)


def _listed_before(cache: Path, place: HubPlace) -> _CachedCommit:
    """The commit of the revision that was fetched last, for use offline."""
    content = _read_list(_list_path(cache, place, place.revision))
    if not content:
        raise HubError(
            f"{place}: offline, and the cache holds no checked copy of it; unset HF_HUB_OFFLINE to "
            "fetch it"
        )
    files = {path: RemoteFile(*facts) for path, facts in content["files"].items()}
    return _CachedCommit(place, cache, content["commit"], files)


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
