"""Worker processes: all work is done once, and a death is an outcome, not an end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from attention_plasticity.config import make_config
from attention_plasticity.results import Failure, HeadResult
from attention_plasticity.run.engines import EarlyWorkers, run_local
from attention_plasticity.run.plan import Group, make_plan
from dumps import make_dump
from qk_dump.source import open_dump


def children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def test_every_head_comes_out_once(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=3, q_heads=4, k_heads=2, n=60))
    config = make_config()
    groups = make_plan(dump, config).groups
    outcomes = list(run_local(dump.path, groups, config, 2))
    assert all(isinstance(outcome, HeadResult) for outcome in outcomes)
    heads = sorted((outcome.layer, outcome.q_head) for outcome in outcomes)
    assert heads == [(layer, head) for layer in range(3) for head in range(4)]


def test_no_work_starts_no_process(tmp_path: Path) -> None:
    before = children()
    assert list(run_local(tmp_path, [], make_config(), 4)) == []
    assert children() == before


def test_workers_that_start_before_the_plan_are_used_and_ended(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=4, k_heads=2, n=60))
    config = make_config(max_workers=2)
    groups = make_plan(dump, config).groups
    before = children()
    with EarlyWorkers(2) as workers:
        started = children() - before
        assert len(started) == 2
        outcomes = list(run_local(dump.path, groups[:1], config, 2, early=workers))
        assert len(outcomes) == 2
        assert children() - before < started  # the one that was used has ended
    assert children() == before


def test_leaving_early_ends_the_workers(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=2, q_heads=4, k_heads=2, n=60))
    before = children()
    outcomes = run_local(dump.path, make_plan(dump, make_config()).groups, make_config(), 2)
    next(outcomes)
    assert len(children() - before) == 2
    outcomes.close()  # type: ignore[attr-defined]
    assert children() == before


def test_a_dead_worker_fails_its_group_and_is_replaced(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=3, q_heads=2, k_heads=1, n=4000, d=32))
    config = make_config()
    before = children()
    outcomes = run_local(dump.path, make_plan(dump, config).groups, config, 1)
    first = next(outcomes)
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)
    rest = list(outcomes)
    failures = [outcome for outcome in rest if isinstance(outcome, Failure)]
    assert len(rest) == 5
    assert isinstance(first, HeadResult)
    assert failures
    assert all("out of memory" in failure.reason for failure in failures)
    assert {failure.layer for failure in failures} != {0, 1, 2}


def test_a_dump_that_vanishes_is_told_with_the_workers_last_words(tmp_path: Path) -> None:
    group = Group(layer=0, k_head=0, q_heads=(0, 1))
    outcomes = list(run_local(tmp_path / "gone", [group], make_config(), 1))
    assert [outcome.q_head for outcome in outcomes] == [0, 1]
    for outcome in outcomes:
        assert isinstance(outcome, Failure)
        assert "exit code 1" in outcome.reason
        assert "does not exist" in outcome.reason
