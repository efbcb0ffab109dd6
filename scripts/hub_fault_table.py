"""The table of faults in docs/hub-faults.md: the outcome of a push for each fault and endpoint.

python scripts/hub_fault_table.py writes it; the tests compare every cell with the real outcome.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from dumps import make_dump
from hub_server import (
    WRITER,
    Fault,
    HubServer,
    no_waiting,
    reset_after,
    reset_before,
    running_hub,
    status,
    truncated,
    wrong_bytes,
)
from qk_dump.card import card, overview_card
from qk_dump.examples import Example, write_examples
from qk_dump.hub.push import push_dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.source import open_dump
from qk_dump.tokens import write_tokens
from qk_toolkit.errors import HubError

DOCS = Path(__file__).parents[1] / "docs" / "hub-faults.md"
BEGIN, END = "<!-- push faults: begin -->\n", "<!-- push faults: end -->"
DONE, CLEAR = "done", "clear error, rerun done"
LISTED = "published, then clear error, rerun done"
BRANCH = "tiny"


@dataclass(frozen=True)
class Request:
    """A kind of request of a push, with its name in the docs."""

    words: str
    endpoint: str
    path: str = ""
    first_push: bool = False  # made only when nothing is there yet


REQUESTS = {
    "info": Request("ask for the dataset", "info"),
    "create_repo": Request("create the dataset", "create_repo", first_push=True),
    "refs": Request("list branches", "refs"),
    "commits": Request("find the first commit", "commits", first_push=True),
    "branch": Request("create the branch", "branch", first_push=True),
    "info_branch": Request("ask for the branch's commit", "info", f"/revision/{BRANCH}"),
    "tree": Request("list the branch's files", "tree"),
    "preupload": Request("ask how to send files", "preupload"),
    "lfs_batch": Request("ask where to send Parquet", "lfs_batch"),
    "lfs_put": Request("send a Parquet file", "lfs_put"),
    "lfs_verify": Request("confirm a Parquet file", "lfs_verify"),
    "yaml": Request("check the card", "yaml"),
    "commit": Request("commit the dump", "commit", f"/commit/{BRANCH}"),
    "paths_info": Request("look for `dump.json`", "paths_info"),
    "resolve_get": Request("fetch the card of main", "resolve_get"),
    "commit_main": Request("commit the card of main", "commit", "/commit/main"),
}
FAULTS: dict[str, tuple[Fault, int | None]] = {
    "500 once": (status(500), 1),
    "500 always": (status(500), None),
    "429 once": (status(429, {"Retry-After": "3"}), 1),
    "reset before": (reset_before, 1),
    "reset after": (reset_after, 1),
    "truncated": (truncated, 1),
    "wrong bytes": (wrong_bytes, 1),
    "401": (status(401), None),
    "403": (status(403), None),
}
CASES = [(request, fault) for request in REQUESTS for fault in FAULTS]


@contextmanager
def pushing(hub: HubServer) -> Iterator[list[float]]:
    """Let this process use the server as the Hub, without waiting."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    shown = not are_progress_bars_disabled()
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": WRITER}
    with ExitStack() as stack:
        stack.enter_context(patch.dict("os.environ", settings))
        waits = stack.enter_context(no_waiting())
        stack.enter_context(patch("qk_dump.hub.client.time.sleep", waits.append))
        disable_progress_bars()
        stack.callback(enable_progress_bars if shown else disable_progress_bars)
        yield waits


def small_dump(
    root: Path, *, model: str | None = "org/tiny", examples: int = 4, **rows: int
) -> Path:
    """A dump of one layer with all files of a capture."""
    settings = {"layers": 1, "q_heads": 2, "k_heads": 1, "n": 4, "d": 2}
    make_dump(root, **{**settings, **rows})  # type: ignore[arg-type]
    manifest = DumpManifest(model=model, num_examples=examples)
    write_manifest(root, manifest)
    write_examples(root, [Example(number, f"text {number}", 8, "0") for number in range(examples)])
    write_tokens(root, {number: f"token {number}" for number in range(3)})
    text = card(manifest, list(open_dump(root).folders), True, tokens=True)
    (root / "README.md").write_text(text, encoding="utf-8")
    return root


