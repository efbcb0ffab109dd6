"""Fingerprints of input files, to detect changes.

What is known about a run before its heads are computed. Shards of a run have the same facts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from attention_plasticity.config import PLACEMENT_FIELDS, RunnerConfig, make_config
from attention_plasticity.read.layout import HeadLayout
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.run.plan import Plan
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.layout import ATTENDED, Dump, HeadId, parse_head
from qk_dump.limits import MOST_FOOTER_BYTES
from qk_dump.manifest import MANIFEST_NAME, DumpManifest
from qk_dump.parquet import footer_length
from qk_dump.remote import DumpPath, RemotePath
from qk_toolkit.errors import DumpError
from qk_toolkit.files import open_regular

Files = dict[str, list[list[str]]]  # name and fingerprint of every file, by the folder of a head

SHARED_FILES = (MANIFEST_NAME, EXAMPLES_FILE)
"""Files beside the heads. The results of every head depend on them."""
Head = tuple[int, int]


class InputFiles:
    """Fingerprints of the files of a dump, read when a head is first analysed.

    The fingerprint of a file is its size and a hash of its Parquet footer. The footer lists every
    column chunk with its offset, size and statistics. The fingerprint does not depend on the path.
    Changes of a file are detected by its fingerprint and its modification time. The whole content
    of `dump.json` and `examples.parquet` is hashed. At a URL, the fingerprint is the size and the
    version (ETag) in the listing of the store.
    """

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._now = dump
        self._states: dict[HeadId, list[_FileState]] = {}
        self.shared = self._shared_content()

    @property
    def identity(self) -> str:
        """A hash of the files that all heads use."""
        return identity_of(self.shared)

    def record(self, layer: int, q_heads: Iterable[int], k_head: int) -> None:
        """Record the files of query heads and their key head, before they are read."""
        for q_head in q_heads:
            for head in head_pair(layer, q_head, k_head):
                self._first_state(head)

    def record_state(self, layer: int, q_head: int, k_head: int) -> str:
        """Record the files of a query head and its key head; return a hash of the first state."""
        states = [self._first_state(head) for head in head_pair(layer, q_head, k_head)]
        return hashlib.sha256(json.dumps(states).encode()).hexdigest()

    def changed(self) -> set[HeadId]:
        """The heads whose files are no longer in their first state.

        These are all heads if the content of a file that all heads use changed.
        """
        self._now = self._dump.listed_again()
        if self._shared_content() != self.shared:
            return set(self._states)
        first = self._states.items()
        return {head for head, state in first if self._current_state(head) != state}

    def files_of(self, layer: int, q_head: int, k_head: int) -> Files:
        """Names and fingerprints of the files of a query head and its key head, by folder."""
        return {
            head.folder: [[state.name, state.content] for state in self._first_state(head)]
            for head in head_pair(layer, q_head, k_head)
        }

    def files_of_all(self, heads: Iterable[tuple[int, int, int]]) -> Files:
        """The same for many heads, each with layer, query head and key head."""
        found: Files = {}
        for head in heads:
            found |= self.files_of(*head)
        return found

    def _shared_content(self) -> dict[str, str]:
        paths = [self._now.path / name for name in SHARED_FILES]
        return {path.name: _file_state(path, whole=True).content for path in paths}

    def _first_state(self, head: HeadId) -> list[_FileState]:
        if head not in self._states:
            self._states[head] = self._current_state(head)
        return self._states[head]

    def _current_state(self, head: HeadId) -> list[_FileState]:
        """States of the files of a head; those of a key head's keys drawn by attention follow."""
        try:
            files = self._now.files(head) if head in self._now.folders else ()
            attended = head.kind == "k" and self._now.attended_files(head.layer, head.head)
        except DumpError as error:
            return [_FileState("", str(error), 0)]
        states = [_file_state(path) for path in files]
        more = [_file_state(path) for path in attended or ()]
        return states + [state._replace(name=f"{ATTENDED}/{state.name}") for state in more]


def identity_of(shared: dict[str, str]) -> str:
    """A hash of the states of the files that all heads use."""
    return hashlib.sha256(json.dumps(shared).encode()).hexdigest()


def joint_fingerprint(files: Files) -> str:
    """One hash over the fingerprints of the files of many heads."""
    heads = sorted((parse_head(folder), folder) for folder in files)
    lines = [f"{folder} {' '.join(file)}\n" for _, folder in heads for file in files[folder]]
    return hashlib.sha256(os.fsencode("".join(lines))).hexdigest()


