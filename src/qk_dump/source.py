"""Where a dump comes from: a folder here, a URL, or a branch of a dataset on the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qk_dump.hub.place import HubPlace, is_hub_path, parse_place
from qk_dump.layout import Dump, open_folder, open_url
from qk_toolkit.urls import is_url, without_file_scheme

if TYPE_CHECKING:
    from qk_dump.hub.fetch import HeadChoice


@dataclass(frozen=True)
class DumpSource:
    """A dump as a config names it: a path (a folder, or a URL), or else a dataset's branch."""

    path: str | None
    model_dir: str | None = None
    dataset: str = ""
    revision: str | None = None
    cache_dir: str | None = None
    max_workers: int | None = None

    @property
    def place(self) -> HubPlace | None:
        """The dump's place on the Hub, None for a folder here or another URL."""
        if self.path is None:
            return HubPlace(self.dataset, self.revision or "main", self.model_dir)
        if not is_hub_path(self.path):
            return None
        place = parse_place(self.path)
        if self.revision is not None and "@" not in self.path:
            place = replace(place, revision=self.revision)
        return replace(place, folder=self.model_dir) if self.model_dir else place


def open_dump(
    source: str | os.PathLike[str] | DumpSource,
    model_dir: str | None = None,
    *,
    choice: HeadChoice | None = None,
    note: Callable[[str], None] | None = None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Dump:
    """Find the heads of a dump: in a folder, at a URL, or at `hf://datasets/owner/name@branch`.

    URLs are those of fsspec, such as `s3://bucket/dump`. Nothing is downloaded: heads are read in
    ranges when they are analysed. Heads are in the root, or below it in `model_dir`, which may be
    left out where there is one model only. A dump on the Hub is fetched first, whole or the heads
    of `choice`. All heads of its branch are listed, so that settings are checked against the whole
    dump. `note` gets a line about a fetched dump.

    Examples:
        >>> from qk_dump.source import open_dump
        >>> dump = open_dump("data/sample")
        >>> dump.key_heads[:3]  # layer and head
        [(0, 0), (0, 1), (0, 2)]
        >>> dump.manifest.head_dim  # from dump.json
        64
    """
    if not isinstance(source, DumpSource):
        source = DumpSource(os.fspath(source), model_dir)
    if source.place is None:
        path = without_file_scheme(str(source.path))
        opened = open_url if is_url(path) else open_folder
        return opened(path, source.model_dir)
    from qk_dump.hub.fetch import fetch_dump

    fetched = fetch_dump(
        source.place,
        choice=choice,
        cache_dir=source.cache_dir,
        max_workers=source.max_workers,
        on_bytes=on_bytes,
    )
    if note is not None:
        note(fetched.describe())
    dump = open_folder(fetched.folder)
    found = dict(sorted({**fetched.heads, **dump.all_folders}.items()))
    folders = {head: folder for head, folder in found.items() if not head.attended}
    attended = {head: folder for head, folder in found.items() if head.attended}
    return replace(dump, folders=folders, attended=attended, origin=fetched.as_record())
