"""Chunks: their size and order, who runs which, and texts with which processes ended.

Every `Work` stands for a process. Its batches are made, but the model is not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from qk_sniffer.capture.description import capture_plan
from qk_sniffer.capture.folder import CaptureFolder, open_capture
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.segments import Segment, read_segments, saved_chunks
from qk_sniffer.capture.setup import Setup, prepare
from qk_sniffer.capture.work import Step, Work
from qk_sniffer.config import make_config

LENGTHS = [30, 10, 40, 0, 20, 50, 5]


def setup_of(model: Path, texts: Path, batch_size: int = 1, **dataset: Any) -> Setup:
    config = make_config(
        dataset={"path": str(texts), **dataset},
        model={"name": str(model)},
        output={"data_root": "unused"},
        inference={"batch_size": batch_size},
        capture={"sampler": {"type": "all"}, "layers": [0], "heads": [0]},
    )
    return prepare(config, Ranks())


@pytest.fixture(scope="module")
def setup(model: Path, texts: Path) -> Setup:
    return setup_of(model, texts)


class Processes:
    """Processes of a capture in one folder."""

    def __init__(self, folder: Path, size: int = 1) -> None:
        self.folder, self.size = folder, size
        self.captures: list[CaptureFolder] = []
        self.stack = ExitStack()

    def start(self, setup: Setup) -> Work:
        capture = open_capture(self.folder, capture_plan(setup), self.size)
        self.captures.append(capture)
        work = Work(setup, capture)
        self.stack.callback(capture.close)
        self.stack.callback(work.close)
        return work


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path / "dump")
    with started.stack:
        yield started


def begin(step: Step) -> list[int]:
    """Put a batch into the model; its texts."""
    step.claim.begin(step.batch)
    return step.batch.texts.examples.tolist()


def run(work: Work) -> list[list[int]]:
    """Run all that a process can, without rows; the texts of every batch."""
    found = []
    for step in work.steps():
        found.append(begin(step))
        step.claim.add(step.batch, {})
    return found


def die(work: Work) -> None:
    """End as a killed process does: the files that name texts stay."""
    for claim in work._claims:
        claim._running.clear()
    work.close()


@pytest.mark.parametrize("size", [1, 3, 9])
def test_processes_run_every_text_once(setup: Setup, processes: Processes, size: int) -> None:
    processes.size = size
    first, second = processes.start(setup), processes.start(setup)
    steps = first.steps()
    held = next(steps)
    assert 5 in begin(held) or size > 1
    others = run(second)
    held.claim.add(held.batch, {})
    ran = [held.batch.texts.examples.tolist()]
    for step in steps:
        ran.append(begin(step))
        step.claim.add(step.batch, {})
    texts = sorted(text for batch in ran + others for text in batch)
    assert texts == [0, 1, 2, 4, 5, 6]  # text 3 is empty
    seen: list[Segment] = []
    assert not first.wait(lambda: seen.extend(first.saved_by_others()))
    assert {example.example_id for segment in seen for example in segment.examples} >= {
        text for batch in others for text in batch
    }
    assert first.num_chunks == -(-len(LENGTHS) // size) == len(saved_chunks(processes.folder))
    saved = [one for segment in read_segments(processes.folder) for one in segment.examples]
    assert [one.example_id for one in saved] == [*range(len(LENGTHS))]
    assert first.saw_others


def test_a_text_of_a_batch_is_run_again_then_alone_then_left_out(
    model: Path, texts: Path, processes: Processes
) -> None:
    setup, groups = setup_of(model, texts, batch_size=3), []
    for _ in range(2):
        work = processes.start(setup)
        groups.append(begin(next(work.steps())))
        die(work)
    assert groups == [[4, 5], [4, 5]]  # the longest text is 5; 3 has no tokens
    work = processes.start(setup)
    steps = work.steps()
    alone = [next(steps) for _ in range(3)]
    assert [step.batch.texts.examples.tolist() for step in alone] == [[], [4], [5]]
    assert [step.alone for step in alone] == [False, True, True]
    for step in alone[:2]:
        begin(step)
        step.claim.add(step.batch, {})
    begin(alone[2])
    die(work)
    last = processes.start(setup)
    assert last.left_out == [5]
    assert sorted(text for batch in run(last) for text in batch) == [0, 1, 2, 4, 6]
    [segment] = [one for one in read_segments(processes.folder) if one.left_out]
    assert segment.left_out == [5]
    assert [one.example_id for one in segment.examples] == [3, 4, 5]
    assert run(processes.start(setup)) == []
    ended = processes.folder / ".capture" / "ended.json"
    assert json.loads(ended.read_text()) == {"4": 2, "5": 3}
    ended.unlink()
    assert run(processes.start(setup)) == [[4, 5]]  # it is tried again


def test_an_ordinary_end_counts_for_no_text(setup: Setup, processes: Processes) -> None:
    work = processes.start(setup)
    begin(next(work.steps()))
    work.close()
    again = processes.start(setup)
    assert again.capture.ended() == {}
    assert len(run(again)) == len(LENGTHS)


def test_texts_that_come_after_the_end_of_a_capture_remove_no_segment(
    setup: Setup, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in a thread, which may still wait for them when another process continues."""
    late, other = processes.start(setup), processes.start(setup)
    between = type(setup.texts).between

    def slow(texts: Any, start: int, end: int) -> list[Any]:
        monkeypatch.undo()
        late.close()
        run(other)
        return between(texts, start, end)

    monkeypatch.setattr(type(setup.texts), "between", slow)
    assert list(late.steps()) == []
    assert saved_chunks(processes.folder) == {*range(len(LENGTHS))}


def test_a_damaged_or_unfinished_segment_is_run_again(setup: Setup, processes: Processes) -> None:
    run(processes.start(setup))
    place = processes.folder / ".capture" / "segments"
    (place / "00002" / "segment.json").write_text("{")
    (place / ".00004.part-77-ab").mkdir()
    (place / "00004" / "segment.json").unlink()
    work = processes.start(setup)
    assert work.texts_done == len(LENGTHS) - 2
    assert run(work) == [[2], [4]]
    assert not list(place.glob(".*"))
