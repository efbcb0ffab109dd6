"""Which process runs a batch: order, reservations, deaths. Every `Claims` stands for a process."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qk_sniffer.pipeline.batch_scheduler import longest_first
from qk_sniffer.pipeline.claims import Claims


class Folder:
    """The folder of a capture; `saved` stands for its segments."""

    def __init__(self, path: Path, lengths: list[int]) -> None:
        self.path = path
        self.order = longest_first(lengths, 1)
        self.saved: set[int] = set()
        self.stack = ExitStack()
        (path / ".capture").mkdir(parents=True)
        (path / ".capture" / "plan.json").write_text("{}")

    def process(self, streamed: bool = False) -> Claims:
        order = None if streamed else self.order
        claims = Claims(self.path, lambda: frozenset(self.saved), order)
        self.stack.callback(claims.close)
        return claims

    def finish(self, claims: Claims, number: int) -> None:
        claims.computed(number)
        claims.stored(number)
        self.saved.add(number)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Callable[[list[int]], Folder]]:
    with ExitStack() as stack:

        def made(lengths: list[int]) -> Folder:
            made = Folder(tmp_path, lengths)
            stack.push(made.stack)
            return made

        yield made


def take(claims: Claims, idle: bool = True) -> int | None:
    """Reserve a batch and begin it."""
    number = claims.reserve(idle)
    assert number is None or claims.begin(number)
    return number


def test_the_longest_text_decides_and_equal_ones_keep_their_order() -> None:
    assert longest_first([1, 9, 3, 3, 8, 0, 9], 1) == [1, 6, 4, 2, 3, 0, 5]
    assert longest_first([1, 9, 3, 3, 8, 0, 9], 2) == [0, 3, 2, 1]
    assert longest_first([], 3) == []


def test_a_late_process_takes_what_a_busy_one_has_reserved(
    folder: Callable[[list[int]], Folder],
) -> None:
    place = folder([10, 9, 1])
    early = place.process()
    assert take(early) == 0
    assert early.reserve(idle=False) == 1  # it prepares this batch while it runs the first one
    late = place.process()
    assert late.reserve(idle=True) == 1
    assert late.begin(1)
    assert late.reserve(idle=False) == 2
    assert not early.begin(1)
    assert early.reserve(idle=False) is None  # `late` has reserved the last one
    assert early.reserve(idle=True) == 2
    assert early.begin(2)
    assert not late.begin(2)


def test_processes_that_start_together_prepare_different_batches(
    folder: Callable[[list[int]], Folder],
) -> None:
    place = folder([5, 5, 5])
    first, second = place.process(), place.process()
    assert [first.reserve(idle=True), second.reserve(idle=True)] == [0, 1]
    assert first.begin(0)
    assert second.begin(1)
    streamed = place.process(streamed=True)
    assert [streamed.reserve_this(number) for number in range(3)] == [False, False, True]
    assert first.reserve(idle=True) is None


def test_batches_of_a_dead_process_are_free_unless_they_are_saved(
    folder: Callable[[list[int]], Folder],
) -> None:
    place = folder([9, 8, 7, 6, 5])
    dying, living = place.process(), place.process()
    assert [take(dying), take(living), take(dying), take(dying)] == [0, 1, 2, 3]
    place.finish(dying, 0)
    dying.computed(2)
    dying.stored(2, tokens=70, rows=8)  # its rows were in memory
    assert dying.reserve(idle=False) == 4
    with (dying._own.log).open("a") as log:
        log.write("beg")  # it was writing this line
    dying.close()
    place.finish(living, 1)
    assert not living.given_up
    assert living.wait_for_work(5)
    assert [take(living) for _ in range(4)] == [2, 4, 3, None]  # 3 was in its model: it comes last
    assert sorted(living.stored_elsewhere()) == [(0, 0, 0), (2, 70, 8)]
    for number in (2, 4, 3):
        place.finish(living, number)
    assert not living.wait_for_work(5)


def test_a_batch_of_which_two_processes_died_is_given_up(
    folder: Callable[[list[int]], Folder],
) -> None:
    place = folder([2, 3])
    last = place.process()
    for _ in range(2):
        dying = place.process()
        assert dying.begin(1)
        dying.computed(1)  # its rows waited to be stored when the next batch ended the process
        assert take(dying) == 0 or dying.begin(0)
        dying.close()
    assert take(last) == 1
    place.finish(last, 1)
    assert not last.wait_for_work(2)
    assert last.given_up == [0]
    last.close()
    fresh = place.process()  # the next launch tries it again
    assert not fresh.given_up
    assert take(fresh) == 0


def test_a_process_waits_for_batches_in_progress_and_ends_with_the_dump(
    folder: Callable[[list[int]], Folder],
) -> None:
    place = folder([3, 2])
    waiting, busy = place.process(), place.process()
    assert [take(waiting), take(busy)] == [0, 1]
    place.finish(waiting, 0)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(waiting.wait_for_work(2)))
    thread.start()
    time.sleep(0.5)
    assert not found
    busy.close()  # it died
    thread.join(30)
    assert found == [True]
    assert take(waiting) == 1
    (place.path / ".capture" / "plan.json").unlink()  # another process completed the dump
    assert not waiting.wait_for_work(2)
    assert waiting.reserve(idle=True) is None
    assert not waiting.reserve_this(0)
    assert not (place.path / ".capture").exists()


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=14),
    starts=st.lists(st.integers(0, 30), min_size=2, max_size=3),
)
def test_no_process_ends_earlier_than_the_others_by_more_than_a_batch(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], starts: list[int]
) -> None:
    """A simulation in which a batch takes as long as its text, with processes that start late."""
    place = Folder(tmp_path_factory.mktemp("simulated") / "dump", lengths)
    with place.stack:
        ran: list[int] = []
        ends: dict[int, int] = {}
        processes: dict[int, Claims] = {}
        prepared: dict[int, int | None] = {}
        events = [(start, rank) for rank, start in enumerate(starts)]
        heapq.heapify(events)
        while events:
            now, rank = heapq.heappop(events)
            claims = processes.setdefault(rank, place.process())
            number = prepared.get(rank)
            if number is None or not claims.begin(number):
                number = take(claims)
            ends[rank] = now
            if number is not None:
                ran.append(number)
                prepared[rank] = claims.reserve(idle=False)
                heapq.heappush(events, (now + lengths[number], rank))
        assert sorted(ran) == [*range(len(lengths))]
        started = [ends[rank] for rank in ends if ends[rank] > starts[rank]]
        assert max(started) - min(started) <= max(lengths)
