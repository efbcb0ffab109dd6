"""Fetching a dump: a branch is resolved to a commit, and every file is checked against it.

Files go to the Hub client's cache, where they are kept by commit: another branch's rows cannot be
taken for this one's. What was checked is remembered beside them, so that it is not read again and
so that a machine without a network can tell a checked copy from any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from qk_dump.card import CARD_FILE
from qk_dump.errors import ConfigError, HubError
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.files import user_path, write_text
from qk_dump.hub_client import HubPlace, content_digest, hub_api, patiently, told
from qk_dump.layout import HeadId, parse_head
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, read_manifest

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

    def as_record(self) -> dict[str, Any]:
        """The same for `run.json`."""
        record = {
            "dataset": self.place.repo,
            "revision": self.place.revision,
            "commit": self.commit,
            "checked_online": self.checked_online,
        }
        return record | ({"model_dir": self.place.folder} if self.place.folder else {})


@dataclass(frozen=True)
class _Entry:
    """A file of a commit: its size and its hash, sha256 of large files or git's of small ones."""

    size: int
    digest: str
    kind: str


@dataclass
class _Known:
    """What is known of a commit: its files, and which of them were checked here."""

    commit: str
    files: dict[str, _Entry]
    checked: dict[str, list[int]] = field(default_factory=dict)  # path → size, time of change


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
    store = _Store(cache, place)
    api, offline = hub_api(token), bool(constants.HF_HUB_OFFLINE)
    with told(place, "fetching"), _without_bars():
        known = store.recall() if offline else _ask(api, place, store)
        place = _with_folder(place, known.files)
        copy = _Copy(api, place, store, known, offline)
        heads = _heads(copy)
        small = [path for path in map(copy.inside, _SMALL_FILES) if path in known.files]
        copy.bring(small, 1, lambda done, total: None)
        manifest = read_manifest(copy.local(copy.inside(MANIFEST_NAME)))
        wanted = _wanted(heads, choice or HeadChoice(), manifest, place)
        copy.bring(wanted, max_workers or _WORKERS, on_bytes or (lambda done, total: None))
        if not offline:
            store.remember_revision(known.commit)
    folders = {head: copy.local(path).parent for path, head in heads.items()}
    folder = copy.local(place.folder or "")
    return Fetched(folder, place, known.commit, not offline, folders)


@contextmanager
def _without_bars() -> Iterator[None]:
    """The client's bars, one per file, are left out; `on_bytes` tells of the whole."""
    import huggingface_hub.utils

    client: Any = huggingface_hub.utils
    shown = not client.are_progress_bars_disabled()
    if shown:
        client.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            client.enable_progress_bars()


def _group(manifest: DumpManifest | None) -> int:
    """Query heads to a key head, 0 when it is not known."""
    if manifest is None or not manifest.num_q_heads or not manifest.num_k_heads:
        return 0
    return manifest.num_q_heads // manifest.num_k_heads


def _ask(api: Any, place: HubPlace, store: _Store) -> _Known:
    """The commit that the revision stands for now, and its files."""
    from huggingface_hub.hf_api import RepoFile

    info = patiently(lambda: api.dataset_info(place.repo, revision=place.revision))
    options = {"repo_type": "dataset", "revision": info.sha, "recursive": True}
    entries = patiently(lambda: list(api.list_repo_tree(place.repo, **options)))
    files = {
        entry.path: _Entry(entry.size, entry.blob_id, "git")
        if entry.lfs is None
        else _Entry(entry.size, entry.lfs.sha256, "sha256")
        for entry in entries
        if isinstance(entry, RepoFile)
    }
    return _Known(info.sha, files, store.checked(info.sha))


