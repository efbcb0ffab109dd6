"""Where heads are computed: an executor of worker processes on this machine, or of Ray tasks.

An engine gets function calls and returns futures, as every `concurrent.futures.Executor` does. The
workers read the dump themselves. All engines give the same results.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from threading import Lock
from typing import IO, Any

from attention_plasticity.run.worker import MEMORY_VARIABLES, THREAD_VARIABLES
from qk_toolkit.errors import ToolkitError

_SECONDS_TO_END = 5.0  # of a process that has closed its connection
_TAIL = 4096  # bytes of the output of a dead process in which its last line is looked for


class WorkerDiedError(ToolkitError):
    """The process of a task died."""


class Engine(Executor):
    """An executor that knows how many tasks it can work on at once."""

    workers: int = 1

    def check(self) -> None:
        """Raise a `ToolkitError` if the engine no longer works. Called every second or so."""


class LocalProcesses(Engine):
    """Worker processes on this machine.

    Every process has a thread here that sends it calls and waits for results. A process that dies
    ends its call with a `WorkerDiedError`; the next call starts a new one. The processes are
    started as commands, not forked, so a script that uses the library needs no `__main__` guard.
    `started` of them are started at once, and import their modules while this process plans.
    """

    def __init__(self, workers: int = 1, started: int = 1) -> None:
        self.workers = workers
        self._lock = Lock()
        self._idle = [_Process() for _ in range(started)]
        self._all = list(self._idle)
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function of a module with these arguments in a process."""
        assert not kwargs, "positional arguments only"
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.workers, "worker")
        return self._threads.submit(self._call, fn, args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, also those that compute."""
        with self._lock:
            self._is_closed = True
            processes, self._all = self._all, []
        for process in processes:
            process.kill()
        if self._threads is not None:
            self._threads.shutdown(wait, cancel_futures=True)
        for process in processes:
            process.close()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        process = self._take()
        try:
            result = process.call(function, arguments)
        except WorkerDiedError:
            self._remove(process)
            raise
        with self._lock:
            self._idle.append(process)
        return result

    def _take(self) -> _Process:
        with self._lock:
            if self._is_closed:
                raise WorkerDiedError("the run has ended")
            if self._idle:
                return self._idle.pop()
            process = _Process()
            self._all.append(process)
            return process

    def _remove(self, process: _Process) -> None:
        with self._lock:
            if process not in self._all:
                return  # `shutdown` ends it
            self._all.remove(process)
        process.kill()
        process.close()


class _Process:
    """A worker process, which runs one call at a time."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._first: Any = None  # argument of the last call
        self._printed: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 (closed by close)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attention_plasticity.run.worker", str(number)],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env=_environment(),
                pass_fds=[number],
                process_group=0,  # Ctrl-C goes to the main process, which ends its workers
            )

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """The result of a call. Raises a `WorkerDiedError` if the process dies.

        The first argument is not sent again if it is that of the last call: a job has all texts.
        """
        first, *others = arguments or (None,)
        is_known, self._first = first is not None and first is self._first, first
        try:
            self._connection.send((function, others if is_known else arguments, is_known))
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerDiedError(self._why_it_died()) from error

    def kill(self) -> None:
        """End the process now."""
        with suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """Wait for the end of a killed process, and release its files."""
        self._process.wait()
        self._connection.close()
        self._printed.close()

    def _why_it_died(self) -> str:
        try:
            code = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:  # it only closed its connection
            self.kill()
            code = self._process.wait()
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _TAIL))
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        last_line = f": {lines[-1]:.300}" if lines else ""
        return f"the worker process died ({_exit_reason(code)}){last_line}"


def _environment() -> dict[str, str]:
    """One thread per worker, and the import path of this process without the current folder."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    single = dict.fromkeys(THREAD_VARIABLES, "1")
    return {**MEMORY_VARIABLES, **os.environ, **single, "PYTHONPATH": path}


def _exit_reason(code: int) -> str:
    if code == -9:
        return "killed, probably out of memory: lower max_workers or max_tokens_per_head"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
