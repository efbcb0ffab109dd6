"""Computation of groups of heads in worker processes on this machine."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Self

from attention_plasticity.measure.result import Failure
from attention_plasticity.run.retries import Retries
from attention_plasticity.run.tasks import Computed, Job, OutOfTasks, Task, TaskQueue
from attention_plasticity.run.worker import (
    MEMORY_VARIABLES,
    MOST_BYTES,
    THREAD_VARIABLES,
    group_name,
    outcome_of,
)

if TYPE_CHECKING:
    from attention_plasticity.run.plan import Group


class EarlyWorkers:
    """Worker processes that start before there is a plan, and import their modules meanwhile.

    One is enough: more would compete with the imports of the main process.
    """

    def __init__(self, count: int = 1) -> None:
        self._idle = [_Worker() for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the workers that were not taken."""
        while self._idle:
            self._idle.pop().stop()

    def take(self) -> _Worker:
        """A started worker, or a new one."""
        return self._idle.pop() if self._idle else _Worker()


def run_local(
    waiting: TaskQueue, workers: int, early: EarlyWorkers | None = None
) -> Generator[Computed | OutOfTasks]:
    """Analyse groups in worker processes and yield each head as it finishes.

    Output that the workers print goes to the log of the job. If a worker is killed, for example out
    of memory, a new worker tries its heads again; a head that was being computed at two kills
    fails. Closing the generator stops the workers.
    """
    retries = Retries()
    with selectors.DefaultSelector() as selector:
        running: list[_Worker] = []
        try:
            while True:
                while waiting.is_open and not waiting:
                    yield OutOfTasks()
                for worker in [worker for worker in running if not worker.busy]:
                    if worker.death is None and waiting:
                        worker.assign(waiting.take())
                    else:
                        selector.unregister(worker.output)
                        worker.stop()
                        running.remove(worker)
                while len(running) < workers and waiting:
                    worker = early.take() if early is not None else _Worker()
                    selector.register(worker.output, selectors.EVENT_READ, worker)
                    worker.assign(waiting.take())
                    running.append(worker)
                if not running:
                    return
                for key, _ in _next_events(selector, waiting):
                    worker = key.data
                    outcomes = worker.receive()
                    if worker.death is not None:
                        job = worker.death.task.job
                        again, failures = worker.death.outcome(retries)
                        outcomes += [Computed(job, failure) for failure in failures]
                        if again is not None:
                            waiting.put_back([Task(job, again)])
                    # the next task first: a worker does not wait while its results are recorded
                    if worker.is_idle and waiting:
                        worker.assign(waiting.take())
                    yield from outcomes
        finally:
            for worker in running:
                worker.stop()


def _next_events(
    selector: selectors.BaseSelector, waiting: TaskQueue
) -> list[tuple[selectors.SelectorKey, int]]:
    """Outputs of workers that can be read. Tasks are prepared until there is one."""
    found = selector.select(timeout=0)
    while not found and waiting.prepare():
        found = selector.select(timeout=0)
    return found or selector.select()


@dataclass(frozen=True)
class _Death:
    """The heads that a worker had not finished when it died, and the reason."""

    task: Task
    pending: tuple[int, ...]
    reason: str
    by_signal: bool

    def outcome(self, retries: Retries) -> tuple[Group | None, list[Failure]]:
        """The heads to compute again, and the failures.

        A process that ends by itself would end again in the same way.
        """
        if self.by_signal and self.pending:
            return retries.after_death(self.task, self.pending, self.reason)
        layer, k_head = self.task.group.layer, self.task.group.k_head
        return None, [Failure(layer, q_head, k_head, self.reason) for q_head in self.pending]


class _Worker:
    """A worker process and its current group."""

    def __init__(self) -> None:
        # opened for appending, so that it can be truncated while the process writes
        self._printed: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 (closed by stop)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "attention_plasticity.run.worker"],
            bufsize=0,  # no buffered data remains if the process dies
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=_worker_environment(),
            process_group=0,  # Ctrl-C goes to the main process, which stops its workers
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self.output: IO[bytes] = self._process.stdout
        self.death: _Death | None = None
        self._job: Job | None = None
        self._task: Task | None = None
        self._pending: list[int] = []
        self._partial: list[bytes] = []  # parts of an incomplete line

    @property
    def busy(self) -> bool:
        return self._task is not None

    @property
    def is_idle(self) -> bool:
        return self._task is None and self.death is None

    def assign(self, task: Task) -> None:
        if task.job is not self._job:
            self._job = task.job
            self._send(task.job.as_message())
        self._task, self._pending = task, list(task.group.q_heads)
        self._send(asdict(task.group))

    def receive(self) -> list[Computed]:
        """Outcomes that have arrived. If the process died, `death` is set."""
        chunk = os.read(self.output.fileno(), 1 << 20)
        if not chunk:
            self.death = self._died()
            return []
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._partial, lines[0]])
            self._partial = []
        self._partial.append(rest)
        found: list[Computed] = []
        for line in lines:
            message = json.loads(line)
            assert self._job is not None
            self._pending.remove(message["content"]["q_head"])
            found.append(Computed(self._job, outcome_of(message, self._job.log)))
        if found and not self._pending:
            self._log_output()
            self._task = None
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._input.close()
        self.output.close()
        self._log_output()
        self._printed.close()

    def _log_output(self) -> bytes:
        """Move the printed output since the last call to the log and return its end."""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - MOST_BYTES))
        text = self._printed.read()
        self._printed.truncate(0)
        if self._job is not None:
            self._job.log.add(group_name(self._task.group if self._task else None), text)
        return text

    def _died(self) -> _Death:
        code = self._process.wait()
        lines = self._log_output().decode(errors="replace").strip().splitlines()
        task, self._task = self._task, None
        assert task is not None
        last_line = f": {lines[-1]:.300}; more is in {task.job.log.path}" if lines else ""
        reason = f"the worker process died ({_exit_reason(code)}){last_line}"
        return _Death(task, tuple(self._pending), reason, by_signal=code < 0)

    def _send(self, content: object) -> None:
        with suppress(BrokenPipeError):  # `receive` detects that the process died
            rest = memoryview(json.dumps(content).encode() + b"\n")
            while rest:  # a signal can interrupt a long write
                rest = rest[self._input.write(rest) :]


def _worker_environment() -> dict[str, str]:
    """One thread per worker, and the import path of this process without the current folder."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    single = dict.fromkeys(THREAD_VARIABLES, "1")
    return {**MEMORY_VARIABLES, **os.environ, **single, "PYTHONPATH": path}


def _exit_reason(code: int) -> str:
    if code == -9:
        return "killed, probably out of memory: lower max_workers or max_tokens_per_head"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
