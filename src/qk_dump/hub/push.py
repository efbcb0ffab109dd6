"""Publishing a dump: one branch per model, changed in one commit.

Large files are uploaded first. They become visible with the commit, which adds new files and
removes old files of an earlier dump. After a lost reply the branch is checked, so nothing is done
twice. A push that is repeated after a failure uploads only missing files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qk_dump.card import (
    CARD_FILE,
    HEADS_TABLE,
    MOST_CARD_BYTES,
    MOST_CONFIGS,
    is_card,
    lists_heads,
    overview_card,
)
from qk_dump.dump_files import is_dump_file
from qk_dump.hub.client import (
    client_errors,
    hide_client_bars,
    hub_api,
    hub_errors,
    is_conflict,
    require_token,
    with_retries,
)
from qk_dump.hub.files import (
    RemoteFile,
    commit_id,
    download,
    find_file,
    list_files,
)
from qk_dump.hub.place import HubPlace, parse_place
from qk_dump.hub.published import (
    LocalFile,
    analysis_files,
    card_file,
    dump_files,
    is_of_analysis,
    local_errors,
)
from qk_dump.layout import Dump, open_folder, parse_head
from qk_dump.manifest import (
    MANIFEST_NAME,
    MOST_MANIFEST_BYTES,
    DumpManifest,
    read_manifest,
)
from qk_toolkit.errors import ConfigError, HubError

_CHUNK_BYTES = 256 << 20
_CHUNK_FILES = 100
_BRANCH = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_TRIES = 5  # updates of the card of main, when other pushes change it at the same time


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    place: HubPlace
    commit: str
    changed: bool  # False when the branch already had this dump
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """What was done, and the command that fetches the dump."""
        state = "published" if self.changed else "is up to date"
        return (
            f"{self.place}: {state}, commit {self.commit}\n"
            f"next: attention-plasticity pull {shlex.quote(str(self.place))}"
        )


def push_dump(
    folder: Path,
    repo: str,
    branch: str | None = None,
    *,
    run: Path | None = None,
    private: bool = False,
    token: str | None = None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Pushed:
    """Publish the dump in `folder` on a branch of the dataset, and list it on the card of main.

    The branch is named after the dump's model by default. `run` is the folder of an analysis of the
    dump, whose tables and page are published with it. Without it, an analysis on the branch stays
    if the dump has not changed. `on_bytes` receives the number of bytes that are sent, and their
    total.
    """
    repo = require_target(repo, branch)
    dump = open_folder(folder)
    place = HubPlace(repo, branch or _branch_of(dump))
    files = dump_files(dump)
    analysis = analysis_files(run, dump) if run is not None else {}
    require_token(place, "publishing", token)
    if on_bytes is not None:
        hide_client_bars()  # the caller shows its own
    with hub_errors(place, "publishing"), local_errors():
        remote = _Remote(hub_api(token), place)
        remote.create_missing(private)
        quiet = lambda done, total: None  # noqa: E731
        state = remote.state()
        current = state[1]
        stays = run is None and not any(_difference(files, current, is_dump_file))
        has_tables = HEADS_TABLE in (current if stays else analysis)
        content = {**files, **analysis, CARD_FILE: card_file(dump, files, has_tables)}

        def is_old(path: str) -> bool:
            return is_dump_file(path) or (is_of_analysis(path) and not stays)

        commit, changed = _publish(remote, state, content, on_bytes or quiet, is_old)
    with hub_errors(place, "the dump is published, but listing it on main"):
        notes = _list_branches(_Remote(remote.api, HubPlace(repo, "main")))
    if run is None and not stays and any(map(is_of_analysis, current)):
        notes.append(
            f"the dump has changed: the tables of the analysis before were removed from {place}; "
            "add those of the new one with --run"
        )
    if not lists_heads(len(dump.all_folders)):
        notes.append(
            f"{len(dump.all_folders):,} heads: the Hub's viewer takes at most {MOST_CONFIGS:,} "
            "configs, so the card does not name them; load a head with "
            "data_files='l00h00q/*.parquet'"
        )
    return Pushed(place, commit, changed, tuple(notes))


def open_branch(place: HubPlace) -> None:
    """Create the dataset and the branch if they are missing. Raises if this is not allowed."""
    require_token(place, "publishing")
    with hub_errors(place, "publishing"):
        _Remote(hub_api(None), HubPlace(place.repo, place.revision)).create_missing(private=False)


def push_files(files: Mapping[str, Path], place: HubPlace, is_old: Callable[[str], bool]) -> str:
    """Publish files in the folder of `place` in one commit. Returns the commit.

    Files of the folder for which `is_old` is true are removed, unless they are in `files`.
    """
    prefix = f"{place.folder}/" if place.folder else ""
    content = {f"{prefix}{name}": LocalFile(path) for name, path in files.items()}

    def replaced(path: str) -> bool:
        return path.startswith(prefix) and is_old(path.removeprefix(prefix))

    with hub_errors(place, "publishing"), local_errors():
        remote = _Remote(hub_api(None), HubPlace(place.repo, place.revision))
        quiet = lambda done, total: None  # noqa: E731
        return _publish(remote, remote.state(), content, quiet, replaced)[0]


def require_target(repo: str, branch: str | None) -> str:
    """The dataset's name, `owner/name`. Names that cannot be pushed to are refused."""
    try:
        place = parse_place(repo)
    except ConfigError:
        place = None
    if place is None or place != HubPlace(place.repo) or "@" in repo or not repo.isascii():
        raise ConfigError(
            f"repo: expected owner/name, got {repo!r}; the branch has its own setting"
        )
    if branch is not None:
        _require_branch(branch)
    return place.repo


