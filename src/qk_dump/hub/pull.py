"""Fetching a dump: a branch is resolved to a commit, and every file is checked against it.

Files go to the Hub client's cache, where they are kept by commit: another branch's rows cannot be
taken for this one's. What was checked is remembered beside them, so that it is not read again and
so that a machine without a network can tell a checked copy from any other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from qk_dump.card import CARD_FILE
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.hub.client import hub_api, hub_errors, with_retries, without_client_bars
from qk_dump.hub.files import commit_id, download, list_files
from qk_dump.hub.notes import KnownCommit, Notes
from qk_dump.hub.place import HubPlace
from qk_dump.layout import HeadId, parse_head, require_head
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, read_manifest
from qk_toolkit.errors import ConfigError, HubError
from qk_toolkit.files import cannot_write, link_to, resolved, user_path

_SMALL_FILES = (MANIFEST_NAME, EXAMPLES_FILE, CARD_FILE)
_WORKERS = 8
_TRIES = 3  # of a file that is here or arrives with other bytes than the commit holds


@dataclass(frozen=True)
class HeadChoice:
    """Which heads to fetch: layers, and query heads with the key heads they read; None for all."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    group: int | None = None  # query heads to a key head; None: as the dump tells

    def wants(self, head: HeadId, manifest: DumpManifest | None) -> bool:
        """Whether a head is among them.

        Where nothing tells how query heads share key heads, all are: the heads that are there
        are then all that the layout can be counted from.
        """
        group = self.group or _group(manifest)
        if not group:
            return True
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
    checked_online: bool  # False when the network was off and a checked copy was used
    heads: dict[HeadId, Path] = field(repr=False)  # all of the commit, fetched or not

    def describe(self) -> str:
        """Which commit was read, and whether the Hub was asked."""
        how = "" if self.checked_online else ", offline: the checked copy in the cache"
        return f"{self.place}: commit {self.commit}{how}"

    def as_record(self) -> dict[str, Any]:
        """The same for `run.json`."""
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
    """Bring the wanted heads of a dump here and check every file; the folder is a dump.

    `on_bytes` hears how many bytes are here, and of how many.
    """
    from huggingface_hub import constants

    cache = user_path(cache_dir) if cache_dir is not None else Path(constants.HF_HUB_CACHE)
    notes = Notes(cache, place)
    api, offline = hub_api(token), bool(constants.HF_HUB_OFFLINE)
    with hub_errors(place, "fetching"), without_client_bars():
        known = notes.recall() if offline else _ask(api, place, notes)
        place = _with_folder(place, known.files)
        copy = _Copy(api, place, notes, known, offline)
        heads = _heads(copy)
        small = [path for path in map(copy.inside, _SMALL_FILES) if path in known.files]
        copy.bring(small, 1, lambda done, total: None)
        told_by = copy.inside(MANIFEST_NAME)
        manifest = read_manifest(copy.local(told_by)) if told_by in small else None
        wanted = _wanted(heads, choice or HeadChoice(), manifest, place)
        copy.bring(wanted, max_workers or _WORKERS, on_bytes or (lambda done, total: None))
        if not offline:
            notes.remember_revision(known.commit)
    folders = {head: copy.local(path).parent for path, head in heads.items()}
    folder = copy.local(place.folder or "")
    return Fetched(folder, place, known.commit, not offline, folders)


def _group(manifest: DumpManifest | None) -> int:
    """Query heads to a key head, 0 when it is not known."""
    if manifest is None or not manifest.num_q_heads or not manifest.num_k_heads:
        return 0
    return manifest.num_q_heads // manifest.num_k_heads


def _ask(api: Any, place: HubPlace, notes: Notes) -> KnownCommit:
    """The commit that the revision stands for now, and its files."""
    info = with_retries(lambda: api.dataset_info(place.repo, revision=place.revision))
    commit = commit_id(info.sha, place)
    return KnownCommit(commit, list_files(api, place, commit), notes.checked(commit))


def _heads(copy: _Copy) -> dict[str, HeadId]:
    """The Parquet files of the dump, each with its head."""
    heads: dict[str, HeadId] = {}
    for path in sorted(copy.known.files):
        head = _head_of(path.removeprefix(copy.inside("")))
        if head is not None and path.startswith(copy.inside("")):
            require_head(head, f"{copy.place}: {path}")
            heads[path] = head
    if not heads:
        raise ConfigError(f"{copy.place}: no heads found. {_elsewhere(copy.known.files)}")
    return heads


def _wanted(
    heads: dict[str, HeadId], choice: HeadChoice, manifest: DumpManifest | None, place: HubPlace
) -> list[str]:
    wanted = [path for path, head in heads.items() if choice.wants(head, manifest)]
    if not wanted:
        layers = sorted({head.layer for head in heads.values()})
        raise ConfigError(
            f"{place}: none of the selected query heads is in the dump. "
            f"Its layers: {', '.join(map(str, layers))}."
        )
    return wanted