def _heads(copy: _Copy) -> dict[str, HeadId]:
    """The Parquet files of the dump, each with its head."""
    heads: dict[str, HeadId] = {}
    for path in sorted(copy.known.files):
        head = _head_of(path.removeprefix(copy.inside("")))
        if head is not None and path.startswith(copy.inside("")):
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
    store: _Store
    known: _Known
    offline: bool

    @property
    def snapshot(self) -> Path:
        """The folder in which the client lays out the files of the commit."""
        return self.store.repo / "snapshots" / self.known.commit

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
        pool = ThreadPoolExecutor(workers)
        try:
            for path, _ in zip(missing, pool.map(self._bring_one, missing), strict=True):
                here += self.known.files[path].size
                on_bytes(here, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self.store.remember(self.known)

    def _bring_one(self, path: str) -> None:
        for tries in range(_TRIES):
            if self._arrives(path, anew=tries > 0):
                self.known.checked[path] = _stamp(self.local(path))
                return
        self._remove(path)
        raise HubError(
            f"{self.place}: {path} arrives with other bytes than commit {self.known.commit[:12]} "
            "holds; run the same command again"
        )

    def _arrives(self, path: str, *, anew: bool) -> bool:
        """Download a file unless it is here; whether it is the commit's, byte for byte."""
        options = {"repo_type": "dataset", "revision": self.known.commit, "force_download": anew}
        options["cache_dir"] = str(self.store.cache)
        try:
            patiently(lambda: self.api.hf_hub_download(self.place.repo, path, **options))
        except OSError as error:
            if "Consistency check failed" not in str(error):
                raise
            return False
        entry, file = self.known.files[path], self.local(path)
        return (
            file.stat().st_size == entry.size and content_digest(file, entry.kind) == entry.digest
        )

    def _remove(self, path: str) -> None:
        """Leave nothing behind that others would take for the file: the client keeps it twice."""
        kept = self.local(path).resolve()
        self.local(path).unlink(missing_ok=True)
        if kept.is_relative_to(self.store.repo.resolve()):
            kept.unlink(missing_ok=True)

    def _is_checked(self, path: str) -> bool:
        try:
            return self.known.checked.get(path) == _stamp(self.local(path))
        except OSError:
            return False


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


@dataclass(frozen=True)
class _Store:
    """Our notes in the client's cache: branches, and what was checked of each commit."""

    cache: Path
    place: HubPlace

    @property
    def repo(self) -> Path:
        """The dataset's folder in the cache."""
        return self.cache / f"datasets--{self.place.repo.replace('/', '--')}"

    @property
    def _notes(self) -> Path:
        return self.repo / "attention-plasticity"

    def checked(self, commit: str) -> dict[str, list[int]]:
        """Files of a commit that were checked here."""
        return dict(_read(self._notes / f"{commit}.json").get("checked", {}))

    def remember(self, known: _Known) -> None:
        """Write down what is known of the commit; other processes may have checked more of it."""
        files = {
            path: [entry.size, entry.digest, entry.kind] for path, entry in known.files.items()
        }
        content = {"files": files, "checked": self.checked(known.commit) | known.checked}
        write_text(self._notes / f"{known.commit}.json", json.dumps(content))

    def remember_revision(self, commit: str) -> None:
        """Write down which commit the revision stands for, all that was wanted of it being here."""
        revisions = _read(self._notes / "revisions.json")
        if revisions.get(self.place.revision) != commit:
            revisions[self.place.revision] = commit
            write_text(self._notes / "revisions.json", json.dumps(revisions))

    def recall(self) -> _Known:
        """What was known when the network was last there."""
        commit = _read(self._notes / "revisions.json").get(self.place.revision)
        told_then = _read(self._notes / f"{commit or self.place.revision}.json")
        if not told_then:
            raise HubError(
                f"{self.place}: offline, and the cache holds no checked copy of it; unset "
                "HF_HUB_OFFLINE to fetch it"
            )
        files = {path: _Entry(*entry) for path, entry in told_then["files"].items()}
        return _Known(str(commit or self.place.revision), files, dict(told_then["checked"]))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
