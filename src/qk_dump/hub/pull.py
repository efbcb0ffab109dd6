"""Fetching a dump: a branch is resolved to a commit, and every file is checked against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qk_dump.heads import CARD_FILE, EXAMPLES_FILE, HeadId
from qk_dump.hub.cache import CachedCommit, current_commit, last_commit
from qk_dump.hub.client import hub_api, hub_errors, repeated
from qk_dump.hub.files import commit_id, list_files
from qk_dump.hub.heads import HeadChoice as HeadChoice
from qk_dump.hub.heads import find_heads, selected, with_folder
from qk_dump.hub.place import HubPlace
from qk_dump.layout import FILES_BESIDE_HEADS, PLAN, UNFINISHED, refuse_unfinished
from qk_dump.manifest import MANIFEST_NAME, read_manifest
from qk_toolkit.files import user_path

_WORKERS = 8
_PLAN = f"{UNFINISHED}/{PLAN}"


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
    api = None if constants.HF_HUB_OFFLINE else hub_api(token)

    quiet = lambda done, total: None  # noqa: E731

    def fetched() -> Fetched:
        copy = last_commit(cache, place) if api is None else _current_commit(api, place, cache)
        return _fetch(copy, choice or HeadChoice(), max_workers or _WORKERS, on_bytes or quiet)

    with hub_errors(place, "fetching"):
        return repeated(fetched)


def _current_commit(api: Any, place: HubPlace, cache: Path) -> CachedCommit:
    """The commit of the revision now, and its files."""
    commit = commit_id(api.dataset_info(place.repo, revision=place.revision).sha, place)
    return current_commit(cache, place, commit, list_files(api, place, commit), api)


def _fetch(
    copy: CachedCommit, choice: HeadChoice, workers: int, on_bytes: Callable[[int, int], None]
) -> Fetched:
    place = with_folder(copy.place, copy.files)
    heads = find_heads(place, copy.files)
    beside = [place.inside(name) for name in (*FILES_BESIDE_HEADS, CARD_FILE, _PLAN)]
    copy.fetch([path for path in beside if path in copy.files], workers)
    if place.inside(_PLAN) in copy.files:
        refuse_unfinished(copy.local(place.folder or ""))
    path = place.inside(MANIFEST_NAME)
    manifest = read_manifest(copy.local(path)) if path in copy.files else None
    has_examples = place.inside(EXAMPLES_FILE) in copy.files
    paths = selected(heads, choice, manifest, place, has_examples=has_examples)
    copy.fetch(paths, workers, on_bytes)
    if copy.api is not None:
        copy.save()
    folders = {head: copy.local(path).parent for path, head in heads.items()}
    folder = copy.local(place.folder or "")
    return Fetched(folder, place, copy.commit, copy.api is not None, folders)
