"""Computes the heads of a run with an engine, and records each when it is finished.

A key head is locked while its query heads are computed, so that several commands can share a
folder: a command skips key heads of other commands, and looks again when it has nothing else to do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from filelock import FileLock

from attention_plasticity.run.engines import Engine, WorkerDiedError
from attention_plasticity.run.fingerprints import head_pair
from attention_plasticity.run.folder import WorkerLog
from attention_plasticity.run.plan import Group, split_groups
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.records import Unit
from attention_plasticity.run.worker import Computed, TaskResult, analyze_heads
from qk_toolkit.errors import OutputError, in_short
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.watcher import Watcher

_TASKS_PER_WORKER = 2  # that are given to the engine, so that no worker waits for this process
_SECONDS_BETWEEN_CHECKS = 1.0
_CHANGED = "its files changed during the run; run the same command again"


@dataclass(frozen=True)
class Task:
    """Some query heads of a key head. One worker computes them."""

    group: Group
    units: dict[int, Unit]  # by query head
    deaths: int = 0  # of workers that computed it

    def only(self, numbers: Iterator[int] | list[int]) -> Task:
        """The task with some of its heads."""
        return replace(self, units={number: self.units[number] for number in numbers})

    @property
    def where(self) -> str:
        """Which heads it computes, for the log."""
        layer, k_head = self.group.layer, self.group.k_head
        return f"layer {layer}, key head {k_head}, query heads {index_ranges(self.units)}"


def tasks_of(run: PlannedRun, workers: int) -> list[Task]:
    """The heads of the run that are not finished, as work for an engine."""
    records = run.records
    groups = []
    for group in run.plan.groups:
        left = [
            q_head
            for q_head in group.q_heads
            if not records.has(run.units[group.layer, q_head, group.k_head])
        ]
        groups += [group.only(left)] if left else []
    return [
        Task(part, {q_head: run.units[part.layer, q_head, part.k_head] for q_head in part.q_heads})
        for part in split_groups(groups, workers)
    ]


def compute(
    run: PlannedRun, tasks: list[Task], engine: Engine, log: WorkerLog, watcher: Watcher
) -> None:
    """Compute tasks and record their heads. Raises an `OutputError` if a record cannot be written.

    If a worker dies, the heads of its task are computed again, each alone. A head fails if its
    worker dies twice then.
    """
    work = _Work(run, tasks, engine, log, watcher)
    with closing(work):
        work.run()
    work.drop_changed()


class _Work:
    def __init__(
        self, run: PlannedRun, tasks: list[Task], engine: Engine, log: WorkerLog, watcher: Watcher
    ) -> None:
        self._run = run
        self._computed: dict[Unit, Group] = {}
        self._records = run.records
        self._engine = engine
        self._log = log
        self._watcher = watcher
        self._waiting = deque(tasks)
        self._running: dict[Future[TaskResult], Task] = {}
        self._locks: dict[tuple[int, int], FileLock] = {}  # of key heads that are computed here
        self._noted = False  # that another command computes some heads

    def run(self) -> None:
        """Compute all tasks."""
        while self._waiting or self._running:
            postponed = self._submit()
            self._engine.check()
            if self._running:
                done, _ = wait(self._running, _SECONDS_BETWEEN_CHECKS, FIRST_COMPLETED)
                for future in done:
                    task = self._running.pop(future)
                    self._finish(future, task)
                    self._release(task.group)
            elif postponed:
                self._note_others(postponed)
                time.sleep(_SECONDS_BETWEEN_CHECKS)
            self._waiting.extend(postponed)

    def close(self) -> None:
        """Release the key heads. After an error, tasks that have not begun are left out."""
        for future in self._running:
            future.cancel()
        for lock in self._locks.values():
            lock.release(force=True)

    def drop_changed(self) -> None:
        """Heads whose input files changed while they were computed become failures."""
        changed = self._run.files.changed() if self._computed else set()
        for unit, group in self._computed.items():
            if not changed.isdisjoint(head_pair(unit.layer, unit.q_head, group.k_head)):
                self._records.drop(unit)
                self._fail(unit, _CHANGED)

    def _lock(self, group: Group) -> bool:
        """Lock a key head for one more task. False if another process has it."""
        key = group.layer, group.k_head
        if key in self._locks:
            self._locks[key].acquire()  # it counts
            return True
        lock = self._records.lock(*key)
        if lock is not None:
            self._locks[key] = lock
        return lock is not None

    def _release(self, group: Group) -> None:
        """One task of the key head has ended."""
        key = group.layer, group.k_head
        self._locks[key].release()
        if not self._locks[key].is_locked:
            del self._locks[key]

    def _submit(self) -> list[Task]:
        """Give tasks to the engine. Returns those whose key head another command computes."""
        postponed = []
        while self._waiting and len(self._running) < _TASKS_PER_WORKER * self._engine.workers:
            task = self._waiting.popleft()
            if not self._lock(task.group):
                postponed.append(task)
                continue
            left = [number for number, unit in task.units.items() if not self._records.has(unit)]
            self._watcher.advance(len(task.units) - len(left))  # another command finished them
            if not left:
                self._release(task.group)
                continue
            group = task.group
            future = self._engine.submit(
                analyze_heads, self._run.job, group.layer, group.k_head, left
            )
            self._running[future] = task.only(left)
        return postponed

    def _finish(self, future: Future[TaskResult], task: Task) -> None:
        try:
            result = future.result()
        except WorkerDiedError as error:
            self._try_again(task, error)
            return
        except Exception as error:  # of Ray, which has no common class of errors
            result = TaskResult([Computed(n, None, in_short(error)) for n in task.units], "")
        self._log.add(task.where, result.printed)
        for one in result.heads:
            unit = task.units[one.number]
            if one.record is None:
                log = self._run.place.shown(self._log.path)
                more = f"; the traceback is in {log}" if one.is_defect else ""
                self._fail(unit, f"{one.reason}{more}")
            else:
                self._records.add(unit, one.record)
                self._computed[unit] = task.group
            self._watcher.advance(failed=int(one.record is None))

    def _try_again(self, task: Task, error: WorkerDiedError) -> None:
        if self._engine.was_interrupted():
            self._waiting.appendleft(task)
            return
        if len(task.units) > 1:  # one of them is the cause
            self._waiting.extendleft(task.only([number]) for number in task.units)
            return
        again = replace(task, deaths=task.deaths + 1)
        if again.deaths < error.attempts:
            self._waiting.appendleft(again)
            return
        for unit in task.units.values():
            self._fail(unit, f"{error}, in {error.attempts} attempts")
            self._watcher.advance(failed=1)

    def _fail(self, unit: Unit, reason: str) -> None:
        with suppress(OutputError):  # the next run tries the head again in any case
            self._records.add_failure(unit, reason)

    def _note_others(self, postponed: list[Task]) -> None:
        if not self._noted:
            number = count(sum(len(task.units) for task in postponed), "head")
            self._watcher.note(f"another command computes {number} of this run; waiting for it")
            self._noted = True
