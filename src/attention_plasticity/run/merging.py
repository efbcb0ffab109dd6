"""Tables of a run whose heads were computed by shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from attention_plasticity.head.result import Failure, HeadResult
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
from attention_plasticity.run.records import Metrics, Records, ShardRecord
from attention_plasticity.run.results_at_url import destination, fetch_records
from attention_plasticity.run.run_settings import settings_difference
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved, user_path
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher

NOT_COMPUTED = "no shard has computed this head"


def merge_shards(places: Sequence[Path | str], output_dir: Path | str | None = None) -> Outcome:
    """Make the tables of a run from the records in the folders of its shards.

    The tables are written to the first folder, or to `output_dir`. Each of them can be a URL. Heads
    that no shard computed are failures of the outcome.
    """
    target = output_dir or places[0]
    folders = [_folder(place) for place in places]
    merged = _Merged.read(folders, [str(place) for place in places])
    config = {**merged.facts.config, "output_dir": str(target)}
    facts = replace(merged.facts, config=config)
    paths = output_paths(facts.settings, facts.name)
    refuse_reserved(paths)
    check_writable(paths)
    failures = merged.failures()
    if not merged.done:
        raise ConfigError(f"{places[0]}: no shard has finished a head; run the shards again")
    with ExitStack() as stack:
        stack.enter_context(tables_locked(paths))
        for folder in {resolved(folder): folder for folder in (*folders, paths.folder)}.values():
            records = Records(folder, {})
            records.lock()
            stack.callback(records.release)
        sending = stack.enter_context(destination(paths, Watcher()))
        Records(paths.folder, merged.records[0].settings, paths.place).begin_merged(
            facts, merged.done
        )
        sending.begin()
        set_aside(paths, include_own=False)
        outcome = finish_run(
            facts,
            paths,
            merged.done,
            merged.load,
            failures,
            joint_fingerprint(merged.files),
            sum(shard.seconds for shard in merged.shards),
        )
        sending.finish()
        return outcome


def _folder(place: Path | str) -> Path:
    """The folder with the records of shards. Records at a URL are fetched."""
    if not is_remote(place):
        return user_path(place)
    return fetch_records(str(place))


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
    def read(cls, folders: Sequence[Path], places: Sequence[str]) -> _Merged:
        """Read the folders. Raises a `ConfigError` if they belong to different runs."""
        opened = [Records.of_shards(*one) for one in zip(folders, places, strict=True)]
        facts = opened[0].facts()
        merged = cls(facts, opened, [], {}, {}, {})
        for records in opened:
            difference = settings_difference(opened[0].settings, records.settings)
            if difference:
                raise ConfigError(f"{records.place}: differs from {places[0]} in {difference}")
            if not records.facts().is_of_dump(facts):
                raise _other_dump(records.place, places[0])
            merged.shards.extend(records.shards())
            merged._add(records)
        return merged

    def _add(self, records: Records) -> None:
        for head, record in records.usable():
            if head not in self.facts.key_heads:
                continue
            if not self.facts.has_files_of(record):
                raise _other_dump(f"{records.place}: layer {head[0]}, head {head[1]}", "others")
            known = self.done.get(head)
            if known is not None and repr(known) != repr(record["metrics"]):
                raise ConfigError(
                    f"{records.place}: layer {head[0]}, head {head[1]} has other results here than "
                    "in another folder; remove one of them"
                )
            self.files.update(record["files"])
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


def _other_dump(where: str, other: str) -> ConfigError:
    return ConfigError(
        f"{where}: was computed from another dump than {other}, or from other texts of it. Use one "
        "dump for all shards. If files were repaired, run all shards again; they keep the heads "
        "whose files are the same. If this does not help, remove the folders of the shards first."
    )
