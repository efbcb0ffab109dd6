"""Work beside the main thread: preparing what comes next, writing what came before."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")

_END = object()


def prepared_ahead(items: Iterable[Item], depth: int = 2) -> Generator[Item]:
    """The items, made in another thread while earlier ones are used; at most `depth` wait."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def offer(value: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(value, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not offer((item, None)):
                    return
            offer((_END, None))
        except BaseException as error:
            offer((_END, error))

    thread = threading.Thread(target=produce, name="prepare", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()
        thread.join()


class OneBehind:
    """Runs tasks in order in another thread, with at most `depth` of them waiting.

    An error of a task is raised at the next `submit` or at `wait`; tasks after it do not run.
    """

    def __init__(self, depth: int = 2) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._pending: deque[Future[None]] = deque()
        self._depth = depth
        self._failed = False

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task, waiting while too many are queued."""
        while len(self._pending) >= self._depth:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._run, task))

    def wait(self) -> None:
        """Return when every task is done."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Let the running task end and drop the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            task()
        except BaseException:
            self._failed = True
            raise