def files_of(folder: Path) -> dict[str, bytes]:
    """A dump's files by path."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class Faults:
    """Pushes a new dump over an old dump, with faults."""

    def __init__(self, hub: HubServer, folder: Path) -> None:
        self.hub = hub
        self.old = files_of(small_dump(folder / "old", examples=3, n=5))
        self.folder = small_dump(folder / "new")
        self.new = files_of(self.folder)

    def outcome(self, request: str, fault: str) -> str:
        """Push with the fault, then without; returns the outcome for the table.

        Asserts that the branch always holds one complete dump, that an error is one line, and that
        no file is uploaded twice.
        """
        repo = f"me/{request}-{fault.replace(' ', '-')}"
        asked = REQUESTS[request]
        if not asked.first_push:
            self.hub.store.write(repo, self.old, BRANCH)
            main = overview_card(repo, {BRANCH: None}).encode()
            self.hub.store.write(repo, {"README.md": main}, "main")
        kind, times = FAULTS[fault]
        plan = self.hub.fail(asked.endpoint, kind, path=asked.path, times=times)
        outcome = self._push(repo, request)
        self.hub.heal()
        assert plan.hits, "the fault met no request"
        self._rerun(repo)
        expected = 2 if asked.first_push else 3  # of the Hub, of the old dump, and ours
        assert len(self.hub.commits(repo, BRANCH)) == expected
        return outcome

    def _push(self, repo: str, request: str) -> str:
        error = ""
        try:
            push_dump(self.folder, repo, BRANCH)
        except HubError as found:
            error = str(found)
        assert "\n" not in error
        assert WRITER not in error
        assert not error or error.startswith(f"{repo}@") or error.startswith(f"{repo}:"), error
        assert not error or any(word in error for word in ("again", "HF_TOKEN", "write access"))
        there = self.branch(repo)
        assert there in ({}, self.old, self.new)
        assert error or there == self.new
        if not error:
            return DONE
        return LISTED if "the dump is published" in error else CLEAR

    def _rerun(self, repo: str) -> None:
        known = self.hub.store.repos.get(repo)
        arrived = set(known.objects) if known else set()
        before = len(self.hub.log)
        push_dump(self.folder, repo, BRANCH)
        assert self.branch(repo) == self.new
        main = self.hub.branch(repo)
        assert set(main) == {".gitattributes", "README.md"}
        assert b"`org/tiny`" in main["README.md"]
        sent = [entry for entry in self.hub.log[before:] if entry.endpoint == "lfs_put"]
        assert not arrived & {entry.path.rpartition("/")[2] for entry in sent}

    def branch(self, repo: str) -> dict[str, bytes]:
        """The files of the branch, without `.gitattributes`."""
        if repo not in self.hub.store.repos or BRANCH not in self.hub.branches(repo):
            return {}
        files = dict(self.hub.branch(repo, BRANCH))
        files.pop(".gitattributes", None)
        return files


def table(outcomes: dict[tuple[str, str], str]) -> str:
    """One line per request, one column per fault."""
    lines = [
        f"| request | {' | '.join(FAULTS)} |",
        f"|---|{'---|' * len(FAULTS)}",
    ]
    for request, asked in REQUESTS.items():
        cells = [outcomes[request, fault] for fault in FAULTS]
        lines.append(f"| {asked.words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def in_docs(docs: str) -> dict[tuple[str, str], str]:
    """The outcomes in the docs."""
    lines = docs.split(BEGIN)[1].split(END)[0].splitlines()[2:]
    found = {}
    for request, line in zip(REQUESTS, lines, strict=True):
        words, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert words == REQUESTS[request].words
        found |= {(request, fault): cell for fault, cell in zip(FAULTS, cells, strict=True)}
    return found


def written(docs: str) -> str:
    """The docs with the new table."""
    with running_hub() as hub, pushing(hub), tempfile.TemporaryDirectory() as folder:
        faults = Faults(hub, Path(folder))
        outcomes = {case: faults.outcome(*case) for case in CASES}
    before, rest = docs.split(BEGIN)
    return before + BEGIN + table(outcomes) + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCS.write_text(written(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
