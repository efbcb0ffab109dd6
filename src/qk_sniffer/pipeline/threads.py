"""Background threads: one prepares the next items, one writes the earlier ones."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

Item = TypeVar("Item")

_END = object()


def prepared_ahead(items: Iterable[Item], depth: int = 2) -> Generator[Item]:
    """The items, prepared in a background thread; at most `depth` of them wait to be used."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(value: object) -> bool:
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
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

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


def one_ahead(items: Iterable[Item]) -> Generator[Item]:
    """The items; while one of them is used, the next one is prepared in a background thread."""
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        coming = pool.submit(next, source, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, source, _END)
            yield cast(Item, item)


class BackgroundWriter:
    """Runs tasks in order in a background thread; at most `depth` of them wait.

    The error of a task is raised by the next `submit` or by `wait`. Later tasks do not run.
    """

    def __init__(self, depth: int = 2) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._pending: deque[Future[None]] = deque()
        self._depth = depth
        self._failed = False

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task; wait while `depth` tasks are queued."""
        while len(self._pending) >= self._depth:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._run, task))

    def wait(self) -> None:
        """Wait until every task is done."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Wait for the running task and drop the queued ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            task()
        except BaseException:
            self._failed = True
            raise
