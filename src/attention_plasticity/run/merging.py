"""Tables of a run whose heads were computed by shards.

A shard: one of several commands that compute the heads of one run together. Every shard computes
its own heads and records them. Shards can share one output folder, or have a folder each.
`attention-plasticity merge` makes the tables from the records of all shards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from attention_plasticity.config import RunnerConfig
from attention_plasticity.measure.result import Failure, HeadResult
from attention_plasticity.run.fingerprints import Files, Head, RunFacts, joint_fingerprint
from attention_plasticity.run.finish import Outcome, finish_run
from attention_plasticity.run.local_engine import EarlyWorkers
from attention_plasticity.run.open_run import HeadsInProgress, compute
from attention_plasticity.run.outputs import (
    check_writable,
    output_paths,
    refuse_reserved,
    set_aside,
    tables_locked,
)
from attention_plasticity.run.plan import Group, Plan, split_groups
from attention_plasticity.run.preparation import prepare
from attention_plasticity.run.records import Metrics, Records, ShardRecord
from attention_plasticity.run.results_at_url import Destination, destination, fetch_records
from attention_plasticity.run.run_info import run_settings, settings_difference
from attention_plasticity.run.warnings import unnamed_texts
from attention_plasticity.run.worker import WorkerLog
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import require_writable, resolved, user_path
from qk_toolkit.mirror import mirror_folder
from qk_toolkit.store import call_after
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher

NOT_COMPUTED = "no shard has computed this head"
_SLURM = tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("COUNT", "ID", "MIN"))
_SLURM_STEP = "SLURM_ARRAY_TASK_STEP"


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


@dataclass(frozen=True)
class Shard:
    """The number of a shard, and the number of all shards."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"

    @property
    def name(self) -> str:
        """`shard-003-of-008`, for names of files."""
        return f"shard-{self.index:03d}-of-{self.count:03d}"

    def share(self, plan: Plan) -> list[Group]:
        """The groups of this shard. All shards together have every head once."""
        return split_groups(list(plan.groups), self.count)[self.index :: self.count]


@dataclass(frozen=True)
class ShardOutcome:
    """The result of a shard."""

    shard: Shard
    place: str  # folder or URL
    finished: int  # heads of this shard
    failures: list[Failure]
    recorded: int  # heads of the run that are recorded in the folder, by any shard
    heads: int  # of the run


def shard_of(config: RunnerConfig, environment: Mapping[str, str] = os.environ) -> Shard:
    """The shard from the settings, else from the variables of a Slurm array."""
    count, index = config.num_shards, config.shard_index
    if count is None and index is None:
        try:
            size, number, first = (int(environment[name]) for name in _SLURM)
            step = int(environment.get(_SLURM_STEP, "1")) or 1
        except (KeyError, ValueError) as error:
            raise ConfigError(
                "engine: shards needs num_shards and shard_index, or the variables of a Slurm array"
            ) from error
        count, index = size, (number - first) // step
    if count is None or index is None:
        missing = "num_shards" if count is None else "shard_index"
        raise ConfigError(f"{missing}: is missing; give num_shards and shard_index together")
    if not 0 <= index < count:
        raise ConfigError(f"shard_index: expected 0 to {count - 1}, got {index}")
    return Shard(index, count)


def run_shard(
    config: RunnerConfig, watcher: Watcher | None = None, workers: EarlyWorkers | None = None
) -> ShardOutcome:
    """Compute and record the heads of one shard. Heads that are recorded already are kept."""
    watcher = watcher or Watcher()
    shard = shard_of(config)
    if config.overwrite:
        raise ConfigError(
            "overwrite: a shard cannot discard the work of other shards; remove the output_dir"
        )
    dump, plan, paths = prepare(config, watcher)
    if paths.url is not None:  # shards of one machine do not share the copy of the results
        paths = replace(paths, folder=mirror_folder(paths.url, shard.name))
    require_writable(paths.folder / "x", "Choose another output_dir.")
    records = Records(paths.folder, run_settings(config, plan.layout, dump), paths.place)
    records.lock_shard(shard.name)
    own = {(group.layer, q_head) for group in shard.share(plan) for q_head in group.q_heads}
    target = Destination()
    try:
        with destination(paths, watcher, own) as target:
            log = WorkerLog(paths.folder / f"workers-{shard.name}.log")
            log.begin()
            heads = HeadsInProgress(dump, plan, config, records, log, own)
            heads.resume(heads.recorded(), watcher)
            records.begin_shard(heads.shard_facts())
            heads.save_texts()
            if heads.texts.problem is not None:
                watcher.note(unnamed_texts(heads.texts.problem, heads.texts.count))
            target.begin()
            _compute(shard, heads, records, watcher, workers)
            here = len(records.heads())
            target.finish()
            recorded = here if target.recorded is None else target.recorded
            failures, finished = heads.failures, len(heads.done)
            return ShardOutcome(shard, paths.place, finished, failures, recorded, len(plan.heads))
    finally:
        call_after(target.threads, records.release)


def _compute(
    shard: Shard,
    heads: HeadsInProgress,
    records: Records,
    watcher: Watcher,
    workers: EarlyWorkers | None,
) -> None:
    """Compute the missing heads of a shard and record them."""
    began = time.monotonic()
    watcher.start(f"heads of {shard}", len(heads.triples), len(heads.done))
    compute(heads, workers, watcher)
    heads.drop_changed()
    records.add_shard(shard.name, ShardRecord(heads.failures, time.monotonic() - began))
