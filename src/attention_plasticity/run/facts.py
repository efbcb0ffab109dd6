"""What is known about a run before its heads are computed. Shards of a run have the same facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from attention_plasticity.config import PLACEMENT_FIELDS, RunnerConfig, make_config
from attention_plasticity.dump_texts import text_list
from attention_plasticity.head_layout import HeadLayout
from attention_plasticity.run.plan import Plan
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest

Head = tuple[int, int]


@dataclass(frozen=True)
class RunFacts:
    """Settings, input and heads of a run, as values for JSON."""

    name: str  # of the dump
    identity: str  # of its files
    config: dict[str, Any]
    input: dict[str, Any]  # path, place on the Hub, texts and dump.json
    layout: dict[str, Any]
    heads: list[list[int]]  # layer, query head and key head
    not_captured: list[list[int]]

    @classmethod
    def of(cls, dump: Dump, identity: str, plan: Plan, config: RunnerConfig) -> RunFacts:
        """The facts of a run that is about to start."""
        manifest = dump.manifest.model_dump(exclude_none=True) if dump.manifest else None
        return cls(
            name=dump.name,
            identity=identity,
            config=config.model_dump(exclude={"dry_run", "overwrite", *PLACEMENT_FIELDS}),
            input={
                "path": str(dump.path),
                "hub": dump.origin,
                "texts": text_list(dump, equal_texts=config.equal_texts),
                "dump": manifest,
            },
            layout=asdict(plan.layout),
            heads=[list(head) for head in plan.triples],
            not_captured=[list(head) for head in plan.not_captured],
        )

    def is_of_dump(self, other: RunFacts) -> bool:
        """Whether both are about the same heads of the same dump."""
        return self.identity == other.identity and self.heads == other.heads

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

    @property
    def key_heads(self) -> dict[Head, int]:
        """The key head of every (layer, query head)."""
        return {(layer, q_head): k_head for layer, q_head, k_head in self.heads}
