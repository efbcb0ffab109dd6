"""Computation of groups of heads on a Ray cluster."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import redirect_stderr, suppress
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attention_plasticity.measure.result import Failure
from attention_plasticity.run.retries import ATTEMPTS
from attention_plasticity.run.tasks import Computed, OutOfTasks, Task, TaskQueue
from attention_plasticity.run.worker import (
    MEMORY_VARIABLES,
    THREAD_VARIABLES,
    OpenJob,
    group_messages,
    group_name,
    open_job,
    outcome_of,
)
from qk_toolkit.ray_cluster import Connection, connect, death_words, import_ray

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig

_TASKS_PER_CPU = 2  # in the queue of the cluster, so that no CPU waits for this process
_NODE_ATTEMPTS = 5  # the death of a node is rarely the fault of the head
_SECONDS_BETWEEN_COUNTS = 10.0  # of the CPUs of the cluster, which can grow and shrink
_SECONDS_BETWEEN_CHECKS = 1.0  # of the connection to the cluster
_SECONDS_BEFORE_NOTE = 30.0  # until a note reports that no CPU of the cluster is free


def run_ray(
    waiting: TaskQueue,
    config: RunnerConfig,
    note: Callable[[str], None] = lambda text: None,
) -> Generator[Computed | OutOfTasks]:
    """Analyse groups as tasks of one CPU each, and yield the heads of each group as it finishes.

    If a worker or a node of the cluster dies, the heads of its tasks are computed again, each in a
    task of its own. A head fails if its worker dies twice in such a task, or its node five times.
    `note` gets a message if the cluster has no free CPU for a while. Raises a `ClusterLostError` if
    the cluster no longer answers.
    """
    while waiting.is_open and not waiting:
        yield OutOfTasks()
    if not waiting:
        return
    ray = import_ray()
    connection = connect(ray, config.ray_address, config.workers, "heads")
    running: dict[Any, Task] = {}
    jobs: dict[int, str] = {}  # messages by the number of the job
    deaths = _Deaths(ray)
    token = uuid.uuid4().hex  # workers of a long session open the dump again for every run
    try:
        start = _Start(ray, note)
        analyze, places = _remote(ray, _analyze), _Places(ray, connection)
        while running or waiting or waiting.is_open:
            while waiting.is_open and not waiting:
                yield OutOfTasks()
            while len(running) < places.number() and waiting:
                task = waiting.take()
                number = task.job.number
                if number not in jobs:
                    jobs[number] = json.dumps({**task.job.as_message(), "run": token})
                running[analyze.remote(jobs[number], asdict(task.group))] = task
            for reference in _finished(ray, running, waiting, start, connection):
                task = running.pop(reference)
                try:
                    messages, printed = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    yield from _failures(task, " ".join(str(error.cause).split()))
                    continue
                except ray.exceptions.RayError as error:
                    if connection.was_interrupted():  # the heads are not the cause
                        waiting.put_back([task])
                        continue
                    again, failures = deaths.after(task, error)
                    waiting.put_back(again)
                    yield from failures
                    continue
                log = task.job.log
                log.add(group_name(task.group), printed.encode())
                for message in messages:
                    yield Computed(task.job, outcome_of(message, log))
    except ConnectionError as error:  # of a cluster at ray://HOST:PORT
        raise connection.lost(str(error)) from error
    finally:
        for reference in running:
            with suppress(ConnectionError):
                ray.cancel(reference, force=True)
        connection.close()


def _remote(ray: Any, function: Callable[..., Any]) -> Any:
    variables = {**MEMORY_VARIABLES, **dict.fromkeys(THREAD_VARIABLES, "1")}
    options = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": variables}}
    return ray.remote(**options)(function)


def _analyze(job: str, group: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Analyse a group in a process of the cluster: the messages of its heads, and its output."""
    printed = io.StringIO()
    with redirect_stderr(printed):
        messages = list(group_messages(_opened(job), group))
    return messages, printed.getvalue()


@lru_cache(maxsize=4)
def _opened(job: str) -> OpenJob:
    """The job, whose dump is opened once per process."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    return open_job(json.loads(job))


class _Places:
    """How many tasks are given to the cluster at once."""

    def __init__(self, ray: Any, connection: Connection) -> None:
        self._ray = ray
        self._connection = connection
        self._number = 0
        self._next_count = 0.0

    def number(self) -> int:
        """The number of tasks, from the CPUs that the cluster had a few seconds ago or less."""
        now = time.monotonic()
        if now >= self._next_count:
            self._connection.was_interrupted()  # the next line would wait without end
            cpus = int(self._ray.cluster_resources().get("CPU", 1))
            self._number = _TASKS_PER_CPU * max(1, cpus)
            self._next_count = now + _SECONDS_BETWEEN_COUNTS
        return self._number


class _Start:
    """Notes if the cluster has no free CPU: a task that does nothing does not end in time."""

    def __init__(self, ray: Any, note: Callable[[str], None]) -> None:
        self._ray = ray
        self._note = note
        self._first: Any = _remote(ray, _do_nothing).remote()
        self._end = time.monotonic() + _SECONDS_BEFORE_NOTE

    def check(self) -> None:
        """Note if there was no free CPU for a while since the start."""
        if self._first is None:
            return
        found, _ = self._ray.wait([self._first], timeout=0)
        is_late = time.monotonic() >= self._end
        if is_late and not found:
            self._note("waiting for a free CPU of the Ray cluster")
        if found or is_late:
            self._first = None


def _do_nothing() -> None:
    pass


def _finished(
    ray: Any,
    running: dict[Any, Task],
    waiting: TaskQueue,
    start: _Start,
    connection: Connection,
) -> list[Any]:
    """The tasks that have finished; at least one. Tasks are prepared until there is one."""
    references = list(running)
    found, _ = ray.wait(references, num_returns=len(references), timeout=0)
    while not found and waiting.prepare():
        found, _ = ray.wait(references, num_returns=len(references), timeout=0)
    while not found:
        connection.check()
        start.check()
        found, _ = ray.wait(references, num_returns=1, timeout=_SECONDS_BETWEEN_CHECKS)
    return list(found)


class _Deaths:
    """Decides which heads are computed again after the death of a worker or a node.

    The death of a task of several heads counts for none of them, because only one is the cause.
    They are computed again, each alone, and further deaths count.
    """

    def __init__(self, ray: Any) -> None:
        errors = ray.exceptions
        self._of_nodes = (errors.NodeDiedError, errors.ObjectLostError)
        self._workers: Counter[tuple[int, int, int]] = Counter()
        self._nodes: Counter[tuple[int, int, int]] = Counter()

    def after(self, task: Task, error: Exception) -> tuple[list[Task], list[Computed]]:
        """The heads of a dead task, each to be computed alone; a failure after too many deaths."""
        deaths, most = self._workers, ATTEMPTS
        if isinstance(error, self._of_nodes):
            deaths, most = self._nodes, _NODE_ATTEMPTS
        job, group = task
        if len(group.q_heads) == 1:
            head = job.number, group.layer, group.q_heads[0]
            deaths[head] += 1
            if deaths[head] >= most:
                reason = f"{death_words(error)}, in {most} attempts on the Ray cluster"
                return [], _failures(task, reason)
        return [Task(job, group.only([q_head])) for q_head in group.q_heads], []


def _failures(task: Task, reason: str) -> list[Computed]:
    layer, k_head, q_heads = task.group.layer, task.group.k_head, task.group.q_heads
    return [Computed(task.job, Failure(layer, q_head, k_head, reason)) for q_head in q_heads]
