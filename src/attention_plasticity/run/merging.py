"""Tables of a run whose heads were computed by shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from attention_plasticity.results import Failure, HeadResult
from attention_plasticity.run.facts import Head, RunFacts
from attention_plasticity.run.fingerprints import Files, joint_fingerprint
from attention_plasticity.run.finish import Outcome, finish_run
from attention_plasticity.run.outputs import (
    check_writable,
    output_paths,
    refuse_reserved,
    set_aside,
    tables_locked,
)
from attention_plasticity.run.records import Metrics, Records, ShardRecord, settings_difference
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved

NOT_COMPUTED = "no shard has computed this head"


def merge_shards(folders: Sequence[Path], output_dir: Path | None = None) -> Outcome:
    """Make the tables of a run from the records in the folders of its shards.

    The tables are written to the first folder, or to `output_dir`. Heads that no shard computed are
    failures of the outcome.
    """
    merged = _Merged.read(folders)
    target = output_dir or folders[0]
    config = merged.facts.settings.model_copy(update={"output_dir": str(target)})
    paths = output_paths(config, merged.facts.name)
    refuse_reserved(paths)
    check_writable(paths)
    failures = merged.failures()
    if not merged.done:
        raise ConfigError(f"{folders[0]}: no shard has finished a head; run the shards again")
    with ExitStack() as stack:
        stack.enter_context(tables_locked(paths))
        for folder in {resolved(folder): folder for folder in (*folders, target)}.values():
            records = Records(folder, {})
            records.lock()
            stack.callback(records.release)
        set_aside(paths, include_own=False)
        return finish_run(
            merged.facts,
            paths,
            merged.done,
            merged.load,
            failures,
            joint_fingerprint(merged.files),
            sum(shard.seconds for shard in merged.shards),
        )


@dataclass(frozen=True)
class _Merged:
    """The records of all shards of a run."""

    facts: RunFacts
    records: list[Records]
    shards: list[ShardRecord]
    done: dict[Head, Metrics]
    files: Files
    places: dict[Head, Records]

    @classmethod
    def read(cls, folders: Sequence[Path]) -> _Merged:
        """Read the folders. Raises a `ConfigError` if they belong to different runs."""
        opened = [Records.of_shards(folder) for folder in folders]
        facts = opened[0].facts()
        merged = cls(facts, opened, [], {}, {}, {})
        for folder, records in zip(folders, opened, strict=True):
            difference = settings_difference(opened[0].settings, records.settings)
            if difference:
                raise ConfigError(f"{folder}: differs from {folders[0]} in {difference}")
            if records.facts().heads != facts.heads:
                raise ConfigError(f"{folder}: has other heads than {folders[0]}; use one dump")
            merged.shards.extend(records.shards())
            merged._add(records, folder)
        return merged

    def _add(self, records: Records, folder: Path) -> None:
        for head, record in records.usable():
            if head not in self.facts.key_heads:
                continue
            known = self.done.get(head)
            if known is not None and repr(known) != repr(record["metrics"]):
                raise ConfigError(
                    f"{folder}: layer {head[0]}, head {head[1]} has other results here than in "
                    "another folder; remove one of them"
                )
            for name, files in record["files"].items():
                if self.files.setdefault(name, files) != files:
                    raise ConfigError(
                        f"{folder}: {name} was computed from other files than in another shard; "
                        "use one dump for all shards"
                    )
            self.done[head] = record["metrics"]
            self.places[head] = records

    def load(self, layer: int, q_head: int) -> HeadResult:
        """Read the record of a head."""
        return self.places[layer, q_head].load(layer, q_head)

    def failures(self) -> list[Failure]:
        """Heads that failed in a shard, and heads that no shard has computed."""
        reasons = {
            (failure.layer, failure.q_head): failure.reason
            for shard in self.shards
            for failure in shard.failures
        }
        return [
            Failure(layer, q_head, k_head, reasons.get((layer, q_head), NOT_COMPUTED))
            for (layer, q_head), k_head in sorted(self.facts.key_heads.items())
            if (layer, q_head) not in self.done
        ]
