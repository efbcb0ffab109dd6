"""Publishing a dump: one branch per model, changed in one commit, or not at all.

Large files are sent first; nobody sees them until the commit, which adds what is new and removes
what the branch's earlier dump had besides. A reply that is lost is looked up, so that nothing is
done twice. Run again after a failure, the push sends only what the Hub does not have.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qk_dump.card import CARD_FILE, MOST_CARD_BYTES, is_card, overview_card
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.hub.client import (
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
from qk_dump.hub.published import LocalFile, dump_files, local_errors
from qk_dump.layout import Dump, open_folder, parse_head
from qk_dump.manifest import (
    MANIFEST_NAME,
    MOST_MANIFEST_BYTES,
    DumpManifest,
    read_manifest,
)
from qk_toolkit.errors import ConfigError, HubError

MOST_CONFIGS = 3000
"""Configs that the Hub's viewer shows at most."""

_CHUNK_BYTES = 256 << 20
_CHUNK_FILES = 100
_BRANCH = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_TRIES = 5  # at a card that others change as well


@dataclass(frozen=True)
class Pushed:
    """What a push came to."""

    place: HubPlace
    commit: str
    changed: bool  # False when the branch held this dump already
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
    private: bool = False,
    token: str | None = None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Pushed:
    """Make `branch` of the dataset hold the dump in `folder`, and list it on the card of main.

    The branch is named after the dump's model by default. `on_bytes` receives the number of bytes
    that are sent, and their total.
    """
    repo = require_target(repo, branch)
    dump = open_folder(folder)
    place = HubPlace(repo, branch or _branch_of(dump))
    files = dump_files(dump)
    require_token(place, "publishing", token)
    if on_bytes is not None:
        hide_client_bars()  # the caller shows its own
    with hub_errors(place, "publishing"), local_errors():
        remote = _Remote(hub_api(token), place)
        remote.make_ready(private)
        quiet = lambda done, total: None  # noqa: E731
        commit, changed = _publish(remote, remote.state(), files, on_bytes or quiet, clean=True)
    with hub_errors(place, "the dump is published, but listing it on main"):
        notes = _list_branches(_Remote(remote.api, HubPlace(repo, "main")))
    if len(dump.folders) > MOST_CONFIGS:
        notes.append(
            f"{len(dump.folders):,} heads: the Hub's viewer shows {MOST_CONFIGS:,} configs; "
            "load_dataset works all the same, by name or with data_files='l00h00q/*.parquet'"
        )
    return Pushed(place, commit, changed, tuple(notes))


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
        raise ConfigError("branch: the dump does not name its model; add --branch NAME")
    _require_branch(name)
    return name


def _publish(
    remote: _Remote,
    state: tuple[str, dict[str, RemoteFile]],
    files: Mapping[str, LocalFile],
    on_bytes: Callable[[int, int], None],
    *,
    clean: bool,
) -> tuple[str, bool]:
    """Bring the files to the branch in one commit; `clean` removes those of an earlier dump.

    The branch must still be in the given state when the commit is made.
    """
    head, there = state
    new, gone = _difference(files, there, clean)
    if not new and not gone:
        return head, False
    additions = remote.send(new, on_bytes)

    def done() -> str | None:
        now, tree = remote.state()
        return None if any(_difference(files, tree, clean)) else now

    commit = with_retries(lambda: remote.commit(additions, gone, head), settled=done)
    return commit, True


def _difference(
    files: Mapping[str, LocalFile], there: Mapping[str, RemoteFile], clean: bool
) -> tuple[dict[str, LocalFile], list[str]]:
    """Files that a branch lacks or has otherwise, and those of another dump that it has besides."""
    new = {path: file for path, file in files.items() if not file.same_as(there.get(path))}
    gone = [path for path in there if clean and _is_of_a_dump(path) and path not in files]
    return new, gone


