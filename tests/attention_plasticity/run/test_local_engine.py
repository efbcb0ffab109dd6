"""Worker processes: all work is done once, and a death is an outcome, not an end.

Heads have 1,000 rows: with fewer, every new worker imports scipy.stats, which takes 0.6 s.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from attention_plasticity.config import RunnerConfig, make_config
from attention_plasticity.measure.result import Failure, HeadResult
from attention_plasticity.read.texts import UNKNOWN_TEXTS
from attention_plasticity.run.local_engine import EarlyWorkers, _worker_environment, run_local
from attention_plasticity.run.plan import Group, make_plan
from attention_plasticity.run.tasks import Computed, Job, Task, TaskQueue
from attention_plasticity.run.worker import THREAD_VARIABLES, WorkerLog
from dumps import make_dump
from qk_dump.source import open_dump


def run(
    dump: Path,
    groups: Iterable[Group],
    config: RunnerConfig,
    workers: int,
    early: EarlyWorkers | None = None,
) -> Generator[HeadResult | Failure]:
    """The outcomes of one job."""
    job = Job(dump, UNKNOWN_TEXTS, config, WorkerLog(dump.with_name("workers.log")))
    tasks = TaskQueue(Task(job, group) for group in groups)
    with closing(run_local(tasks, workers, early)) as computed:
        for found in computed:
            assert isinstance(found, Computed)
            assert found.job is job
            yield found.outcome


def children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def test_no_work_starts_no_process(tmp_path: Path) -> None:
    before = children()
    assert list(run(tmp_path, [], make_config(), 4)) == []
    assert children() == before


def test_workers_that_start_before_the_plan_are_used_and_ended(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=1, q_heads=4, k_heads=2, n=1000))
    config = make_config(max_workers=2)
    groups = make_plan(dump, config).groups
    before = children()
    with EarlyWorkers(2) as workers:
        started = children() - before
        assert len(started) == 2
        outcomes = list(run(dump.path, groups[:1], config, 2, early=workers))
        assert len(outcomes) == 2
        assert children() - before < started  # the one that was used has ended
    assert children() == before


def test_an_open_queue_asks_for_tasks_while_its_last_ones_are_computed(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=2, q_heads=2, k_heads=1, n=1000))
    config = make_config()
    job = Job(dump.path, UNKNOWN_TEXTS, config, WorkerLog(tmp_path / "workers.log"))
    coming = [Task(job, group) for group in make_plan(dump, config).groups]
    assert len(coming) > 1
    number, tasks, before = len(coming), TaskQueue(is_open=True), children()
    heads, asked, working = [], 0, []
    with closing(run_local(tasks, 1)) as engine:
        for found in engine:
            if isinstance(found, Computed):
                heads.append(found.outcome.q_head)
                continue
            asked += 1
            working.append(len(children() - before))
            if coming:
                tasks.add([coming.pop()])
            else:
                tasks.is_open = False
    assert asked == number + 1
    assert working == [0] + [1] * number  # the worker computes meanwhile, and is kept
    assert len(heads) == 4
    assert children() == before


def test_leaving_early_ends_the_workers(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=2, q_heads=4, k_heads=2, n=1000))
    before = children()
    outcomes = run(dump.path, make_plan(dump, make_config()).groups, make_config(), 2)
    next(outcomes)
    assert len(children() - before) == 2
    outcomes.close()
    assert children() == before


def test_the_heads_of_a_killed_worker_are_computed_again(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path, layers=3, q_heads=2, k_heads=1, n=4000, d=32))
    config = make_config()
    before = children()
    outcomes = run(dump.path, make_plan(dump, config).groups, config, 1)
    found = [next(outcomes)]
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)
    found += list(outcomes)
    assert all(isinstance(outcome, HeadResult) for outcome in found)
    heads = [(layer, head) for layer in range(3) for head in range(2)]
    assert sorted((outcome.layer, outcome.q_head) for outcome in found) == heads


def test_a_head_that_kills_two_workers_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = open_dump(make_dump(tmp_path / "dump", layers=2, q_heads=3, k_heads=1, n=1000))
    lethal = (  # the workers import this file at their start
        "import os, attention_plasticity.head_analysis as module\n"
        "original = module.measure_head\n"
        "def measure(group, q_head, *rest):\n"
        "    if (group.layer, q_head) == (1, 1):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return original(group, q_head, *rest)\n"
        "module.measure_head = measure\n"
    )
    (tmp_path / "sitecustomize.py").write_text(lethal)
    monkeypatch.syspath_prepend(tmp_path)
    config = make_config()
    outcomes = list(run(dump.path, make_plan(dump, config).groups, config, 2))
    (failure,) = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert (failure.layer, failure.q_head) == (1, 1)
    assert failure.reason.endswith("max_tokens_per_head), in 2 attempts")
    assert len({(outcome.layer, outcome.q_head) for outcome in outcomes}) == len(outcomes) == 6


def test_a_worker_does_not_wait_until_its_results_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = open_dump(make_dump(tmp_path / "dump", layers=2, q_heads=1, k_heads=1, n=1000))
    marking = (
        "import attention_plasticity.head_analysis as module\n"
        "original = module.measure_head\n"
        "def measure(group, q_head, queries, dump):\n"
        "    (dump.path.parent / f'began-{group.layer}').touch()\n"
        "    return original(group, q_head, queries, dump)\n"
        "module.measure_head = measure\n"
    )
    (tmp_path / "sitecustomize.py").write_text(marking)
    monkeypatch.syspath_prepend(tmp_path)
    config = make_config()
    outcomes = run(dump.path, make_plan(dump, config).groups, config, 1)
    next(outcomes)  # nothing more is taken
    deadline = time.monotonic() + 60
    while not (tmp_path / "began-1").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(list(outcomes)) == 1


def test_a_dump_that_vanishes_is_the_reason_of_its_heads(tmp_path: Path) -> None:
    group = Group(layer=0, k_head=0, q_heads=(0, 1))
    outcomes = list(run(tmp_path / "gone", [group], make_config(), 1))
    assert [outcome.q_head for outcome in outcomes] == [0, 1]
    for outcome in outcomes:
        assert isinstance(outcome, Failure)
        assert "gone: does not exist" in outcome.reason


def test_a_worker_has_one_thread_also_if_the_user_asks_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers use all cores already; more threads would wait for each other."""
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "7")
    environment = _worker_environment()
    assert {environment[name] for name in THREAD_VARIABLES} == {"1"}
