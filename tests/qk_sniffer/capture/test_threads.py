"""Threads beside the main one: order, bounds, errors, and that none is left."""

import threading

import pytest

from qk_sniffer.capture import threads
from qk_sniffer.capture.threads import BackgroundWriter, prepared_ahead
from waiting import PATIENCE


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_comes_after_the_items_before_it(error):
    def items():
        yield 1
        yield 2
        raise error("third")

    source = prepared_ahead(items())
    assert next(source) == 1
    assert next(source) == 2
    with pytest.raises(error, match="third"):
        next(source)
    with pytest.raises(StopIteration):
        next(source)


@pytest.mark.parametrize("used", [0, 3])
def test_closing_early_ends_the_thread(used):
    def endless():
        number = 0
        while True:
            yield number
            number += 1

    source = prepared_ahead(endless())
    for _ in range(used):
        next(source)
    source.close()
    assert not any(thread.name == "prepare" for thread in threading.enumerate())


def test_submitting_waits_while_too_many_are_queued():
    depth = 3
    gate = threading.Event()
    done = []

    def task(number):
        gate.wait(PATIENCE)
        done.append(number)

    behind = BackgroundWriter(depth)
    for number in range(depth):
        behind.submit(lambda number=number: task(number))
    submitted = threading.Event()

    def one_more():
        behind.submit(lambda: task(depth))
        submitted.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert not submitted.wait(0.1)
    assert done == []
    gate.set()
    assert submitted.wait(PATIENCE)
    thread.join()
    behind.wait()
    assert done == list(range(depth + 1))
    behind.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        behind.wait()
    behind.close()


def test_items_that_never_come_do_not_delay_the_end(monkeypatch):
    monkeypatch.setattr(threads, "_SECONDS_TO_STOP", 0.01)
    asked, came = threading.Event(), threading.Event()

    def items():
        yield 1
        asked.set()
        came.wait()

    source = prepared_ahead(items())
    assert next(source) == 1
    assert asked.wait(PATIENCE)
    source.close()  # as after an interruption
    waiting = [one for one in threading.enumerate() if one.name == "prepare"]
    assert [one.daemon for one in waiting] == [True]  # it ends with the process
    came.set()
    waiting[0].join()
