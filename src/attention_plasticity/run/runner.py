"""A whole run: plan, resume, compute, record, write.

A head is recorded as soon as it is finished. The tables have the same bytes for any number of
workers and interruptions. Tables of another run are never mixed with those of this run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from attention_plasticity.config import RunnerConfig
from attention_plasticity.run.engines import make_engine
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.local_engine import EarlyWorkers
from attention_plasticity.run.open_run import OpenRun, compute, open_run
from qk_dump.layout import Dump
from qk_toolkit.errors import ToolkitError
from qk_toolkit.watcher import Watcher


def run_analysis(
    config: RunnerConfig,
    watcher: Watcher | None = None,
    dump: Dump | None = None,
    workers: EarlyWorkers | None = None,
) -> Outcome:
    """Analyse every head of the dump (the config's, unless one is given) and write the tables.

    `workers` were started before, to import their modules meanwhile. Raises a `ToolkitError` when
    nothing can be done; heads that fail are listed in the result.
    """
    watcher = watcher or Watcher()
    with open_run(config, watcher, dump) as run:
        heads = run.heads
        watcher.start("heads", len(heads.triples), len(heads.done))
        engine = make_engine(heads.tasks(), config, workers)
        for _ in compute(engine, {id(heads.job): heads}, watcher):
            pass  # the heads are recorded
        return run.finish(watcher)


@dataclass(frozen=True)
class Refused:
    """A run that could not begin, and the reason."""

    config: RunnerConfig
    reason: ToolkitError


def run_analyses(
    configs: Sequence[RunnerConfig], watcher: Watcher | None = None
) -> Iterator[Outcome | Refused]:
    """Analyse several dumps with one set of workers, and yield each run when it is finished.

    The workers begin with the heads of the next run when those of one run are used up, so that no
    CPU waits for the last heads of a run. A run that cannot begin does not stop the others.
    """
    watcher = watcher or Watcher()
    with ExitStack() as stack:
        runs: dict[int, OpenRun] = {}
        for config in configs:
            try:
                run = stack.enter_context(open_run(config, watcher))
            except ToolkitError as error:
                yield Refused(config, error)
                continue
            runs[id(run.heads.job)] = run
        if not runs:
            return
        yield from _compute_all(runs, configs[0], watcher)


def _compute_all(
    runs: dict[int, OpenRun], config: RunnerConfig, watcher: Watcher
) -> Iterator[Outcome]:
    heads = {key: run.heads for key, run in runs.items()}
    total = sum(len(one.triples) for one in heads.values())
    watcher.start("heads", total, sum(len(one.done) for one in heads.values()))
    tasks = [task for one in heads.values() for task in one.tasks()]
    for key, one in heads.items():
        if not one.remaining:
            yield runs[key].finish(watcher)
    for one in compute(make_engine(tasks, config), heads, watcher):
        if not one.remaining:
            yield runs[id(one.job)].finish(watcher)
