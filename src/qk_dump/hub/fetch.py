"""Fetching a dump: a branch is resolved to a commit, and its files come into the client's cache.

With a folder they come there instead. Its plan marks it as unfinished until all files are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from qk_dump.heads import CARD_FILE, EXAMPLES_FILE, HeadId
from qk_dump.hub.client import hub_api, hub_errors, repeated
from qk_dump.hub.commit import CachedCommit, OnBytes, listed_before, listed_now
from qk_dump.hub.into import FolderOfCommit
from qk_dump.hub.place import HubPlace
from qk_dump.layout import FILES_BESIDE_HEADS, PLAN, UNFINISHED, models_in, refuse_unfinished
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, read_manifest
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path

_WORKERS = 8
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
    """A dump in the cache or in a folder."""

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
    into: str | None = None,
    cache_dir: str | None = None,
    max_workers: int | None = None,
    token: str | None = None,
    on_bytes: OnBytes | None = None,
) -> Fetched:
    """Fetch the selected heads of a dump into the cache, or into a folder, and check every file.

    `on_bytes` is called with (bytes done, bytes in total).
    """
    from huggingface_hub import constants

    folder = None if into is None else FolderOfCommit(into)
    cache = user_path(cache_dir) if cache_dir is not None else Path(constants.HF_HUB_CACHE)
    api = None if constants.HF_HUB_OFFLINE else hub_api(token)

    def fetched() -> Fetched:
        copy = listed_before(cache, place) if api is None else listed_now(api, place, cache)
        return _fetch(copy, folder, choice or HeadChoice(), max_workers or _WORKERS, on_bytes)

    with hub_errors(place, "fetching"):
        return repeated(fetched)


def _fetch(
    copy: CachedCommit,
    into: FolderOfCommit | None,
    choice: HeadChoice,
    workers: int,
    on_bytes: OnBytes | None,
) -> Fetched:
    place, heads = _heads_of(copy.place, copy.files)
    names = [place.inside(name) for name in (*FILES_BESIDE_HEADS, CARD_FILE, _PLAN)]
    beside = [path for path in names if path in copy.files]
    copy.fetch(beside, workers)
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
    on_bytes = on_bytes or (lambda done, total: None)
    folders = {head: copy.local(path) for head, path in heads.items()}
    if into is None:
        copy.fetch(paths, workers, on_bytes)
    else:
        folder = into.fill(copy, place, [*paths, *beside], workers, on_bytes)
        folders = {head: folder / head.folder for head in heads}
    if copy.api is not None:
        copy.save_list()
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
