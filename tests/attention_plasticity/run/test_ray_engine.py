"""Heads computed on a real Ray cluster of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import attention_plasticity as ap
from attention_plasticity.results import Failure, HeadResult
from attention_plasticity.run.plan import Group, make_plan
from attention_plasticity.run.ray_engine import run_ray
from attention_plasticity.run.runner import run_analysis
from attention_plasticity.run.tasks import Job, Task
from attention_plasticity.run.worker_log import WorkerLog
from dumps import make_dump
from qk_dump.source import open_dump

ray = pytest.importorskip("ray")

LETHAL = """
import os
import attention_plasticity.head_analysis as module
original = module._analyze_query_head

def analyze(dump, layer, q_head, *rest):
    if "lethal" in str(dump.path) and (layer, q_head) == (1, 1):
        os.kill(os.getpid(), 9)
    if "lethal" in str(dump.path) and (layer, q_head) == (0, 3):
        raise ZeroDivisionError("a defect")
    return original(dump, layer, q_head, *rest)

module._analyze_query_head = analyze
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cluster for all tests, as its start takes seconds.

    Its workers import a file that kills them at one head of dumps with a certain name.
    """
    extra = tmp_path_factory.mktemp("extra")
    (extra / "sitecustomize.py").write_text(LETHAL)
    path = os.pathsep.join([str(extra), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()


def computed(dump: Path, groups: Iterable[Group], log: WorkerLog) -> list[HeadResult | Failure]:
    """The outcomes of one job."""
    job = Job(dump, ap.make_config(), log)
    return [outcome for _, outcome in run_ray([Task(job, group) for group in groups], job.config)]


def test_tables_are_the_same_as_without_ray(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=2, q_heads=4, k_heads=2, n=200)
    words = {"dataset_local_root": str(dump), "max_workers": 2}
    one = run_analysis(ap.make_config(words, output_dir=str(tmp_path / "a"), engine="ray"))
    two = run_analysis(ap.make_config(words, output_dir=str(tmp_path / "b")))
    assert len(one.metrics) == 8
    (tmp_path / "b" / ".heads" / "l01h02.json").unlink()  # a run continues under any engine
    again = run_analysis(ap.make_config(words, output_dir=str(tmp_path / "b"), engine="ray"))
    for run in (two, again):
        for path, other in zip(one.paths.tables.values(), run.paths.tables.values(), strict=True):
            assert path.read_bytes() == other.read_bytes()


def test_a_head_that_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path / "lethal", layers=2, q_heads=4, k_heads=1, n=60))
    log = WorkerLog(tmp_path / "log")
    outcomes = computed(dump.path, make_plan(dump, ap.make_config()).groups, log)
    assert len({(outcome.layer, outcome.q_head) for outcome in outcomes}) == len(outcomes) == 8
    failures = {
        (outcome.layer, outcome.q_head): outcome.reason
        for outcome in outcomes
        if isinstance(outcome, Failure)
    }
    assert failures.keys() == {(1, 1), (0, 3)}
    assert "died, in 2 attempts" in failures[1, 1]
    assert "ZeroDivisionError('a defect')" in failures[0, 3]
    assert "ZeroDivisionError: a defect" in log.path.read_text()


def test_a_dump_that_the_cluster_cannot_read_is_a_failure(tmp_path: Path) -> None:
    log, group = WorkerLog(tmp_path / "log"), Group(0, 0, (0, 1))
    outcomes = computed(tmp_path / "gone", [group], log)
    for outcome in outcomes:
        assert isinstance(outcome, Failure)
        assert "does not exist" in outcome.reason
    assert len(outcomes) == 2
    assert computed(tmp_path / "gone", [], log) == []
