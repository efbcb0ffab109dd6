"""Publishing a dump: one branch per model, changed in one commit.

All files are checked before the first byte is sent. Large files are uploaded first. They become
visible with the commit, which adds new files and removes old files of an earlier dump. A push that
is repeated after a failure uploads only missing files, and makes no commit if the branch is right.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qk_dump.card import (
    ANALYSIS_FOLDER,
    HEADS_TABLE,
    MOST_CONFIGS,
    card,
    lists_heads,
)
from qk_dump.head_counts import check_head
from qk_dump.heads import CARD_FILE, EXAMPLES_FILE, TOKENS_FILE
from qk_dump.hub.branch import LocalFile, RemoteBranch, list_branches
from qk_dump.hub.client import hub_api, hub_errors, repeated, require_token
from qk_dump.hub.commit import OnBytes
from qk_dump.hub.place import HubPlace, parse_place
from qk_dump.layout import FILES_BESIDE_HEADS, Dump, is_dump_file, open_folder
from qk_dump.manifest import MANIFEST_NAME, DumpManifest
from qk_dump.parquet import opened_parquet, require_capture
from qk_dump.remote import local
from qk_toolkit.errors import ConfigError, DumpError
from qk_toolkit.files import read_json
from qk_toolkit.formatting import count

_BRANCH = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_TABLE = re.compile(r"\w[\w-]*\.csv", re.ASCII)
_RUN_FILE, _PAGE = "run.json", "report.html"
_MOST_RUN_BYTES = 64 << 20


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
    on_bytes: OnBytes | None = None,
) -> Pushed:
    """Publish the dump in `folder` on a branch of the dataset, and list it on the card of main.

    The branch is named after the dump's model by default. `run` is the folder of an analysis of the
    dump, whose tables and page are published with it. Without it, an analysis on the branch stays
    if the dump has not changed. `on_bytes` receives the number of bytes that are sent, and their
    total.
    """
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    repo = require_target(repo, branch)
    dump = open_folder(folder)
    place = HubPlace(repo, branch or _branch_of(dump))
    with hub_errors(place, "publishing"):
        files = _dump_files(dump)
        analysis = _analysis_files(run, dump) if run is not None else {}
    require_token(place, token)
    remote = RemoteBranch(hub_api(token), place, on_bytes)
    if on_bytes is not None:
        disable_progress_bars()  # of the client; the caller shows its own

    def published() -> tuple[str, bool, list[str]]:
        remote.create_missing(private)
        return _publish(remote, dump, files, analysis)

    with hub_errors(place, "publishing"):
        commit, changed, notes = repeated(published)
    main = RemoteBranch(remote.api, HubPlace(repo))
    with hub_errors(place, "the dump is published, but listing it on main"):
        notes += repeated(lambda: list_branches(main), after_conflict=True)
    if not lists_heads(len(dump.all_folders)):
        notes.append(
            f"{len(dump.all_folders):,} heads: the Hub's viewer takes at most {MOST_CONFIGS:,} "
            "configs, so the card does not name them; load a head with "
            "data_files='l00h00q/*.parquet'"
        )
    return Pushed(place, commit, changed, tuple(notes))


def _publish(
    remote: RemoteBranch,
    dump: Dump,
    files: Mapping[str, LocalFile],
    analysis: Mapping[str, LocalFile],
) -> tuple[str, bool, list[str]]:
    """Make the branch hold the dump: the commit, whether it is new, and notes for the user."""
    state = remote.state()
    stays = not analysis and not any(state.difference(files, is_dump_file))
    has_tables = HEADS_TABLE in (state.files if stays else analysis)
    content = {**files, **analysis, CARD_FILE: _card_file(dump, files, has_tables)}

    def is_old(path: str) -> bool:
        return is_dump_file(path) or (_is_of_analysis(path) and not stays)

    commit, changed = remote.publish(state, content, is_old)
    notes = []
    if not analysis and not stays and any(map(_is_of_analysis, state.files)):
        notes.append(
            f"the dump has changed: the tables of the analysis before were removed from "
            f"{remote.place}; add those of the new one with --run"
        )
    return commit, changed, notes


def open_branch(place: HubPlace) -> None:
    """Create the dataset and the branch if they are missing. Raises if this is not allowed."""
    require_token(place)
    remote = RemoteBranch(hub_api(), HubPlace(place.repo, place.revision))
    with hub_errors(place, "publishing"):
        repeated(lambda: remote.create_missing(private=False))


def push_files(files: Mapping[str, Path], place: HubPlace, is_old: Callable[[str], bool]) -> str:
    """Publish files in the folder of `place` in one commit. Returns the commit.

    Files of the folder for which `is_old` is true are removed, unless they are in `files`.
    """
    below = place.inside("")
    remote = RemoteBranch(hub_api(), place)

    def replaced(path: str) -> bool:
        return path.startswith(below) and is_old(path.removeprefix(below))

    with hub_errors(place, "publishing"):
        content = {place.inside(name): LocalFile(path) for name, path in files.items()}
        return repeated(lambda: remote.publish(remote.state(), content, replaced))[0]


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


def _dump_files(dump: Dump) -> dict[str, LocalFile]:
    """The files of the dump without its card, by path on the branch; heads are in its root.

    Raises an error for a file that cannot be read.
    """
    home = local(dump.path)
    files: dict[str, LocalFile] = {}
    _require_all_heads(dump)
    for head in dump.all_folders:
        for path in check_head(dump, head):
            files[f"{head.folder}/{path.name}"] = LocalFile(local(path))
    for name in FILES_BESIDE_HEADS:
        if os.path.lexists(home / name):
            files[name] = LocalFile(home / name)
    for name in (EXAMPLES_FILE, TOKENS_FILE):
        if name in files:
            with opened_parquet(home / name) as parquet:
                require_capture(parquet.record, dump.capture_id, home / name)
    return files


def _require_all_heads(dump: Dump) -> None:
    """Raise a `DumpError` if heads of dump.json are missing."""
    if lost := dump.lost_heads:
        raise DumpError(
            f"{dump.path}: {count(len(lost), 'head')} of {MANIFEST_NAME} "
            f"{'is' if len(lost) == 1 else 'are'} missing, the first: {lost[0]}. Copy the whole "
            "dump, or capture it again"
        )


def _card_file(dump: Dump, files: Mapping[str, LocalFile], analysis: bool) -> LocalFile:
    """The card of the branch for these files. `analysis`: the branch has tables of an analysis."""
    manifest = dump.manifest or DumpManifest()
    has_examples, has_tokens = EXAMPLES_FILE in files, TOKENS_FILE in files
    text = card(manifest, list(dump.all_folders), has_examples, has_tokens, analysis)
    return LocalFile(text.encode("utf-8"))


def _analysis_files(run: Path, dump: Dump) -> dict[str, LocalFile]:
    """The tables, `run.json` and, if there is one, the page of the analysis in the folder `run`.

    Raises an error for a folder without a finished analysis, and for the analysis of another dump.
    """
    info = _run_info(run, dump)
    tables = info.get("tables")
    names = list(tables.values()) if isinstance(tables, dict) else []
    if not names or not all(isinstance(name, str) and _TABLE.fullmatch(name) for name in names):
        raise ConfigError(
            f"{run / _RUN_FILE}: tables: expected names of CSV files; nothing was sent"
        )
    page = [_PAGE] if (run / _PAGE).exists() else []
    return {
        f"{ANALYSIS_FOLDER}/{name}": LocalFile(run / name) for name in (*names, _RUN_FILE, *page)
    }


def _is_of_analysis(path: str) -> bool:
    """Whether a file of a branch belongs to the analysis of its dump."""
    return path.startswith(f"{ANALYSIS_FOLDER}/")


def _run_info(run: Path, dump: Dump) -> dict[str, Any]:
    """The content of `run.json`, of an analysis of `dump`."""
    path = run / _RUN_FILE
    try:
        info = read_json(path, most_bytes=_MOST_RUN_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{run}: holds no {_RUN_FILE}; name the output folder of a finished analysis"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); nothing was sent") from error
    layout = info.get("head_layout") if isinstance(info, dict) else None
    if not isinstance(layout, dict):
        raise ConfigError(f"{path}: is not the file of an analysis; nothing was sent")
    for name in ("num_layers", "num_q_heads", "num_k_heads"):
        value = getattr(dump.manifest, name, None)
        if value is not None and layout.get(name) != value:
            raise ConfigError(
                f"{path}: is the analysis of another dump ({name} {layout.get(name)}, the dump has "
                f"{value}); nothing was sent"
            )
    return dict(info)
