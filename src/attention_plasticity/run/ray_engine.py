"""Computation of heads on a Ray cluster: tasks of one CPU each, behind the same interface."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from attention_plasticity.run.engines import Engine, WorkerDiedError
from attention_plasticity.run.worker import MEMORY_VARIABLES, THREAD_VARIABLES
from qk_toolkit.ray_cluster import connect, death_words, import_ray

_RETRIES = 3  # of a task whose process or node died
_SECONDS_BETWEEN_COUNTS = 10.0  # of the CPUs of the cluster, which can grow and shrink
_SECONDS_BEFORE_NOTE = 30.0  # until a note reports that no task has started


class RayTasks(Engine):
    """Tasks of a running cluster, or of one that is started on this machine."""

    def __init__(self, address: str | None, workers: int, note: Callable[[str], None]) -> None:
        self._ray = import_ray()
        self._connection = connect(self._ray, address, workers, "heads")
        self._node = self._ray.get_runtime_context().get_node_id()  # of this command
        self._note = note
        self._running: dict[Future[Any], Any] = {}  # references of Ray
        self._remote: dict[Callable[..., Any], Any] = {}  # functions as Ray has them
        self._first: Any = None  # argument of the last call
        self._stored: Any = None  # its reference
        self._next_count = 0.0
        self._note_at: float | None = None
        variables = {**MEMORY_VARIABLES, **dict.fromkeys(THREAD_VARIABLES, "1")}
        self._options = {
            "num_cpus": 1,
            "max_retries": _RETRIES,
            "runtime_env": {"env_vars": variables},
        }

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function of a module in a task of the cluster."""
        if self._note_at is None:
            self._note_at = time.monotonic() + _SECONDS_BEFORE_NOTE
        if fn not in self._remote:
            self._remote[fn] = self._ray.remote(**self._options)(fn)
        if args and args[0] is not self._first:
            self._first, self._stored = args[0], self._ray.put(args[0])  # a job has all texts
        stored = [self._stored] if args else []
        reference = self._remote[fn].remote(*stored, *args[1:], **kwargs)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._running[future] = reference
        reference.future().add_done_callback(lambda done: self._finish(future, done))
        return future

    def _finish(self, future: Future[Any], done: Future[Any]) -> None:
        """Pass on a result. The death of a worker or a node becomes a `WorkerDiedError`."""
        self._running.pop(future, None)
        self._note_at = float("inf")
        error, errors = done.exception(), self._ray.exceptions
        if error is None:
            future.set_result(done.result())
        elif isinstance(error, errors.RayTaskError) or not isinstance(error, errors.RayError):
            future.set_exception(error)
        else:
            died = WorkerDiedError(f"{death_words(error)} on the Ray cluster")
            died.__cause__ = error
            future.set_exception(died)

    def check(self) -> None:
        """Count the CPUs of the cluster. Raises an error if the node of this command died.

        Its tasks would never end. After the death of the head Ray ends this process.
        """
        now = time.monotonic()
        if now >= self._next_count:
            dead = (one["NodeID"] for one in self._ray.nodes() if not one["Alive"])
            if self._node in dead:
                raise self._connection.lost("the node of this command died")
            self.workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._next_count = now + _SECONDS_BETWEEN_COUNTS
        if self._note_at is not None and now >= self._note_at:
            self._note("waiting for a free CPU of the Ray cluster")
            self._note_at = float("inf")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks and leave the cluster."""
        for reference in list(self._running.values()):
            try:
                self._ray.cancel(reference, force=True)
            except Exception:  # of a cluster that is gone; Ray has no common class of errors
                break
        self._connection.close()
