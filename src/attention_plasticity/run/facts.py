"""What is known about a run before its heads are computed. Shards of a run have the same facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from attention_plasticity.config import PLACEMENT_FIELDS, RunnerConfig, make_config
from attention_plasticity.head.layout import HeadLayout
from attention_plasticity.head.texts import DumpTexts
from attention_plasticity.run.fingerprints import Files, head_pair, identity_of
from attention_plasticity.run.plan import Plan
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest

Head = tuple[int, int]


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
        same_texts = record.get("texts") == self.texts
        return (
            identity_of(record.get("shared") or {}) == self.identity and same_texts and same_files
        )

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
