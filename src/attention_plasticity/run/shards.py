"""A shard: one of several commands that compute the heads of one run together.

Every shard computes its own heads and records them. Shards can share one output folder, or have a
folder each. `attention-plasticity merge` makes the tables from the records of all shards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.result import Failure
from attention_plasticity.run.local_engine import EarlyWorkers
from attention_plasticity.run.open_run import HeadsInProgress, compute
from attention_plasticity.run.plan import Group, Plan, split_groups
from attention_plasticity.run.preparation import prepare
from attention_plasticity.run.records import Records, ShardRecord
from attention_plasticity.run.results_at_url import Destination, destination
from attention_plasticity.run.run_settings import run_settings
from attention_plasticity.run.warnings import unnamed_texts
from attention_plasticity.run.worker_log import WorkerLog
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import require_writable
from qk_toolkit.mirror import mirror_folder
from qk_toolkit.parallel import call_after
from qk_toolkit.watcher import Watcher

_SLURM = tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("COUNT", "ID", "MIN"))
_SLURM_STEP = "SLURM_ARRAY_TASK_STEP"


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
