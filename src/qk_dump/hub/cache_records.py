"""Records in the cache of the Hub client: the commit of each branch, and the checked files.

With these records a file is checked only once, and checked files can be used offline. Online, a
damaged record is ignored. Offline, it is an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qk_dump.hub.files import RemoteFile, is_commit, require_file, require_name
from qk_dump.hub.place import HubPlace
from qk_toolkit.errors import HubError
from qk_toolkit.files import read_json, write_text


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