def _with_folder(place: HubPlace, files: Iterable[str]) -> HubPlace:
    """The only model's folder, where none is named and heads do not lie in the root."""
    if place.folder is not None:
        named = str(PurePosixPath(place.folder))
        return replace(place, folder=None if named == "." else named)
    models = _models(files)
    if len(models) != 1 or any(_head_of(path) for path in files):
        return place
    return replace(place, folder=models[0])


def _models(files: Iterable[str]) -> list[str]:
    return sorted({path.split("/")[0] for path in files if _head_of(path.partition("/")[2])})


def _head_of(path: str) -> HeadId | None:
    folder, _, name = path.rpartition("/")
    if not name.endswith(".parquet") or name.startswith("."):
        return None
    return parse_head(folder)


def _elsewhere(files: Iterable[str]) -> str:
    models = _models(files)
    if any(_head_of(path) for path in files):
        return "Heads lie in the branch's root: leave model_dir out."
    if models:
        return f"Set model_dir to one of: {', '.join(models)}, or add it: owner/name@branch/model."
    return (
        "Name the branch of a model: owner/name@branch, or dataset_revision; "
        "the card on main lists them."
    )


@dataclass(frozen=True)
class _Copy:
    """The files of a commit in the cache."""

    api: Any
    place: HubPlace
    notes: Notes
    known: KnownCommit
    offline: bool

    @property
    def snapshot(self) -> Path:
        """The folder in which the client lays out the files of the commit."""
        return self.notes.repo / "snapshots" / self.known.commit

    def inside(self, name: str) -> str:
        """A path in the branch, below `model_dir` where there is one."""
        return f"{self.place.folder}/{name}" if self.place.folder else name

    def local(self, path: str) -> Path:
        """Where a file of the commit lies here."""
        return self.snapshot / path

    def bring(
        self, paths: Sequence[str], workers: int, on_bytes: Callable[[int, int], None]
    ) -> None:
        """Download what is not here, check what was not checked, and remember that."""
        missing = [path for path in paths if not self._is_checked(path)]
        total = sum(self.known.files[path].size for path in paths)
        here = total - sum(self.known.files[path].size for path in missing)
        on_bytes(here, total)
        if missing and self.offline:
            raise HubError(
                f"{self.place}: offline, and {missing[0]} of commit {self.known.commit[:12]} is no "
                "checked file of the cache; unset HF_HUB_OFFLINE to fetch it"
            )
        if not missing:
            return
        self._require_space(missing)
        pool = ThreadPoolExecutor(workers)
        try:
            for path, _ in zip(missing, pool.map(self._bring_one, missing), strict=True):
                here += self.known.files[path].size
                on_bytes(here, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self.notes.remember(self.known)

    def _require_space(self, paths: Sequence[str]) -> None:
        """Refuse what does not fit on the disk, before the first byte."""
        needed = sum(self.known.files[path].size for path in paths if not self.local(path).exists())
        try:
            self.notes.repo.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.notes.repo, error) from error
        free = shutil.disk_usage(self.notes.repo).free
        if needed > free:
            raise HubError(
                f"{self.place}: {needed:,} bytes are to be fetched, {self.notes.cache} has "
                f"{free:,} free; choose another --cache_dir (dataset_cache_dir), or fewer --layers"
            )

    def _bring_one(self, path: str) -> None:
        if any(self._arrives(path) for _ in range(_TRIES)):
            self.known.checked[path] = _stamp(self.local(path))
            return
        self.local(path).unlink(missing_ok=True)
        self._blob(path).unlink(missing_ok=True)
        raise HubError(
            f"{self.place}: {path} arrives with other bytes than commit {self.known.commit[:12]} "
            "holds; run the same command again"
        )

    def _arrives(self, path: str) -> bool:
        """Download a file unless it is here; whether it is the commit's, byte for byte.

        The client's cache is kept as the client keeps it: a file's bytes lie in `blobs/`, named by
        their hash, and the commit's folder holds a link to them.
        """
        file, here, blob = self.known.files[path], self.local(path), self._blob(path)
        self._require_inside(here.parent, f"snapshots/{self.known.commit}")
        self._require_inside(blob, "blobs")
        if here.exists() and file.is_same(here):
            return True
        whole = blob.exists() and file.is_same(blob)
        if not whole and not download(self.api, self.place, self.known.commit, path, file, blob):
            return False
        try:
            link_to(blob, here)
        except OSError as error:
            raise cannot_write(here, error) from error
        return True

    def _blob(self, path: str) -> Path:
        return self.notes.repo / "blobs" / self.known.files[path].digest

    def _require_inside(self, path: Path, folder: str) -> None:
        """Refuse to write through a link that leads out of the cache."""
        home = resolved(self.notes.repo) / folder
        if not resolved(path).is_relative_to(home):
            raise ConfigError(f"{path}: leads out of the cache through a link; remove the link")

    def _is_checked(self, path: str) -> bool:
        try:
            return self.known.checked.get(path) == _stamp(self.local(path))
        except OSError:
            return False


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]