class _FileState(NamedTuple):
    name: str
    content: str  # size, and hash of the footer
    modified: int


def head_pair(layer: int, q_head: int, k_head: int) -> tuple[HeadId, HeadId]:
    """A query head and its key head."""
    return HeadId(layer, q_head, "q"), HeadId(layer, k_head, "k")


def _file_state(path: DumpPath, *, whole: bool = False) -> _FileState:
    """The state of a file. With `whole`, its whole content is hashed and not only its footer."""
    try:
        if isinstance(path, RemotePath):
            return _FileState(path.name, f"{path.size} {path.stored.version}", 0)
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            length = min(footer_length(file, status.st_size), MOST_FOOTER_BYTES) + 8
            file.seek(0 if whole else status.st_size - min(status.st_size, length))
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        return _FileState(path.name, f"unreadable ({error.strerror})", 0)
    return _FileState(path.name, f"{status.st_size} {digest}", status.st_mtime_ns)


@dataclass(frozen=True)
class RunFacts:
    """Settings, input and heads of a run, as values for JSON."""

    name: str  # of the dump
    identity: str  # of its files that all heads use
    config: dict[str, Any]
    input: dict[str, Any]  # path, place on the Hub, texts and dump.json
    layout: dict[str, Any]
    heads: list[list[int]]  # layer, query head and key head
    not_captured: list[list[int]]
    texts: str = ""  # hash of the ids of the texts
    bins: list[int] | None = None  # tokens per bin, and of the longest text
    files: Files = field(default_factory=dict)  # of all heads of the run, if it consists of shards

    @classmethod
    def of(
        cls, dump: Dump, identity: str, plan: Plan, texts: DumpTexts, config: RunnerConfig
    ) -> RunFacts:
        """The facts of a run that is about to start."""
        manifest = dump.manifest.model_dump(exclude_none=True) if dump.manifest else None
        return cls(
            name=dump.name,
            identity=identity,
            config=config.model_dump(exclude={"dry_run", "overwrite", *PLACEMENT_FIELDS}),
            input={
                "path": str(dump.path),
                "hub": dump.origin,
                "texts": texts.as_input,
                "dump": manifest,
                **({} if dump.rotary is None else {"rotary": dump.rotary.as_record()}),
            },
            layout=asdict(plan.layout),
            heads=[list(head) for head in plan.triples],
            not_captured=[list(head) for head in plan.not_captured],
            texts=texts.digest,
            bins=None if texts.bins is None else [texts.bins.size, texts.bins.context],
        )

    def is_of_dump(self, other: RunFacts) -> bool:
        """Whether both are about the same heads and texts of one dump, as far as files are known.

        A file that only one of them lists does not count.
        """
        mine = (self.identity, self.heads, self.texts)
        common = self.files.keys() & other.files.keys()
        same_files = all(self.files[folder] == other.files[folder] for folder in common)
        return mine == (other.identity, other.heads, other.texts) and same_files

    def has_files_of(self, record: dict[str, Any]) -> bool:
        """Whether the record of a head was computed from the files and texts of this run."""
        files = record["files"].items()
        same_files = all(self.files.get(folder) == found for folder, found in files)
        same_texts = record["texts"] == self.texts
        return identity_of(record["shared"]) == self.identity and same_texts and same_files

    def of_heads(self, heads: Iterable[Head]) -> RunFacts:
        """The facts with the files of some heads only."""
        folders = {
            pair.folder
            for layer, q_head in heads
            if (layer, q_head) in self.key_heads
            for pair in head_pair(layer, q_head, self.key_heads[layer, q_head])
        }
        files = {folder: found for folder, found in self.files.items() if folder in folders}
        return replace(self, files=files)

    @property
    def settings(self) -> RunnerConfig:
        """The settings of the run."""
        return make_config(self.config)

    @property
    def head_layout(self) -> HeadLayout:
        """Numbers of layers and heads."""
        return HeadLayout(**self.layout)

    @property
    def manifest(self) -> DumpManifest | None:
        """`dump.json` of the dump."""
        content = self.input["dump"]
        return None if content is None else DumpManifest.model_validate(content)

    @cached_property
    def key_heads(self) -> dict[Head, int]:
        """The key head of every (layer, query head)."""
        return {(layer, q_head): k_head for layer, q_head, k_head in self.heads}
