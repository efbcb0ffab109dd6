"""Files of a commit on the Hub: names, sizes and hashes."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from qk_dump.heads import ATTENDED, parse_head
from qk_dump.hub.place import HubPlace
from qk_toolkit.errors import HubError, in_short
from qk_toolkit.files import open_regular

_COMMIT = re.compile(r"[0-9a-f]{40}")


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

    def is_at(self, path: Path) -> bool:
        """Whether the file is at a local path, complete and unchanged."""
        try:
            return self.is_same(path)
        except OSError:
            return False


def commit_id(answer: object, place: HubPlace) -> str:
    """The commit id in an answer of the Hub, checked because it becomes a folder name."""
    if not isinstance(answer, str) or not _COMMIT.fullmatch(answer):
        raise HubError(
            f"{place}: the Hub gives {in_short(answer)} as a commit, not 40 hexadecimal digits; "
            "the answer was not used. Check HF_ENDPOINT."
        )
    return answer


def branch_commits(api: Any, place: HubPlace) -> dict[str, str]:
    """The branches of the dataset, sorted by name, each with its commit."""
    refs = api.list_repo_refs(place.repo, repo_type="dataset").branches
    return dict(sorted((one.name, commit_id(one.target_commit, place)) for one in refs))


def list_files(
    api: Any, place: HubPlace, commit: str, folder: str | None = None
) -> dict[str, RemoteFile]:
    """The files of a commit by path, or those below a folder; none if it does not exist."""
    return _files(_tree(api, place, commit, folder, recursive=True))


def named_files(
    api: Any, place: HubPlace, commit: str, paths: Sequence[str]
) -> dict[str, RemoteFile]:
    """Those of the named files that a commit has. Others are not listed."""
    options = {"repo_type": "dataset", "revision": commit}
    return _files(api.get_paths_info(place.repo, list(paths), **options))


def holds_heads(api: Any, place: HubPlace, commit: str) -> bool:
    """Whether a commit has folders of heads, in its root or in the folder of a model."""
    folders = _folders(api, place, commit)
    if any(map(parse_head, folders)):
        return True
    models = [folder for folder in folders if folder != ATTENDED]
    return any(parse_head(name) for model in models for name in _folders(api, place, commit, model))


def _folders(api: Any, place: HubPlace, commit: str, below: str | None = None) -> list[str]:
    """Names of the folders that are directly in a folder, or in the root."""
    from huggingface_hub.hf_api import RepoFolder

    entries = _tree(api, place, commit, below, recursive=False)
    return [PurePosixPath(one.path).name for one in entries if isinstance(one, RepoFolder)]


def _tree(api: Any, place: HubPlace, commit: str, folder: str | None, recursive: bool) -> list[Any]:
    from huggingface_hub.errors import EntryNotFoundError

    options = {"repo_type": "dataset", "revision": commit, "recursive": recursive}
    try:
        return list(api.list_repo_tree(place.repo, folder, **options))
    except EntryNotFoundError:
        if folder is None:
            raise
        return []


def _files(entries: Iterable[Any]) -> dict[str, RemoteFile]:
    from huggingface_hub.hf_api import RepoFile

    files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return {
        one.path: RemoteFile(one.size, one.lfs.sha256 if one.lfs else one.blob_id) for one in files
    }
