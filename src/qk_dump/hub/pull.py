"""Fetching a dump: a branch is resolved to a commit, and every file is checked against it.

Files go to the cache of the Hub client, which stores them by commit, so branches cannot be mixed
up. `cache_records` stores which files were checked.

Records in the cache of the Hub client: the commit of each branch, and the checked files. With these
records a file is checked only once, and checked files can be used offline. Online, a damaged record
is ignored. Offline, it is an error.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from qk_dump.card import CARD_FILE
from qk_dump.dump_files import FILES_BESIDE_HEADS
from qk_dump.hub.client import hub_api, hub_errors, with_retries, without_client_bars
from qk_dump.hub.files import (
    RemoteFile,
    commit_id,
    download,
    is_commit,
    list_files,
    require_file,
    require_name,
)
from qk_dump.hub.place import HubPlace
from qk_dump.layout import ATTENDED, HeadId, parse_folder, require_head
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, read_manifest
from qk_toolkit.errors import ConfigError, HubError
from qk_toolkit.files import cannot_write, link_to, read_json, resolved, user_path, write_text

_SMALL_FILES = (*FILES_BESIDE_HEADS, CARD_FILE)
_WORKERS = 8
_TRIES = 3  # downloads of a file before wrong bytes are an error


@dataclass(frozen=True)
class HeadChoice:
    """Heads to fetch: layers, and query heads together with their key heads; None means all."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    group: int | None = None  # query heads per key head; None: from dump.json

    def wants(self, head: HeadId, manifest: DumpManifest | None) -> bool:
        """Whether a head is to be fetched. All are when the group size is not known."""
        group = self.group or _group(manifest)
        if not group:
            return True  # the analysis counts the heads to find the group size
        if self.layers is not None and head.layer not in self.layers:
            return False
        if self.heads is None:
            return True
        wanted = self.heads if head.kind == "q" else [q_head // group for q_head in self.heads]
        return head.head in wanted


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
    on_bytes: Callable[[int, int], None] | None = None,
) -> Fetched:
    """Fetch the selected heads of a dump into the cache and check every file.

    `on_bytes` is called with (bytes done, bytes in total).
    """
    from huggingface_hub import constants

    cache = user_path(cache_dir) if cache_dir is not None else Path(constants.HF_HUB_CACHE)
    records = CacheRecords(cache, place)
    api, offline = hub_api(token), bool(constants.HF_HUB_OFFLINE)
    with hub_errors(place, "fetching"), without_client_bars():
        known = records.load() if offline else _online_commit(api, place, records)
        place = _with_folder(place, known.files)
        copy = _CachedCommit(api, place, records, known, offline)
        heads = _heads(copy)
        small = [path for path in map(copy.inside, _SMALL_FILES) if path in known.files]
        copy.fetch(small, 1, lambda done, total: None)
        manifest_path = copy.inside(MANIFEST_NAME)
        manifest = read_manifest(copy.local(manifest_path)) if manifest_path in small else None
        selected = _selected(heads, choice or HeadChoice(), manifest, place)
        copy.fetch(selected, max_workers or _WORKERS, on_bytes or (lambda done, total: None))
        if not offline:
            records.save_revision(known.commit)
    folders = {head: copy.local(path).parent for path, head in heads.items()}
    folder = copy.local(place.folder or "")
    return Fetched(folder, place, known.commit, not offline, folders)


def _group(manifest: DumpManifest | None) -> int:
    """Query heads per key head, 0 when not known."""
    if manifest is None or not manifest.num_q_heads or not manifest.num_k_heads:
        return 0
    return manifest.num_q_heads // manifest.num_k_heads


def _online_commit(api: Any, place: HubPlace, records: CacheRecords) -> KnownCommit:
    """The current commit of the revision, and its files."""
    info = with_retries(lambda: api.dataset_info(place.repo, revision=place.revision))
    commit = commit_id(info.sha, place)
    return KnownCommit(commit, list_files(api, place, commit), records.checked(commit))


def _heads(copy: _CachedCommit) -> dict[str, HeadId]:
    """The Parquet files of the dump, each with its head."""
    heads: dict[str, HeadId] = {}
    for path in sorted(copy.known.files):
        head = _head_of(path.removeprefix(copy.inside("")))
        if head is not None and path.startswith(copy.inside("")):
            require_head(head, f"{copy.place}: {path}")
            heads[path] = head
    if all(head.attended for head in heads.values()):
        raise ConfigError(f"{copy.place}: no heads found. {_where_heads_are(copy.known.files)}")
    return heads


