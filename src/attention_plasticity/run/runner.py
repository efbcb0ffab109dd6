"""A whole run: prepare, continue, compute, write.

A head is recorded as soon as it is finished. The tables have the same bytes for any number of
workers, commands and interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from attention_plasticity.config import RunnerConfig
from attention_plasticity.run.at_url import destination
from attention_plasticity.run.compute import Task, compute, tasks_of
from attention_plasticity.run.engines import Engine, LocalProcesses
from attention_plasticity.run.preparation import PlannedRun, prepare
from qk_dump.layout import Dump
from qk_toolkit.formatting import count
from qk_toolkit.ray_cluster import import_ray
from qk_toolkit.watcher import Watcher

if TYPE_CHECKING:
    from attention_plasticity.run.write import Outcome


def run_analysis(
    config: RunnerConfig,
    watcher: Watcher | None = None,
    dump: Dump | None = None,
    engine: Engine | None = None,
) -> Outcome:
    """Analyse every head of the dump (the config's, unless one is given) and write the tables.

    Without an engine, that of the config is used. Raises a `ToolkitError` when nothing can be done;
    heads that fail are listed in the result.
    """
    watcher, began = watcher or Watcher(), time.monotonic()
    if config.engine == "ray":
        import_ray()  # raises if it is not installed
    run = prepare(config, watcher, dump, writes=True)
    with ExitStack() as stack:
        target = stack.enter_context(destination(run.place, run.records))
        run.records.begin()
        tasks = tasks_of(run)
        done = run.total - _left(run, tasks)
        if done:
            finished = f"{done:,} of {count(run.total, 'head')}"
            watcher.note(f"{finished} were finished earlier and are kept")
        target.begin()
        if tasks:
            engine = engine or stack.enter_context(_make_engine(config, watcher.note))
            _compute(run, tasks, engine, watcher, done)
        target.collect()
        from attention_plasticity.run.write import write_run  # slow to import

        outcome = write_run(run, time.monotonic() - began)
        target.finish()
    return outcome


def _make_engine(config: RunnerConfig, note: Callable[[str], None]) -> Engine:
    """The engine of the config. `note` gets messages for the user."""
    if config.engine == "ray":
        from attention_plasticity.run.ray_engine import RayTasks

        return RayTasks(config.ray_address, config.workers, note)
    return LocalProcesses(config.workers)


def _compute(
    run: PlannedRun, tasks: list[Task], engine: Engine, watcher: Watcher, done: int
) -> None:
    watcher.start("heads", done + sum(len(task.group.q_heads) for task in tasks), done)
    try:
        engine.check()  # counts the CPUs of a cluster
        compute(run, tasks, engine, watcher)
    except KeyboardInterrupt:
        watcher.stop()
        finished = run.total - _left(run, tasks_of(run))
        watcher.note(f"{finished:,} of {count(run.total, 'head')} are finished")
        raise
    finally:
        watcher.stop()


def _left(run: PlannedRun, tasks: list[Task]) -> int:
    """Number of heads of this command that are not finished."""
    keys = {(task.group.layer, task.group.k_head) for task in tasks}
    return sum((layer, k_head) in keys for layer, _, k_head in run.plan.triples)
