"""Background threads: one prepares the next items, one writes the earlier ones."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END = object()
_SECONDS_TO_STOP = 2.0
"""How long the end of a capture waits for texts that are being read.

A dataset that gives no texts for a long time does not delay an interruption. Its thread ends with
the process.
"""


def prepared_ahead(items: Iterable[Item]) -> Generator[Item]:
    """The items; while one of them is used, the next one is made in a background thread."""
    ready: queue.Queue[Any] = queue.Queue()
    wanted = threading.Semaphore(1)  # how many items may be made before one is used
    stopped = threading.Event()

    def produce() -> None:
        source = iter(items)
        try:
            while wanted.acquire() and not stopped.is_set():
                item = next(source, _END)
                ready.put((item, None))
                if item is _END:
                    return
        except BaseException as error:  # raised in the thread that uses the items
            ready.put((_END, error))

    thread = threading.Thread(target=produce, name="prepare", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            wanted.release()
            yield item
    finally:
        stopped.set()
        wanted.release()
        thread.join(_SECONDS_TO_STOP)


class BackgroundWriter(Generic[Result]):
    """Runs tasks in order in a background thread; at most `depth` of them wait.

    The error of a task is raised by the next call of another method.
    """

    def __init__(self, depth: int = 2) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._pending: deque[Future[Result]] = deque()
        self._results: list[Result] = []
        self._depth = depth

    def submit(self, task: Callable[[], Result]) -> None:
        """Queue a task; wait while `depth` tasks are queued."""
        while len(self._pending) >= self._depth:
            self._collect()
        self._pending.append(self._pool.submit(task))

    def finished(self) -> list[Result]:
        """The results of the tasks that have ended since the last call."""
        while self._pending and self._pending[0].done():
            self._collect()
        results, self._results = self._results, []
        return results

    def wait(self) -> None:
        """Wait until every task is done."""
        while self._pending:
            self._collect()

    def close(self) -> None:
        """Wait for the running task and drop the queued ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _collect(self) -> None:
        self._results.append(self._pending.popleft().result())