def _selected(
    heads: dict[str, HeadId], choice: HeadChoice, manifest: DumpManifest | None, place: HubPlace
) -> list[str]:
    wanted = {head for head in heads.values() if choice.wants(head, manifest)}
    if all(head.attended for head in wanted):
        layers = sorted({head.layer for head in heads.values()})
        raise ConfigError(
            f"{place}: none of the selected query heads is in the dump. "
            f"Its layers: {', '.join(map(str, layers))}."
        )
    return [path for path, head in heads.items() if head in wanted]


def _with_folder(place: HubPlace, files: Iterable[str]) -> HubPlace:
    """The place with the folder of the only model, unless heads are in the root."""
    if place.folder is not None:
        folder = str(PurePosixPath(place.folder))
        return replace(place, folder=None if folder == "." else folder)
    models = _models(files)
    if len(models) != 1 or _has_heads(files):
        return place
    return replace(place, folder=models[0])


def _models(files: Iterable[str]) -> list[str]:
    found = {path.split("/")[0] for path in files if _head_of(path.partition("/")[2])}
    return sorted(found - {ATTENDED})


def _has_heads(files: Iterable[str]) -> bool:
    """Whether there are heads in the root."""
    found = map(_head_of, files)
    return any(head is not None and not head.attended for head in found)


def _head_of(path: str) -> HeadId | None:
    folder, _, name = path.rpartition("/")
    if not name.endswith(".parquet") or name.startswith("."):
        return None
    return parse_folder(folder)


def _where_heads_are(files: Iterable[str]) -> str:
    models = _models(files)
    if _has_heads(files):
        return "The heads are in the root of the branch: leave model_dir out."
    if models:
        return f"Set model_dir to one of: {', '.join(models)}, or add it: owner/name@branch/model."
    return (
        "Name the branch of a model: owner/name@branch, or dataset_revision; "
        "the card on main lists them."
    )


@dataclass(frozen=True)
class _CachedCommit:
    """The files of a commit in the cache.

    The layout is the one of the client: the bytes are in `blobs/`, named by their hash, and
    `snapshots/<commit>/` has links to them.
    """

    api: Any
    place: HubPlace
    records: CacheRecords
    known: KnownCommit
    offline: bool
    locks: dict[str, Lock] = field(default_factory=dict, repr=False)  # one per content

    def inside(self, name: str) -> str:
        """A path in the branch, below `model_dir` if there is one."""
        return f"{self.place.folder}/{name}" if self.place.folder else name

    def local(self, path: str) -> Path:
        """The local path of a file of the commit."""
        return self.records.repo / "snapshots" / self.known.commit / path

    def fetch(
        self, paths: Sequence[str], workers: int, on_bytes: Callable[[int, int], None]
    ) -> None:
        """Download and check the files that are not recorded as checked, and record them."""
        missing = [path for path in paths if not self._is_checked(path)]
        total = sum(self.known.files[path].size for path in paths)
        done = total - sum(self.known.files[path].size for path in missing)
        on_bytes(done, total)
        if missing and self.offline:
            raise HubError(
                f"{self.place}: offline, and the cache holds no checked copy of {missing[0]} of "
                f"commit {self.known.commit[:12]}; unset HF_HUB_OFFLINE to fetch it"
            )
        if not missing:
            return
        self._require_space(missing)
        pool = ThreadPoolExecutor(workers)
        try:
            for path, _ in zip(missing, pool.map(self._fetch_file, missing), strict=True):
                done += self.known.files[path].size
                on_bytes(done, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self.records.save(self.known)

    def _require_space(self, paths: Sequence[str]) -> None:
        needed = sum(self.known.files[path].size for path in paths if not self.local(path).exists())
        try:
            self.records.repo.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.records.repo, error) from error
        free = shutil.disk_usage(self.records.repo).free
        if needed > free:
            raise HubError(
                f"{self.place}: the download has {needed:,} bytes, {self.records.cache} has "
                f"{free:,} free; choose another folder for downloads, or fewer layers"
            )

    def _fetch_file(self, path: str) -> None:
        """Fetch a file. Files of one content are fetched one after the other, into one place."""
        with self.locks.setdefault(self.known.files[path].digest, Lock()):
            if any(self._try_fetch(path) for _ in range(_TRIES)):
                self.known.checked[path] = _stamp(self.local(path))
                return
        self.local(path).unlink(missing_ok=True)
        self._blob(path).unlink(missing_ok=True)
        raise HubError(
            f"{self.place}: the downloaded {path} differs from commit {self.known.commit[:12]}; "
            "run the same command again"
        )

    def _try_fetch(self, path: str) -> bool:
        """Download a file unless the cache has it. Returns whether it equals the commit's file."""
        file, local, blob = self.known.files[path], self.local(path), self._blob(path)
        self._require_inside(local.parent, f"snapshots/{self.known.commit}")
        self._require_inside(blob, "blobs")
        if local.exists() and file.is_same(local):
            return True
        complete = blob.exists() and file.is_same(blob)
        if not complete and not download(self.api, self.place, self.known.commit, path, file, blob):
            return False
        try:
            link_to(blob, local)
        except OSError as error:
            raise cannot_write(local, error) from error
        return True

    def _blob(self, path: str) -> Path:
        return self.records.repo / "blobs" / self.known.files[path].digest

    def _require_inside(self, path: Path, folder: str) -> None:
        """Raise an error when a link leads out of the cache."""
        home = resolved(self.records.repo) / folder
        if not resolved(path).is_relative_to(home):
            raise ConfigError(f"{path}: is outside the cache because of a link; remove the link")

    def _is_checked(self, path: str) -> bool:
        try:
            return self.known.checked.get(path) == _stamp(self.local(path))
        except OSError:
            return False


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


