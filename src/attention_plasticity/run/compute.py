"""Computes the key heads of a run with an engine, and records each when it is finished."""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from attention_plasticity.run.engines import Engine, WorkerDiedError
from attention_plasticity.run.plan import Group
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.record import packed
from attention_plasticity.run.records import Unit
from attention_plasticity.run.worker import Computed, analyze_key_head, failed_group
from qk_toolkit.errors import in_short
from qk_toolkit.watcher import Watcher

_TASKS_PER_WORKER = 2  # that are given to the engine, so that no worker waits for this process
_SECONDS_BETWEEN_CHECKS = 1.0


@dataclass(frozen=True)
class Task:
    """Query heads of a key head. One worker computes them."""

    group: Group
    unit: Unit
    again: bool  # there is a record that is damaged, or in which heads are missing or failed


def tasks_of(run: PlannedRun) -> list[Task]:
    """The key heads of the run that are not finished, as work for an engine.

    A record of other query heads of the key head is replaced by one that has them too.
    """
    tasks = []
    for group in run.plan.groups:
        unit = run.unit(group)
        record = run.records.read(unit)
        heads = set(group.q_heads)
        if record is not None:
            if heads <= set(record.q_heads):
                continue
            heads |= {*record.q_heads, *(failure.q_head for failure in record.failures)}
        whole = Group(group.layer, group.k_head, tuple(sorted(heads)))
        tasks.append(Task(whole, unit, run.records.exists(unit)))
    return tasks


def compute(run: PlannedRun, tasks: list[Task], engine: Engine, watcher: Watcher) -> None:
    """Compute tasks and record them. Raises an `OutputError` if a record cannot be written.

    If a worker dies, the heads of its task fail; the next command tries them again.
    """
    waiting, running = deque(tasks), dict[Future[Computed], Task]()
    try:
        while waiting or running:
            while waiting and len(running) < _TASKS_PER_WORKER * engine.workers:
                task = waiting.popleft()
                if not task.again and run.records.exists(task.unit):  # by another command
                    watcher.advance(len(task.group.q_heads))
                    continue
                group = task.group
                what = run.job, group.layer, group.k_head, group.q_heads, task.unit.files
                running[engine.submit(analyze_key_head, *what)] = task
            engine.check()
            for future in wait(running, _SECONDS_BETWEEN_CHECKS, FIRST_COMPLETED).done:
                _finish(run, future, running.pop(future), watcher)
    finally:
        for future in running:
            future.cancel()


def _finish(run: PlannedRun, future: Future[Computed], task: Task, watcher: Watcher) -> None:
    group = task.group
    try:
        found = future.result()
    except Exception as error:  # of Ray, which has no common class of errors
        reason = str(error) if isinstance(error, WorkerDiedError) else in_short(error)
        failed = failed_group(group.layer, group.k_head, group.q_heads, reason)
        found = Computed(packed(failed), len(group.q_heads))
    run.records.add(task.unit, found.content)
    watcher.advance(len(group.q_heads) - found.failed)
    watcher.advance(found.failed, failed=found.failed)