@dataclass(frozen=True)
class _Remote:
    """One branch on the Hub."""

    api: Any
    place: HubPlace

    @property
    def where(self) -> dict[str, Any]:
        """The dataset, as the client's functions want it."""
        return {"repo_id": self.place.repo, "repo_type": "dataset"}

    def make_ready(self, private: bool) -> None:
        """Create the dataset and the branch where they are missing.

        A branch begins at the dataset's first commit: what main holds is no part of a dump.
        """
        there = self._dataset()
        if there is None:
            with_retries(lambda: self.api.create_repo(**self.where, private=private, exist_ok=True))
        elif private and not there.private:
            raise ConfigError(
                f"{self.place.repo}: the dataset is there already and public; nothing was sent. "
                "Make it private on its page, choose another name, or leave 'private' out"
            )
        if self.place.revision not in self.branches():
            first = with_retries(lambda: self.api.list_repo_commits(**self.where)[-1].commit_id)
            start = commit_id(first, self.place)
            options = {**self.where, "branch": self.place.revision, "revision": start}
            with_retries(lambda: self.api.create_branch(**options, exist_ok=True))

    def _dataset(self) -> Any | None:
        """What the Hub tells of the dataset; None when there is none that the token may see."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            return with_retries(lambda: self.api.dataset_info(self.place.repo))
        except RepositoryNotFoundError:
            return None

    def branches(self) -> dict[str, str]:
        """The dataset's branches, and the commit each is at."""
        refs = with_retries(lambda: list(self.api.list_repo_refs(**self.where).branches))
        named = [ref for ref in refs if isinstance(ref.name, str) and ref.name.isprintable()]
        return {ref.name: commit_id(ref.target_commit, self.place) for ref in named}

    def state(self) -> tuple[str, dict[str, RemoteFile]]:
        """The branch's commit and its files by path."""
        info = with_retries(
            lambda: self.api.dataset_info(self.place.repo, revision=self.place.revision)
        )
        commit = commit_id(info.sha, self.place)
        return commit, list_files(self.api, self.place, commit)

    def send(
        self, files: Mapping[str, LocalFile], on_bytes: Callable[[int, int], None]
    ) -> list[Any]:
        """Send the large ones among the files; the additions for the commit are returned."""
        total = sum(file.size for file in files.values())
        settled = 0
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
            settled += sum(files[path].size for path in chunk)
            on_bytes(settled, total)
        return additions

    def download(self, name: str, file: RemoteFile, commit: str, scratch: Path) -> Path:
        """A small file of a commit, checked, in a folder of our own."""
        target = scratch / f"{commit}-{name}"
        for _ in range(2):
            if download(self.api, self.place, commit, name, file, target):
                return target
        raise HubError(
            f"{self.place.repo}: {name} arrives with other bytes than commit {commit[:12]} "
            "holds; run the same command again"
        )

    def commit(self, additions: Sequence[Any], gone: Sequence[str], parent: str) -> str:
        """Change the branch in one step, provided it is still at `parent`."""
        from huggingface_hub import CommitOperationDelete

        operations = [*additions, *(CommitOperationDelete(path) for path in gone)]
        options = {**self.where, "revision": self.place.revision, "parent_commit": parent}
        message = f"Publish {self.place.revision}"
        made = self.api.create_commit(**options, operations=operations, commit_message=message)
        return commit_id(made.oid, self.place)


def _list_branches(main: _Remote) -> list[str]:
    """Bring main's card up to date, a line per branch that holds a dump; notes for the user.

    Where somebody else changes main meanwhile, the list is made anew.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            with TemporaryDirectory() as scratch:
                return _list_once(main, Path(scratch))
        except Exception as error:
            if attempt == _TRIES or not is_conflict(error):
                raise
    raise AssertionError("unreachable")


def _list_once(main: _Remote, scratch: Path) -> list[str]:
    head, there = main.state()
    theirs = there.get(CARD_FILE)
    if theirs is not None and not _is_our_card(main, theirs, head, scratch):
        return ["main has a card of its own, which is kept; list the branch there"]
    manifests = {}
    for name, commit in main.branches().items():
        if name == "main":
            continue
        manifest = _manifest_of(main, commit, scratch)
        if manifest or _holds_heads(list_files(main.api, main.place, commit)):
            manifests[name] = manifest
    text = overview_card(main.place.repo, manifests)
    quiet = lambda done, total: None  # noqa: E731
    _publish(main, (head, there), {CARD_FILE: LocalFile(text.encode())}, quiet, clean=False)
    return []


def _is_our_card(main: _Remote, file: RemoteFile, commit: str, scratch: Path) -> bool:
    if file.size > MOST_CARD_BYTES:
        return False
    return is_card(main.download(CARD_FILE, file, commit, scratch))


def _manifest_of(main: _Remote, commit: str, scratch: Path) -> DumpManifest | None:
    """What a commit's `dump.json` tells; None without one that can be read."""
    file = find_file(main.api, main.place, commit, MANIFEST_NAME)
    if file is None or file.size > MOST_MANIFEST_BYTES:
        return None
    path = main.download(MANIFEST_NAME, file, commit, scratch)
    try:
        return read_manifest(path)
    except ConfigError:  # somebody's own, or of a later version
        return None


def _holds_heads(files: Mapping[str, RemoteFile]) -> bool:
    return any(parse_head(Path(path).parent.name) for path in files if path.endswith(".parquet"))


def _is_of_a_dump(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if not folder:
        return name in (MANIFEST_NAME, EXAMPLES_FILE)
    return parse_head(folder) is not None and name.endswith(".parquet")


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