@dataclass
class KnownCommit:
    """A commit: its files, and which of them were checked on this machine."""

    commit: str
    files: dict[str, RemoteFile]
    checked: dict[str, list[int]] = field(default_factory=dict)  # path → size, time of change


@dataclass(frozen=True)
class CacheRecords:
    """Reads and writes the records of one dataset."""

    cache: Path
    place: HubPlace

    @property
    def repo(self) -> Path:
        """The folder of the dataset in the cache."""
        return self.cache / f"datasets--{self.place.repo.replace('/', '--')}"

    @property
    def _folder(self) -> Path:
        return self.repo / "attention-plasticity"

    def checked(self, commit: str) -> dict[str, list[int]]:
        """Files of a commit that were checked on this machine."""
        return _stamps(_read(self._folder / f"{commit}.json").get("checked"))

    def save(self, known: KnownCommit) -> None:
        """Save the commit, merged with the files that other processes checked."""
        files = {path: [file.size, file.digest, file.kind] for path, file in known.files.items()}
        content = {"files": files, "checked": self.checked(known.commit) | known.checked}
        write_text(self._folder / f"{known.commit}.json", json.dumps(content))

    def save_revision(self, commit: str) -> None:
        """Save the commit of the revision, after all requested files are in the cache."""
        revisions = _read(self._folder / "revisions.json")
        if revisions.get(self.place.revision) != commit:
            revisions[self.place.revision] = commit
            write_text(self._folder / "revisions.json", json.dumps(revisions))

    def load(self) -> KnownCommit:
        """The commit of the revision at the last fetch, for use offline."""
        commit = _read(self._folder / "revisions.json").get(self.place.revision)
        if commit is None and is_commit(self.place.revision):
            commit = self.place.revision
        path = self._folder / f"{commit}.json"
        record = _read(path) if is_commit(commit) else {}
        if not record:
            raise HubError(
                f"{self.place}: offline, and the cache holds no checked copy of it; unset "
                "HF_HUB_OFFLINE to fetch it"
            )
        try:
            files = {
                require_name(name, self.place): require_file(RemoteFile(*file), str(path))
                for name, file in record["files"].items()
            }
        except (HubError, AttributeError, KeyError, TypeError) as error:
            raise HubError(
                f"{self.place}: offline, and {path} is damaged; unset HF_HUB_OFFLINE to fetch the "
                "dump again"
            ) from error
        return KnownCommit(str(commit), files, _stamps(record.get("checked")))


def _stamps(checked: object) -> dict[str, list[int]]:
    """The checked files of a record, without invalid entries."""
    if not isinstance(checked, dict):
        return {}
    return {path: stamp for path, stamp in checked.items() if isinstance(stamp, list)}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
