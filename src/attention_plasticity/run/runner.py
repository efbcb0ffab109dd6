"""A whole run: prepare, continue, compute, write. And its plan, which `--dry_run` prints.

A head is recorded as soon as it is finished. The tables have the same bytes for any number of
workers, commands and interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from attention_plasticity.config import RunnerConfig
from attention_plasticity.run.at_url import destination, fetch_records
from attention_plasticity.run.compute import Task, compute, tasks_of
from attention_plasticity.run.engines import Engine, LocalProcesses
from attention_plasticity.run.plan import estimate
from attention_plasticity.run.preparation import PlannedRun, prepare
from qk_dump.layout import Dump
from qk_toolkit.formatting import count, format_heads
from qk_toolkit.ray_cluster import import_ray
from qk_toolkit.terminal import command_console, print_line
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


def print_plan(run: PlannedRun) -> None:
    """Print what a run would do. Nothing is written but the copy of records at a URL."""
    console, plan, config = command_console(), run.plan, run.config
    fetch_records(run.place, run.records)
    needed = estimate(run.dump, plan, config)
    print_line(console, "Dump", str(run.dump.path))
    print_line(console, "Layout", str(plan.layout))
    heads, keys = count(len(plan.heads), "query head"), count(len(plan.groups), "key head")
    print_line(console, "To analyse", f"{heads} of {keys}")
    print_line(console, "Not captured", format_heads(plan.not_captured) or "none")
    finished = count(run.total - _left(run, tasks_of(run)), "head")
    print_line(console, "Finished", f"{finished}, with these settings and files")
    print_line(console, "Rows", f"{needed.rows:,} in the files, {needed.rows_used:,} used")
    print_line(console, "Output", run.place.place)
    for name, path in run.place.copies.items():
        print_line(console, "", f"{path} ({name})")
    for problem in needed.problems:
        print_line(console, "Will fail", problem)
    console.print("Nothing was computed or written.")
