"""Threads beside the main one: order, bounds, errors, and that none is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import pytest

from qk_sniffer.pipeline import threads
from qk_sniffer.pipeline.threads import BackgroundWriter, one_ahead, prepared_ahead


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def soon(true: Callable[[], bool], seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.002)
    return true()


def test_items_come_in_their_order() -> None:
    assert list(prepared_ahead(range(500))) == list(range(500))
    assert list(prepared_ahead([])) == []
    assert list(prepared_ahead(iter([None, 0, ()]), depth=1)) == [None, 0, ()]


def test_items_are_made_in_another_thread_while_earlier_ones_are_used() -> None:
    made = threading.Event()

    def items() -> Iterator[int]:
        yield threading.get_ident()
        made.set()
        yield threading.get_ident()

    source = prepared_ahead(items())
    first = next(source)
    assert first != threading.get_ident()
    assert made.wait(5)
    assert list(source) == [first]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_the_depth_waits(depth: int) -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    source = prepared_ahead(items(), depth=depth)
    for used in range(1, 4):
        next(source)
        at_most = used + depth + 1  # one more is in the hands of the thread
        assert soon(lambda at_most=at_most: len(made) == at_most)
        time.sleep(0.05)
        assert len(made) == at_most
    source.close()


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("third")

    source = prepared_ahead(items())
    assert next(source) == 1
    assert next(source) == 2
    with pytest.raises(KeyError, match="third"):
        next(source)
    with pytest.raises(StopIteration):
        next(source)


def test_an_interruption_in_the_thread_reaches_the_user() -> None:
    def items() -> Iterator[int]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        list(prepared_ahead(items()))


@pytest.mark.parametrize("used", [0, 1, 3])
def test_closing_early_ends_the_thread(used: int) -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    source = prepared_ahead(endless())
    for _ in range(used):
        next(source)
    source.close()
    assert not any(thread.name == "prepare" for thread in threading.enumerate())


def test_an_error_of_the_user_ends_the_thread() -> None:
    with pytest.raises(ZeroDivisionError), closing(prepared_ahead(range(3, -100, -1))) as source:
        _ = [1 / number for number in source]
    assert not any(thread.name == "prepare" for thread in threading.enumerate())


def test_tasks_run_in_order_in_one_other_thread() -> None:
    done: list[tuple[int, int]] = []
    behind = BackgroundWriter()
    for number in range(50):
        behind.submit(lambda number=number: done.append((number, threading.get_ident())))
    behind.wait()
    assert [number for number, _ in done] == list(range(50))
    assert len({thread for _, thread in done} | {threading.get_ident()}) == 2
    behind.wait()
    behind.close()


@pytest.mark.parametrize("depth", [1, 3])
def test_submitting_waits_while_too_many_are_queued(depth: int) -> None:
    gate = threading.Event()
    done: list[int] = []

    def task(number: int) -> None:
        gate.wait(10)
        done.append(number)

    behind = BackgroundWriter(depth)
    for number in range(depth):
        behind.submit(lambda number=number: task(number))
    submitted = threading.Event()

    def one_more() -> None:
        behind.submit(lambda: task(depth))
        submitted.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert not submitted.wait(0.1)
    assert done == []
    gate.set()
    assert submitted.wait(5)
    thread.join()
    behind.wait()
    assert done == list(range(depth + 1))
    behind.close()


def fail() -> None:
    raise OSError("disk full")


def test_an_error_is_raised_at_wait() -> None:
    behind = BackgroundWriter()
    behind.submit(fail)
    with pytest.raises(OSError, match="disk full"):
        behind.wait()
    behind.close()


def test_an_error_is_raised_at_a_later_submit_and_nothing_runs_after_it() -> None:
    done: list[int] = []
    behind = BackgroundWriter(depth=2)
    behind.submit(lambda: done.append(0))
    behind.submit(fail)
    behind.submit(lambda: done.append(2))
    with pytest.raises(OSError, match="disk full"):
        behind.submit(lambda: done.append(3))
    behind.wait()
    behind.close()
    assert done == [0]


def test_results_of_tasks_are_given_once_and_in_order() -> None:
    behind = BackgroundWriter[int](depth=2)
    found: list[int] = []
    for number in range(20):
        behind.submit(lambda number=number: number)
        found += behind.finished()
    behind.wait()
    found += behind.finished()
    assert found == [*range(20)]
    assert behind.finished() == []
    behind.submit(fail)
    with pytest.raises(OSError, match="disk full"):
        behind.wait()
    behind.close()


def test_nothing_runs_after_an_error_that_nobody_has_seen_yet() -> None:
    done: list[int] = []
    behind = BackgroundWriter(depth=10)
    behind.submit(fail)
    for number in range(5):
        behind.submit(lambda number=number: done.append(number))
    with pytest.raises(OSError, match="disk full"):
        behind.wait()
    behind.close()
    assert done == []


def test_closing_lets_the_running_task_end_and_drops_the_rest() -> None:
    started, done = threading.Event(), []

    def slow() -> None:
        started.set()
        time.sleep(0.1)
        done.append("slow")

    behind = BackgroundWriter(depth=5)
    behind.submit(slow)
    behind.submit(lambda: done.append("dropped"))
    assert started.wait(5)
    behind.close()
    assert done == ["slow"]
    behind.close()


def test_one_item_is_prepared_while_another_is_used() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            yield number

    with closing(one_ahead(items())) as prepared:
        for number in prepared:
            last = min(number + 1, 4)
            assert soon(lambda last=last: made[-1] == last)  # type: ignore[misc]
            time.sleep(0.01)
            assert made[-1] == last
    assert made == [*range(5)]

    def failing() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(one_ahead(failing()))
    with closing(one_ahead(items())) as prepared:
        assert next(prepared) == 0


@pytest.mark.parametrize("ahead", [prepared_ahead, one_ahead])
def test_items_that_never_come_do_not_delay_the_end(
    ahead: Callable[[Iterator[int]], Generator[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_SECONDS_TO_STOP", 0.01)
    came = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        came.wait()

    source = ahead(items())
    assert next(source) == 1
    source.close()  # as after an interruption
    waiting = [one for one in threading.enumerate() if one.name == "prepare"]
    assert [one.daemon for one in waiting] == [True]  # it ends with the process
    came.set()
    waiting[0].join()
