"""Computation of groups of heads on a Ray cluster."""

from __future__ import annotations

import io
import json
from collections import Counter, deque
from collections.abc import Generator, Iterable
from contextlib import redirect_stderr
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_plasticity.results import Failure
from attention_plasticity.run.retries import ATTEMPTS
from attention_plasticity.run.tasks import Computed, Task
from attention_plasticity.run.worker import (
    MEMORY_VARIABLES,
    THREAD_VARIABLES,
    group_messages,
    outcome_of,
)
from attention_plasticity.run.worker_log import group_name
from qk_toolkit.errors import ConfigError, in_short

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig

_TASKS_PER_CPU = 2  # in the queue of the cluster, so that no CPU waits for this process


def run_ray(tasks: Iterable[Task], config: RunnerConfig) -> Generator[Computed]:
    """Analyse groups as tasks of one CPU each, and yield the heads of each group as it finishes.

    If a worker or a node of the cluster dies, the heads of its tasks are computed again, each in a
    task of its own. A head whose task dies again fails.
    """
    waiting = deque(tasks)
    if not waiting:
        return
    ray = _import_ray()
    started = _connect(ray, config)
    running: dict[Any, Task] = {}
    deaths: Counter[tuple[int, int, int]] = Counter()
    try:
        analyze = _remote(ray)
        most = _TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
        while waiting or running:
            while waiting and len(running) < most:
                task = waiting.popleft()
                job = json.dumps(task.job.as_message())
                running[analyze.remote(job, asdict(task.group))] = task
            (reference, *_), _ = ray.wait(list(running), num_returns=1)
            task = running.pop(reference)
            try:
                messages, printed = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                yield from _failures(task, " ".join(str(error.cause).split()))
                continue
            except ray.exceptions.RayError as error:
                again, failures = _after_death(task, deaths, error)
                waiting.extendleft(again)
                yield from failures
                continue
            log = task.job.log
            log.add(group_name(task.group), printed.encode())
            for message in messages:
                yield Computed(task.job, outcome_of(message, log))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError(
            "engine: ray is not installed; install it with pip install 'attention-plasticity[ray]'"
        ) from error
    return ray


def _connect(ray: Any, config: RunnerConfig) -> bool:
    """Connect to the cluster, or start one on this machine. Returns whether to disconnect."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if config.ray_address is None:
        options |= {"num_cpus": config.workers, "include_dashboard": False}
    try:
        ray.init(address=config.ray_address or "local", **options)
    except Exception as error:  # Ray has no common class for these errors
        raise ConfigError(
            f"ray_address: {config.ray_address or 'local'}: no cluster can be reached "
            f"({in_short(error)})"
        ) from error
    return True


def _remote(ray: Any) -> Any:
    variables = {**MEMORY_VARIABLES, **dict.fromkeys(THREAD_VARIABLES, "1")}
    options = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": variables}}
    return ray.remote(**options)(_analyze)


def _analyze(job: str, group: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Analyse a group in a process of the cluster: the messages of its heads, and its output."""
    dump, config = _opened(job)
    printed = io.StringIO()
    with redirect_stderr(printed):
        messages = list(group_messages(dump, config, group))
    return messages, printed.getvalue()


@lru_cache(maxsize=4)
def _opened(job: str) -> tuple[Any, Any]:
    """The dump and the config, opened once per process."""
    import pyarrow as pa

    from attention_plasticity.config import RunnerConfig
    from qk_dump.source import open_dump

    pa.set_cpu_count(1)
    content = json.loads(job)
    return open_dump(Path(content["dump"])), RunnerConfig(**content["config"])


def _after_death(
    task: Task, deaths: Counter[tuple[int, int, int]], error: Exception
) -> tuple[list[Task], list[Computed]]:
    """The heads of a dead task, each to be computed alone; failures of heads that died alone."""
    job, group = task
    again: list[int] = []
    failed: list[int] = []
    for q_head in group.q_heads:
        head = id(job), group.layer, q_head
        deaths[head] += 1
        (failed if deaths[head] >= ATTEMPTS else again).append(q_head)
    reason = f"its worker in the cluster died, in {ATTEMPTS} attempts: {in_short(error)}"
    failures = _failures(Task(job, group.only(failed)), reason)
    return [Task(job, group.only([q_head])) for q_head in again], failures


def _failures(task: Task, reason: str) -> list[Computed]:
    layer, k_head, q_heads = task.group.layer, task.group.k_head, task.group.q_heads
    return [Computed(task.job, Failure(layer, q_head, k_head, reason)) for q_head in q_heads]
