"""Where a dump comes from: a folder here, or a branch of a dataset on the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from qk_dump import layout
from qk_dump.hub_client import HubPlace, is_hub_path, parse_place
from qk_dump.hub_pull import Fetched, HeadChoice, fetch_dump
from qk_dump.layout import Dump


@dataclass(frozen=True)
class Source:
    """A dump as a config names it: a path (a folder, or `hf://…`), or else a dataset's branch."""

    path: str | None
    model_dir: str | None = None
    dataset: str = ""
    revision: str | None = None
    cache_dir: str | None = None
    max_workers: int | None = None

    @property
    def place(self) -> HubPlace | None:
        """The dump's place on the Hub, None for a folder here."""
        if self.path is None:
            return HubPlace(self.dataset, self.revision or "main", self.model_dir)
        if not is_hub_path(self.path):
            return None
        place = parse_place(self.path)
        if self.revision is not None and "@" not in self.path:
            place = replace(place, revision=self.revision)
        return replace(place, folder=self.model_dir) if self.model_dir else place


def open_dump(root: str | os.PathLike[str], model_dir: str | None = None) -> Dump:
    """Find the heads of a dump: in a folder, or on the Hub at `hf://datasets/owner/name@branch`.

    One on the Hub is fetched whole. Heads lie in the root, or below it in `model_dir`, which may
    be left out where there is one model only.
    """
    return locate_dump(Source(os.fspath(root), model_dir))


def locate_dump(
    source: Source,
    *,
    choice: HeadChoice | None = None,
    note: Callable[[str], None] = lambda text: None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Dump:
    """Open the dump; one on the Hub is fetched first, the wanted heads of it.

    All heads of the branch are listed, so that a config is held against the whole dump.
    """
    if source.place is None:
        return layout.open_dump(str(source.path), source.model_dir)
    fetched = fetch_dump(
        source.place,
        choice=choice,
        cache_dir=source.cache_dir,
        max_workers=source.max_workers,
        on_bytes=on_bytes,
    )
    note(in_words(fetched))
    dump = layout.open_dump(fetched.folder)
    folders = dict(sorted({**fetched.heads, **dump.folders}.items()))
    return replace(dump, folders=folders, origin=fetched.as_record())


def in_words(fetched: Fetched) -> str:
    """Which commit was read, and whether the Hub was asked."""
    how = "" if fetched.checked_online else ", offline: the checked copy in the cache"
    return f"{fetched.place}: commit {fetched.commit}{how}"
