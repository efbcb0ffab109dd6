"""A run that has begun: its heads are recorded as they are computed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial

from attention_plasticity.config import RunnerConfig
from attention_plasticity.measure.result import Failure, HeadResult
from attention_plasticity.read.run_texts import run_texts
from attention_plasticity.read.texts import UNKNOWN_TEXTS, DumpTexts, equal_texts_note
from attention_plasticity.run.engines import make_engine
from attention_plasticity.run.fingerprints import (
    Files,
    Head,
    InputFiles,
    RunFacts,
    joint_fingerprint,
)
from attention_plasticity.run.finish import Outcome, finish_run
from attention_plasticity.run.local_engine import EarlyWorkers
from attention_plasticity.run.outputs import OutputPaths, check_writable, set_aside, tables_locked
from attention_plasticity.run.plan import Plan, split_groups
from attention_plasticity.run.preparation import prepare
from attention_plasticity.run.records import FinishedHeads, Metrics, Records
from attention_plasticity.run.results_at_url import Destination, destination
from attention_plasticity.run.run_info import run_settings
from attention_plasticity.run.tasks import Computed, Job, Task, TaskQueue
from attention_plasticity.run.worker import WorkerLog
from qk_dump.layout import Dump, HeadId
from qk_toolkit.errors import ConfigError
from qk_toolkit.store import call_after
from qk_toolkit.watcher import Watcher


class HeadsInProgress:
    """The heads of a run, or of a shard of it. Finished heads are recorded as they come."""

    def __init__(
        self,
        dump: Dump,
        plan: Plan,
        config: RunnerConfig,
        records: Records,
        log: WorkerLog,
        only: Collection[Head] | None = None,
    ) -> None:
        self.plan = plan
        self.triples = [head for head in plan.triples if only is None or head[:2] in only]
        self.job = Job(dump.path, UNKNOWN_TEXTS, config, log)
        self.done: dict[Head, Metrics] = {}
        self.failures: list[Failure] = []
        self._dump = dump
        self._is_shard = only is not None
        self._records = records
        self._inputs = InputFiles(dump)

    def resume(self, earlier: FinishedHeads, watcher: Watcher) -> None:
        """Keep the heads that an earlier run finished, and find the texts of the dump.

        Raises if the settings of the earlier run differ.
        """
        if earlier.conflict:
            raise ConfigError(earlier.conflict)
        planned = {(layer, q_head) for layer, q_head, _ in self.triples}
        self.done = {head: row for head, row in earlier.metrics.items() if head in planned}
        saved = None if earlier.are_fewer else self._saved_texts()  # other layers may have others
        texts = saved or self._texts_of_dump(watcher)
        if self.done and earlier.texts != {texts.digest}:
            raise self._records.other_texts()
        self.job = replace(self.job, texts=texts)

    def _saved_texts(self) -> DumpTexts | None:
        """The texts that finished heads, of this shard or of others, were computed with."""
        has_heads = bool(self.done) or (self._is_shard and self._records.heads())
        return self._records.saved_texts(self._inputs) if has_heads else None

    def _texts_of_dump(self, watcher: Watcher) -> DumpTexts:
        layers = {layer for layer, _, _ in self.plan.triples}
        show = partial(watcher.show, "heads whose texts are read")
        try:
            return run_texts(self._dump, layers, self.job.config, show)
        except BaseException:  # raised again
            watcher.stop()  # removes the bar
            raise

    def facts(self) -> RunFacts:
        """The facts of this run."""
        config = self.job.config
        return RunFacts.of(self._dump, self._inputs.identity, self.plan, self.texts, config)

    def shard_facts(self) -> RunFacts:
        """The facts of the run of this shard, with the files of the heads of all shards."""
        files = InputFiles(self._dump).files_of_all(self.plan.triples)
        return replace(self.facts(), files=files)

    @property
    def texts(self) -> DumpTexts:
        """The texts of the dump."""
        return self.job.texts

    def save_texts(self) -> None:
        """Record the texts for heads that are computed later, and for other shards."""
        self._records.save_texts(self.texts, self._inputs)

    def recorded(self) -> FinishedHeads:
        """Heads that are recorded with the same settings and input files."""
        wanted = {(layer, q_head) for layer, q_head, _ in self.triples}
        return self._records.finished_heads(self._inputs, wanted)

    @property
    def remaining(self) -> int:
        """Number of heads that are neither finished nor failed."""
        return len(self.triples) - len(self.done) - len(self.failures)

    def tasks(self) -> Iterator[Task]:
        """The missing heads as work for an engine.

        The states of the input files of a task are recorded when an engine takes the task, before a
        worker reads them. So the first head of a dump of many files does not wait for all of them.
        Engines take the other tasks while the first ones are computed.
        """
        own = {(layer, q_head) for layer, q_head, _ in self.triples}
        missing = [
            group.only(q for q in group.q_heads if (group.layer, q) in own)
            for group in self.plan.without(self.done)
        ]
        groups = split_groups([group for group in missing if group.q_heads], self._workers)
        for group in groups:
            self._inputs.record(group.layer, group.q_heads, group.k_head)
            yield Task(self.job, group)

    @property
    def _workers(self) -> int:
        return self.job.config.workers

    def add(self, outcome: HeadResult | Failure) -> None:
        """Record a head that was computed."""
        if isinstance(outcome, Failure):
            self.failures.append(outcome)
        else:
            self._records.add(outcome, self._inputs, self.texts.digest)
            self.done[outcome.layer, outcome.q_head] = outcome.metrics

    def drop_changed(self) -> None:
        """Heads whose input files changed during the run become failures."""
        changed = self._inputs.changed()
        for layer, q_head, k_head in self.triples:
            files = {HeadId(layer, q_head, "q"), HeadId(layer, k_head, "k")}
            if (layer, q_head) in self.done and not changed.isdisjoint(files):
                self._records.drop(layer, q_head)
                del self.done[layer, q_head]
                reason = "its files changed during the run; run the same command again"
                self.failures.append(Failure(layer, q_head, k_head, reason))

    def files(self) -> Files:
        """The files of the finished heads."""
        return self._inputs.files_of_all(head for head in self.triples if head[:2] in self.done)


class OpenRun:
    """A run whose folder is locked by this process."""

    def __init__(
        self,
        dump: Dump,
        plan: Plan,
        paths: OutputPaths,
        config: RunnerConfig,
        records: Records,
        target: Destination,
    ) -> None:
        self._paths = paths
        self._config = config
        self._records = records
        self._target = target
        self._began = time.monotonic()
        self.heads = HeadsInProgress(dump, plan, config, records, WorkerLog(paths.log))

    def resume(self, watcher: Watcher) -> None:
        """Keep heads that an earlier run finished, and move tables of other runs away."""
        earlier = FinishedHeads({}) if self._config.overwrite else self.heads.recorded()
        self.heads.resume(earlier, watcher)
        done = self.heads.done
        self._records.begin(discard=not done)
        self.heads.save_texts()
        keep = set_aside(self._paths, include_own=not done)
        self.heads.job.log.begin()
        for note in earlier.notes:
            watcher.note(note)
        if self._config.equal_texts:
            watcher.note(equal_texts_note(self.heads.texts))
        if keep:
            watcher.note(f"files of an earlier run were moved to {self._paths.shown(keep)}")
        if done:
            total = len(self.heads.triples)
            watcher.note(f"{len(done)} of {total} heads were finished earlier and are kept")

    def finish(self, watcher: Watcher) -> Outcome:
        """Write the tables and run.json, and send them if they belong to a URL."""
        log = self.heads.job.log
        if log.written:
            watcher.note(f"messages of the workers are in {self._paths.shown(log.path)}")
        self.heads.drop_changed()
        outcome = finish_run(
            self.heads.facts(),
            self._paths,
            self.heads.done,
            self._records.load,
            self.heads.failures,
            joint_fingerprint(self.heads.files()),
            time.monotonic() - self._began,
        )
        self._target.finish()
        return outcome


@contextmanager
def open_run(config: RunnerConfig, watcher: Watcher, dump: Dump | None = None) -> Iterator[OpenRun]:
    """Lock the folder of a run and keep the heads that an earlier run finished."""
    dump, plan, paths = prepare(config, watcher, dump)
    check_writable(paths)
    for note in plan.notes:
        watcher.note(note)
    records = Records(paths.folder, run_settings(config, plan.layout, dump), paths.place)
    target = Destination()
    with ExitStack() as locks:
        locks.enter_context(tables_locked(paths))
        records.lock()
        locks.callback(records.release)
        try:
            with destination(paths, watcher) as target:
                run = OpenRun(dump, plan, paths, config, records, target)
                run.resume(watcher)
                target.begin()
                yield run
        finally:
            call_after(target.threads, locks.pop_all().close)


def compute(heads: HeadsInProgress, workers: EarlyWorkers | None, watcher: Watcher) -> None:
    """Compute the missing heads of a run, and record each when it is finished."""
    engine = make_engine(TaskQueue(heads.tasks()), heads.job.config, workers, watcher.note)
    try:
        with closing(engine):
            for computed in engine:
                if isinstance(computed, Computed):
                    heads.add(computed.outcome)
                    watcher.advance(failed=int(isinstance(computed.outcome, Failure)))
    finally:
        watcher.stop()
