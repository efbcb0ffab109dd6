"""One branch of a dataset on the Hub: its files, a commit that changes them, the list on main."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from qk_dump.card import is_card, overview_card
from qk_dump.heads import ATTENDED, CARD_FILE, parse_head
from qk_dump.hub.client import is_conflict, is_transient
from qk_dump.hub.commit import OnBytes, RemoteFile, files_in, list_files
from qk_dump.hub.place import HubPlace
from qk_dump.manifest import MANIFEST_NAME, MOST_MANIFEST_BYTES, DumpManifest, read_manifest
from qk_toolkit.errors import ConfigError, HubError
from qk_toolkit.files import require_regular

_FILES_AT_ONCE = 32  # between two steps of the progress


class LocalFile:
    """A file to publish, on disk or in memory."""

    def __init__(self, content: Path | bytes) -> None:
        if isinstance(content, Path):
            require_regular(content)
        self.content = content
        self.size = len(content) if isinstance(content, bytes) else content.stat().st_size

    def as_addition(self, path: str) -> Any:
        """The file as an operation of the client's commits."""
        from huggingface_hub import CommitOperationAdd

        if isinstance(self.content, Path):
            require_regular(self.content)  # the client's error for a missing file names no reason
        return CommitOperationAdd(path, self.content)

    def same_as(self, remote: RemoteFile | None) -> bool:
        """Whether a file of the branch has the same content."""
        return remote is not None and remote.size == self.size and remote.is_same(self.content)


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
        if self.place.revision not in _branch_commits(self.api, self.place):
            commits = self.api.list_repo_commits(**self._dataset)
            options = {"branch": self.place.revision, "revision": commits[-1].commit_id}
            self.api.create_branch(**self._dataset, **options, exist_ok=True)

    def state(self) -> State:
        """The branch as it is now, with the files of the place."""
        commit = _branch_commits(self.api, self.place).get(self.place.revision)
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
        return str(made.oid), True

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


def _branch_commits(api: Any, place: HubPlace) -> dict[str, str]:
    """The branches of the dataset, sorted by name, each with its commit."""
    refs = api.list_repo_refs(place.repo, repo_type="dataset").branches
    return dict(sorted((one.name, one.target_commit) for one in refs))


def list_branches(main: RemoteBranch) -> list[str]:
    """Update the card of main: one line per branch with a dump. Returns notes for the user."""
    api, place = main.api, main.place
    commits = _branch_commits(api, place)
    commit = commits.pop(place.revision)
    with TemporaryDirectory() as scratch:
        own, found = _file_of(api, place, commit, CARD_FILE, scratch)
        if own is not None and not (found and is_card(found)):
            return ["main has a README.md that this toolkit did not write; add the branch to it"]
        manifests = {}
        for name, of_branch in commits.items():
            manifest = _manifest(_file_of(api, place, of_branch, MANIFEST_NAME, scratch)[1])
            if manifest or _holds_heads(api, place, of_branch):
                manifests[name] = manifest
    text = overview_card(place.repo, manifests)
    state = State(commit, {} if own is None else {CARD_FILE: own})
    main.publish(state, {CARD_FILE: LocalFile(text.encode())}, lambda path: False)
    return []


def _file_of(
    api: Any, place: HubPlace, commit: str, name: str, folder: str
) -> tuple[RemoteFile | None, Path | None]:
    """A small file of a commit, if it has it, and a copy of it in a local folder."""
    options = {"repo_type": "dataset", "revision": commit}
    file = files_in(api.get_paths_info(place.repo, [name], **options)).get(name)
    if file is None or file.size > MOST_MANIFEST_BYTES:
        return file, None
    return file, Path(api.hf_hub_download(place.repo, name, cache_dir=folder, **options))


def _manifest(path: Path | None) -> DumpManifest | None:
    """A `dump.json`; None when it is missing or invalid."""
    try:
        return None if path is None else read_manifest(path)
    except ConfigError:  # another kind of file, or from a later version
        return None


def _holds_heads(api: Any, place: HubPlace, commit: str) -> bool:
    """Whether a commit has folders of heads, in its root or in the folder of a model."""
    folders = _folders(api, place, commit)
    if any(map(parse_head, folders)):
        return True
    models = [folder for folder in folders if folder != ATTENDED]
    return any(parse_head(name) for model in models for name in _folders(api, place, commit, model))


def _folders(api: Any, place: HubPlace, commit: str, below: str | None = None) -> list[str]:
    """Names of the folders that are directly in a folder, or in the root."""
    from huggingface_hub.hf_api import RepoFolder

    options = {"repo_type": "dataset", "revision": commit, "recursive": False}
    entries = api.list_repo_tree(place.repo, below, **options)
    return [PurePosixPath(one.path).name for one in entries if isinstance(one, RepoFolder)]