def _require_branch(branch: str) -> None:
    if branch == "main":
        raise ConfigError("branch: main holds the list of branches; choose another name")
    odd = ".." in branch or branch.endswith((".", ".lock")) or branch.startswith("refs/")
    if odd or not _BRANCH.fullmatch(branch) or _COMMIT_ID.fullmatch(branch):
        raise ConfigError(
            f"branch: {branch!r} cannot name a branch; use letters, digits, '.', '-', '_' and '/'"
        )


def _branch_of(dump: Dump) -> str:
    model = (dump.manifest.model if dump.manifest else None) or ""
    name = re.sub(r"[^a-z0-9.]+", "-", model.rstrip("/").rsplit("/", 1)[-1].lower()).strip("-.")
    if not name:
        reason = "the dump does not name its model"
        if model:
            reason = f"the name of the model, {model!r}, has no letters a to z or digits"
        raise ConfigError(f"branch: {reason}; give a branch")
    _require_branch(name)
    return name


def _publish(
    remote: _Remote,
    state: tuple[str, dict[str, RemoteFile]],
    files: Mapping[str, LocalFile],
    on_bytes: Callable[[int, int], None],
    is_old: Callable[[str], bool],
) -> tuple[str, bool]:
    """Publish the files in one commit, which also removes the other files with `is_old`.

    The commit is refused when the branch is no longer in the given state.
    """
    parent, current = state
    new, old = _difference(files, current, is_old)
    if not new and not old:
        return parent, False
    additions = remote.send(new, on_bytes)

    def find_commit() -> str | None:
        latest, tree = remote.state()
        return None if any(_difference(files, tree, is_old)) else latest

    commit = with_retries(lambda: remote.commit(additions, old, parent), find_result=find_commit)
    return commit, True


def _difference(
    files: Mapping[str, LocalFile],
    current: Mapping[str, RemoteFile],
    is_old: Callable[[str], bool],
) -> tuple[dict[str, LocalFile], list[str]]:
    """New or changed files, and the old files to remove from the branch."""
    new = {path: file for path, file in files.items() if not file.same_as(current.get(path))}
    old = [path for path in current if is_old(path) and path not in files]
    return new, old


