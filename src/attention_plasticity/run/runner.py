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
from attention_plasticity.run.folder import WorkerLog
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
    records, log = run.records, WorkerLog(run.place.log)
    with ExitStack() as stack:
        target = stack.enter_context(destination(run.place, records, watcher))
        records.begin()
        tasks = tasks_of(run, config.workers)
        _note_records(run, tasks, watcher)
        target.begin()
        if tasks:
            engine = engine or stack.enter_context(_make_engine(config, watcher.note))
            _compute(run, tasks, engine, log, watcher)
        target.collect()
        from attention_plasticity.run.write import write_run  # slow to import

        outcome = write_run(run, time.monotonic() - began)
        _note_other_records(run, watcher)
        target.finish()
    return outcome


def _make_engine(config: RunnerConfig, note: Callable[[str], None]) -> Engine:
    """The engine of the config. `note` gets messages for the user."""
    if config.engine == "ray":
        from attention_plasticity.run.ray_engine import RayTasks

        return RayTasks(config.ray_address, config.workers, note)
    return LocalProcesses(config.workers)


def _compute(
    run: PlannedRun, tasks: list[Task], engine: Engine, log: WorkerLog, watcher: Watcher
) -> None:
    log.begin()
    watcher.start("heads", run.total, run.total - sum(len(task.units) for task in tasks))
    try:
        engine.check()  # counts the CPUs of a cluster
        compute(run, tasks, engine, log, watcher)
    except KeyboardInterrupt:
        watcher.stop()
        left = sum(not run.records.exists(unit) for task in tasks for unit in task.units.values())
        watcher.note(f"{run.total - left:,} of {count(run.total, 'head')} are finished")
        raise
    finally:
        watcher.stop()
    if log.written:
        watcher.note(f"messages of the workers are in {run.place.shown(log.path)}")


def _note_records(run: PlannedRun, tasks: list[Task], watcher: Watcher) -> None:
    """What an earlier command has left in the folder."""
    done = run.total - sum(len(task.units) for task in tasks)
    if done:
        watcher.note(f"{done:,} of {count(run.total, 'head')} were finished earlier and are kept")


def _note_other_records(run: PlannedRun, watcher: Watcher) -> None:
    """Say that there are records of other settings and files."""
    planned = list(run.units.values())
    if run.is_part:
        planned += run.records.units()  # of heads that were not fetched
    others = run.records.others(planned)
    if others and not run.is_part:
        watcher.note(
            f"{count(len(others), 'record')} of other settings or files: kept in "
            f"{run.place.folder / '.heads'}"
        )
