"""Computation of groups of heads in worker processes on this machine."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from attention_plasticity.results import Failure, HeadResult
from attention_plasticity.run.worker import MEMORY_VARIABLES, THREAD_VARIABLES
from attention_plasticity.run.worker_log import MOST_BYTES, WorkerLog
from qk_toolkit.formatting import index_ranges

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
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
        for worker in self._idle:
            worker.stop()

    def take(self) -> _Worker:
        """A started worker, or a new one."""
        return self._idle.pop() if self._idle else _Worker()


def run_local(
    dump: Path,
    groups: Iterable[Group],
    config: RunnerConfig,
    workers: int,
    log: WorkerLog | None = None,
    early: EarlyWorkers | None = None,
) -> Generator[HeadResult | Failure]:
    """Analyse groups in worker processes and yield each head as it finishes.

    Output that the workers print goes to `log`. If a worker dies, for example out of memory, the
    heads of its group fail and a new worker starts. Closing the generator stops the workers.
    """
    waiting = deque(groups)

    def new_worker() -> _Worker:
        worker = early.take() if early is not None else _Worker()
        worker.prepare(dump, config, log)
        return worker

    with selectors.DefaultSelector() as selector:
        running: list[_Worker] = []
        try:
            while waiting and len(running) < workers:
                running.append(_start(new_worker(), waiting.popleft(), selector))
            while running:
                for key, _ in selector.select():
                    worker: _Worker = key.data
                    yield from worker.receive()
                    if worker.busy:
                        continue
                    if worker.alive and waiting:
                        worker.assign(waiting.popleft())
                        continue
                    selector.unregister(worker.output)
                    worker.stop()
                    running.remove(worker)
                    if waiting:
                        running.append(_start(new_worker(), waiting.popleft(), selector))
        finally:
            for worker in running:
                worker.stop()


def _start(worker: _Worker, group: Group, selector: selectors.BaseSelector) -> _Worker:
    selector.register(worker.output, selectors.EVENT_READ, worker)
    worker.assign(group)
    return worker


class _Worker:
    """A worker process and its current group."""

    def __init__(self) -> None:
        self._log: WorkerLog | None = None
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
        self.alive = True
        self._group: Group | None = None
        self._pending: list[int] = []
        self._partial: list[bytes] = []  # parts of an incomplete line

    def prepare(self, dump: Path, config: RunnerConfig, log: WorkerLog | None) -> None:
        self._log = log
        self._send({"dump": str(dump), "config": config.model_dump()})

    @property
    def busy(self) -> bool:
        return self._group is not None

    def assign(self, group: Group) -> None:
        self._group, self._pending = group, list(group.q_heads)
        self._send(asdict(group))

    def receive(self) -> Iterator[HeadResult | Failure]:
        """Outcomes that have arrived. If the process died, failures of its remaining heads."""
        chunk = os.read(self.output.fileno(), 1 << 20)
        if not chunk:
            yield from self._died()
            return
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._partial, lines[0]])
            self._partial = []
        self._partial.append(rest)
        for line in lines:
            message = json.loads(line)
            if message["kind"] == "end":
                self._log_output()
                self._group = None
                continue
            content = message["content"]
            self._pending.remove(content["q_head"])
            if message["kind"] == "defect" and self._log is not None:
                content["reason"] += f"; the traceback is in {self._log.path}"
            yield HeadResult(**content) if message["kind"] == "result" else Failure(**content)

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
        if self._log is not None:
            self._log.add(_group_name(self._group), text)
        return text

    def _died(self) -> Iterator[Failure]:
        self.alive = False
        code = self._process.wait()
        lines = self._log_output().decode(errors="replace").strip().splitlines()
        group, self._group = self._group, None
        assert group is not None
        last_line = f": {lines[-1]:.300}" if lines else ""
        if lines and self._log is not None:
            last_line += f"; more is in {self._log.path}"
        reason = f"the worker process died ({_exit_reason(code)}){last_line}"
        for q_head in self._pending:
            yield Failure(group.layer, q_head, group.k_head, reason)

    def _send(self, content: object) -> None:
        with suppress(BrokenPipeError):  # `receive` detects that the process died
            self._input.write(json.dumps(content).encode() + b"\n")


def _worker_environment() -> dict[str, str]:
    """One thread per worker, and the import path of this process without the current folder."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    single = dict.fromkeys(THREAD_VARIABLES, "1")
    return {**MEMORY_VARIABLES, **os.environ, **single, "PYTHONPATH": path}


def _group_name(group: Group | None) -> str:
    if group is None:
        return "between two groups of heads"
    heads = index_ranges(group.q_heads)
    return f"layer {group.layer}, key head {group.k_head}, query heads {heads}"


def _exit_reason(code: int) -> str:
    if code == -9:
        return "killed, probably out of memory: lower max_workers or max_tokens_per_head"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
