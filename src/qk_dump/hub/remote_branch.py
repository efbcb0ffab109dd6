"""One branch of a dataset on the Hub: its files, and a commit that changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qk_dump.card import MOST_CARD_BYTES, is_card, overview_card
from qk_dump.heads import CARD_FILE
from qk_dump.hub.cache import CachedCommit
from qk_dump.hub.client import is_conflict, is_transient
from qk_dump.hub.files import (
    RemoteFile,
    branch_commits,
    commit_id,
    holds_heads,
    list_files,
    named_files,
)
from qk_dump.hub.place import HubPlace
from qk_dump.hub.published import LocalFile
from qk_dump.manifest import MANIFEST_NAME, MOST_MANIFEST_BYTES, DumpManifest, read_manifest
from qk_toolkit.errors import ConfigError, HubError

OnBytes = Callable[[int, int], None]
_FILES_AT_ONCE = 32  # between two steps of the progress


@dataclass(frozen=True)
class State:
    """The commit of a branch, and its files by path."""

    commit: str
    files: dict[str, RemoteFile]

    def difference(
        self, files: Mapping[str, LocalFile], is_old: Callable[[str], bool]
    ) -> tuple[list[str], list[str]]:
        """New or changed files, and the old files to remove from the branch."""
        new = [path for path, file in files.items() if not file.same_as(self.files.get(path))]
        old = [path for path in self.files if is_old(path) and path not in files]
        return new, old


class RemoteBranch:
    """One branch on the Hub."""

    def __init__(self, api: Any, place: HubPlace, on_bytes: OnBytes | None = None) -> None:
        self.api = api
        self.place = place
        self._dataset = {"repo_id": place.repo, "repo_type": "dataset"}  # for the client
        self._on_bytes = on_bytes or (lambda done, total: None)

    def create_missing(self, private: bool) -> None:
        """Create the dataset and the branch if they do not exist.

        A branch begins at the first commit of the dataset, without the files of main.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            is_public = not self.api.dataset_info(self.place.repo).private
        except RepositoryNotFoundError:  # it is missing or not visible
            self.api.create_repo(**self._dataset, private=private, exist_ok=True)
            is_public = not private
        if private and is_public:
            raise ConfigError(
                f"{self.place.repo}: the dataset exists and is public; nothing was sent. "
                "Make it private on its page, choose another name, or leave 'private' out"
            )
        if self.place.revision not in branch_commits(self.api, self.place):
            commits = self.api.list_repo_commits(**self._dataset)
            start = commit_id(commits[-1].commit_id if commits else None, self.place)
            options = {"branch": self.place.revision, "revision": start, "exist_ok": True}
            self.api.create_branch(**self._dataset, **options)

    def state(self) -> State:
        """The branch as it is now, with the files of the place."""
        commit = branch_commits(self.api, self.place).get(self.place.revision)
        if commit is None:
            raise HubError(f"{self.place}: the branch was removed; run the same command again")
        return State(commit, list_files(self.api, self.place, commit, self.place.folder))

    def publish(
        self, state: State, files: Mapping[str, LocalFile], is_old: Callable[[str], bool]
    ) -> tuple[str, bool]:
        """Publish the files in one commit, which also removes the other files with `is_old`.

        Returns the commit, and whether it is new. The Hub refuses the commit when the branch is no
        longer in the given state. The client does not retry a commit, whose reply may be lost after
        it took effect. So the branch is looked up after a failure: it may have the files already,
        also because another process published the same dump.
        """
        from huggingface_hub import CommitOperationDelete

        new, old = state.difference(files, is_old)
        if not new and not old:
            return state.commit, False
        additions = self._send({path: files[path] for path in new})
        try:
            made = self.api.create_commit(
                **self._dataset,
                revision=self.place.revision,
                parent_commit=state.commit,
                operations=[*additions, *map(CommitOperationDelete, old)],
                commit_message=f"Publish {self.place.revision}",
            )
        except Exception as error:  # raised again unless the commit took effect
            if is_transient(error) or is_conflict(error):
                latest = self.state()
                if not any(latest.difference(files, is_old)):
                    return latest.commit, True
            raise
        return commit_id(made.oid, self.place), True

    def _send(self, files: Mapping[str, LocalFile]) -> list[Any]:
        """Upload the large files; returns the operations for the commit."""
        additions: list[Any] = []
        paths = list(files)
        total = sum(file.size for file in files.values())
        for start in range(0, len(paths), _FILES_AT_ONCE):
            self._on_bytes(sum(files[path].size for path in paths[:start]), total)
            part = [files[path].as_addition(path) for path in paths[start:][:_FILES_AT_ONCE]]
            options = {"revision": self.place.revision, "free_memory": False}
            self.api.preupload_lfs_files(**self._dataset, additions=part, **options)
            additions += part
        self._on_bytes(total, total)
        return additions


def list_branches(main: RemoteBranch) -> list[str]:
    """Update the card of main: one line per branch with a dump. Returns notes for the user."""
    commits = branch_commits(main.api, main.place)
    commit = commits.pop(main.place.revision)
    state = State(commit, named_files(main.api, main.place, commit, [CARD_FILE]))
    with TemporaryDirectory() as scratch:
        copy = CachedCommit(main.place, Path(scratch), state.commit, state.files, main.api)
        if CARD_FILE in copy.files and not _is_our_card(copy):
            return ["main has a README.md that this toolkit did not write; add the branch to it"]
        manifests = {}
        for name, commit in commits.items():
            files = named_files(main.api, main.place, commit, [MANIFEST_NAME])
            manifest = _manifest(replace(copy, commit=commit, files=files, checked={}))
            if manifest or holds_heads(main.api, main.place, commit):
                manifests[name] = manifest
    text = overview_card(main.place.repo, manifests)
    main.publish(state, {CARD_FILE: LocalFile(text.encode())}, lambda path: False)
    return []


def _is_our_card(copy: CachedCommit) -> bool:
    if copy.files[CARD_FILE].size > MOST_CARD_BYTES:
        return False
    copy.fetch([CARD_FILE])
    return is_card(copy.local(CARD_FILE))


def _manifest(copy: CachedCommit) -> DumpManifest | None:
    """The `dump.json` of a commit; None when it is missing or invalid."""
    file = copy.files.get(MANIFEST_NAME)
    if file is None or file.size > MOST_MANIFEST_BYTES:
        return None
    copy.fetch([MANIFEST_NAME])
    try:
        return read_manifest(copy.local(MANIFEST_NAME))
    except ConfigError:  # another kind of file, or from a later version
        return None