@dataclass(frozen=True)
class _Remote:
    """One branch on the Hub."""

    api: Any
    place: HubPlace

    @property
    def where(self) -> dict[str, Any]:
        """The dataset as arguments for the client."""
        return {"repo_id": self.place.repo, "repo_type": "dataset"}

    def create_missing(self, private: bool) -> None:
        """Create the dataset and the branch if they do not exist.

        A branch begins at the first commit of the dataset, without the files of main.
        """
        dataset = self._dataset()
        if dataset is None:
            with_retries(lambda: self.api.create_repo(**self.where, private=private, exist_ok=True))
        elif private and not dataset.private:
            raise ConfigError(
                f"{self.place.repo}: the dataset exists and is public; nothing was sent. "
                "Make it private on its page, choose another name, or leave 'private' out"
            )
        if self.place.revision not in self.branches():
            commits = with_retries(lambda: self.api.list_repo_commits(**self.where))
            start = commit_id(commits[-1].commit_id if commits else None, self.place)
            options = {**self.where, "branch": self.place.revision, "revision": start}
            with_retries(lambda: self.api.create_branch(**options, exist_ok=True))

    def _dataset(self) -> Any | None:
        """The Hub's information about the dataset; None when it is missing or not visible."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            return with_retries(lambda: self.api.dataset_info(self.place.repo))
        except RepositoryNotFoundError:
            return None

    def branches(self) -> dict[str, str]:
        """The branches of the dataset, each with its commit."""
        refs = with_retries(lambda: list(self.api.list_repo_refs(**self.where).branches))
        named = [ref for ref in refs if isinstance(ref.name, str) and ref.name.isprintable()]
        return {ref.name: commit_id(ref.target_commit, self.place) for ref in named}

    def state(self) -> tuple[str, dict[str, RemoteFile]]:
        """The commit of the branch, and its files by path."""
        info = with_retries(
            lambda: self.api.dataset_info(self.place.repo, revision=self.place.revision)
        )
        commit = commit_id(info.sha, self.place)
        return commit, list_files(self.api, self.place, commit)

    def send(
        self, files: Mapping[str, LocalFile], on_bytes: Callable[[int, int], None]
    ) -> list[Any]:
        """Upload the large files; returns the operations for the commit."""
        total = sum(file.size for file in files.values())
        done = 0
        additions: list[Any] = []
        on_bytes(0, total)
        for chunk in _chunks(files):
            part = [files[path].as_addition(path) for path in chunk]
            with_retries(
                lambda part=part: self.api.preupload_lfs_files(  # type: ignore[misc]
                    **self.where,
                    additions=part,
                    revision=self.place.revision,
                    free_memory=False,
                )
            )
            additions += part
            done += sum(files[path].size for path in chunk)
            on_bytes(done, total)
        return additions

    def download(self, name: str, file: RemoteFile, commit: str, scratch: Path) -> Path:
        """Download a small file of a commit into the folder `scratch`, and check it."""
        target = scratch / f"{commit}-{name}"
        for _ in range(2):
            if download(self.api, self.place, commit, name, file, target):
                return target
        raise HubError(
            f"{self.place.repo}: the downloaded {name} differs from commit {commit[:12]}; "
            "run the same command again"
        )

    def commit(self, additions: Sequence[Any], removed: Sequence[str], parent: str) -> str:
        """Commit to the branch; the Hub refuses when the branch is no longer at `parent`."""
        from huggingface_hub import CommitOperationDelete

        operations = [*additions, *(CommitOperationDelete(path) for path in removed)]
        options = {**self.where, "revision": self.place.revision, "parent_commit": parent}
        message = f"Publish {self.place.revision}"
        made = self.api.create_commit(**options, operations=operations, commit_message=message)
        return commit_id(made.oid, self.place)


def _list_branches(main: _Remote) -> list[str]:
    """Update the card of main: one line per branch with a dump. Returns notes for the user.

    The update is repeated when another push changes main at the same time.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            with TemporaryDirectory() as scratch:
                return _update_card(main, Path(scratch))
        except client_errors() as error:
            if attempt == _TRIES or not is_conflict(error):
                raise
    raise AssertionError("unreachable")


def _update_card(main: _Remote, scratch: Path) -> list[str]:
    head, files = main.state()
    card = files.get(CARD_FILE)
    if card is not None and not _is_our_card(main, card, head, scratch):
        return ["main has a README.md that this toolkit did not write; add the branch to it"]
    manifests = {}
    for name, commit in main.branches().items():
        if name == "main":
            continue
        manifest = _manifest_of(main, commit, scratch)
        if manifest or _holds_heads(list_files(main.api, main.place, commit)):
            manifests[name] = manifest
    text = overview_card(main.place.repo, manifests)
    quiet = lambda done, total: None  # noqa: E731
    _publish(main, (head, files), {CARD_FILE: LocalFile(text.encode())}, quiet, lambda path: False)
    return []


def _is_our_card(main: _Remote, file: RemoteFile, commit: str, scratch: Path) -> bool:
    if file.size > MOST_CARD_BYTES:
        return False
    return is_card(main.download(CARD_FILE, file, commit, scratch))


def _manifest_of(main: _Remote, commit: str, scratch: Path) -> DumpManifest | None:
    """The `dump.json` of a commit; None when it is missing or invalid."""
    file = find_file(main.api, main.place, commit, MANIFEST_NAME)
    if file is None or file.size > MOST_MANIFEST_BYTES:
        return None
    path = main.download(MANIFEST_NAME, file, commit, scratch)
    try:
        return read_manifest(path)
    except ConfigError:  # another kind of file, or from a later version
        return None


def _holds_heads(files: Mapping[str, RemoteFile]) -> bool:
    return any(parse_head(Path(path).parent.name) for path in files if path.endswith(".parquet"))


def _chunks(files: Mapping[str, LocalFile]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for path, file in files.items():
        chunk.append(path)
        size += file.size
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_FILES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
