"""Our notes in the Hub client's cache: what a branch stood for, and which files were checked.

With them nothing is read twice, and a machine without a network can tell a checked copy from any
other. A note that was damaged is as if it were not there, or is told.
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
    """What is known of a commit: its files, and which of them were checked here."""

    commit: str
    files: dict[str, RemoteFile]
    checked: dict[str, list[int]] = field(default_factory=dict)  # path → size, time of change


@dataclass(frozen=True)
class Notes:
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
        return _stamps(_read(self._notes / f"{commit}.json").get("checked"))

    def remember(self, known: KnownCommit) -> None:
        """Write down what is known of the commit; other processes may have checked more of it."""
        files = {path: [file.size, file.digest, file.kind] for path, file in known.files.items()}
        content = {"files": files, "checked": self.checked(known.commit) | known.checked}
        write_text(self._notes / f"{known.commit}.json", json.dumps(content))

    def remember_revision(self, commit: str) -> None:
        """Write down which commit the revision stands for, all that was wanted of it being here."""
        revisions = _read(self._notes / "revisions.json")
        if revisions.get(self.place.revision) != commit:
            revisions[self.place.revision] = commit
            write_text(self._notes / "revisions.json", json.dumps(revisions))

    def recall(self) -> KnownCommit:
        """What was known when the network was last there."""
        commit = _read(self._notes / "revisions.json").get(self.place.revision)
        if commit is None and is_commit(self.place.revision):
            commit = self.place.revision
        note = self._notes / f"{commit}.json"
        told_then = _read(note) if is_commit(commit) else {}
        if not told_then:
            raise HubError(
                f"{self.place}: offline, and the cache holds no checked copy of it; unset "
                "HF_HUB_OFFLINE to fetch it"
            )
        try:
            files = {
                require_name(path, self.place): require_file(RemoteFile(*file), str(note))
                for path, file in told_then["files"].items()
            }
        except (HubError, AttributeError, KeyError, TypeError) as error:
            raise HubError(
                f"{self.place}: offline, and {note} is damaged; unset HF_HUB_OFFLINE to fetch the "
                "dump again"
            ) from error
        return KnownCommit(str(commit), files, _stamps(told_then.get("checked")))


def _stamps(told: object) -> dict[str, list[int]]:
    """Which files were checked, as a note tells; what a note cannot have said is left out."""
    if not isinstance(told, dict):
        return {}
    return {path: stamp for path, stamp in told.items() if isinstance(stamp, list)}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
