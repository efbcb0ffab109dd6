"""What is known about a run before its heads are computed. Shards of a run have the same facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from attention_plasticity.config import PLACEMENT_FIELDS, RunnerConfig, make_config
from attention_plasticity.dump_texts import DumpTexts
from attention_plasticity.head_layout import HeadLayout
from attention_plasticity.run.fingerprints import Files, head_pair
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
            },
            layout=asdict(plan.layout),
            heads=[list(head) for head in plan.triples],
            not_captured=[list(head) for head in plan.not_captured],
        )

    def is_of_dump(self, other: RunFacts, heads: Iterable[Head] | None = None) -> bool:
        """Whether both are about the same heads of the same dump.

        If `heads` are given, only the files of these heads have to be the same.
        """
        if (self.identity, self.heads) != (other.identity, other.heads):
            return False
        if heads is None:
            return self.files == other.files
        folders = {folder for head in heads for folder in self._folders(head)}
        return all(self.files.get(folder) == other.files.get(folder) for folder in folders)

    def _folders(self, head: Head) -> list[str]:
        """The folders of a query head and its key head; none for a head of another run."""
        if head not in self.key_heads:
            return []
        layer, q_head = head
        return [pair.folder for pair in head_pair(layer, q_head, self.key_heads[head])]

    def has_files_of(self, record: dict[str, Any]) -> bool:
        """Whether the record of a head was computed from the files of this run."""
        files = record["files"].items()
        same_files = all(self.files.get(folder) == found for folder, found in files)
        return record.get("dump") == self.identity and same_files

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
