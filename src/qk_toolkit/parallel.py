"""Requests at the same time, in threads that never delay the end of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")


def for_each(action: Callable[[Item], object], items: Iterable[Item], most_threads: int) -> None:
    """Call `action` for every item, several at a time. The first error is raised.

    After an error no call begins, and the calls in progress are completed. An interruption does
    not wait for them: a server that does not answer would delay it.
    """
    waiting: SimpleQueue[Item] = SimpleQueue()
    for item in items:
        waiting.put(item)
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            while True:
                action(waiting.get_nowait())
        except Empty:
            ended.put(None)
        except BaseException as error:  # raised in the thread of the caller
            _empty(waiting)
            ended.put(error)

    threads = [Thread(target=work, daemon=True) for _ in range(min(most_threads, waiting.qsize()))]
    try:
        for thread in threads:
            thread.start()
        errors = [error for error in [ended.get() for _ in threads] if error is not None]
    except BaseException:  # raised again
        _empty(waiting)
        raise
    if errors:
        raise errors[0]


def call_after(threads: Iterable[Thread], action: Callable[[], object]) -> None:
    """Call `action` when the threads have ended: now, or in a thread that waits for them.

    The end of the process is not delayed.
    """
    running = [thread for thread in threads if thread.is_alive()]

    def wait() -> None:
        for thread in running:
            thread.join()
        action()

    if running:
        Thread(target=wait, name="wait", daemon=True).start()
    else:
        action()


def _empty(queue: SimpleQueue[Item]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass
