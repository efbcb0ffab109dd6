"""Heads computed on a real Ray cluster of this machine, whose workers, nodes and drivers die."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.measure.result import Failure, HeadResult
from attention_plasticity.read.texts import UNKNOWN_TEXTS
from attention_plasticity.run import ray_engine
from attention_plasticity.run.plan import Group, make_plan
from attention_plasticity.run.ray_engine import _Deaths, run_ray
from attention_plasticity.run.runner import run_analysis
from attention_plasticity.run.tasks import Computed, Job, Task, TaskQueue
from attention_plasticity.run.worker import WorkerLog
from dumps import add_rotary, make_dump, rotary_file
from qk_dump.source import open_dump
from qk_toolkit import ray_cluster

ray = pytest.importorskip("ray")

PLAN = """
import os
import sys
import time

def wait_for(path):
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.02)

def change():
    import attention_plasticity.head_analysis as module
    original = module.measure_head

    def measure(group, q_head, queries, dump):
        name, beside, layer = dump.path.name, dump.path.parent, group.layer
        if name == "departing":
            import ray
            if ray.get_runtime_context().get_node_id() == (beside / "node").read_text():
                (beside / "busy").touch()
                wait_for(beside / "never")
            wait_for(beside / "busy")  # the other node does not take all the work
        if name == "waiting" and layer > 0:
            wait_for(beside / "continue")
        if name == "lethal" and (layer, q_head) == (1, 1):
            os.kill(os.getpid(), 9)
        if name == "lethal" and (layer, q_head) == (0, 3):
            raise ZeroDivisionError("a defect")
        return original(group, q_head, queries, dump)

    module.measure_head = measure

if any("default_worker.py" in word for word in sys.orig_argv):  # other processes start faster
    change()
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One cluster of one CPU for all tests, as it and every worker take seconds to start.

    Its workers import a file that kills or stops them at some heads of dumps with certain names.
    """
    from ray.cluster_utils import Cluster

    extra = tmp_path_factory.mktemp("extra")
    (extra / "sitecustomize.py").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(extra), *filter(None, sys.path)])
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # they lack our runtime_env
        nodes = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=2, q_heads=2, k_heads=1, n=4000, d=32), 2, 32)


@pytest.fixture(scope="module")
def expected(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tables without Ray."""
    return tables(run_analysis(config(dump, tmp_path_factory.mktemp("local"))))


def config(dump: Path, out: Path, engine: str = "local", **words: str) -> ap.RunnerConfig:
    words |= {"dataset_local_root": str(dump), "output_dir": str(out), "engine": engine}
    return ap.make_config(words, max_workers=1)


def tables(run: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.paths.tables.values()}


def wait_for(paths: Iterable[Path]) -> None:
    for path in paths:
        for _ in range(6000):
            if path.exists():
                break
            time.sleep(0.02)
        assert path.exists()


def computed(
    dump: Path,
    groups: Iterable[Group],
    log: WorkerLog,
    note: Callable[[str], None] = lambda text: None,
) -> list[HeadResult | Failure]:
    """The outcomes of one job."""
    job = Job(dump, UNKNOWN_TEXTS, ap.make_config(), log)
    tasks = TaskQueue(Task(job, group) for group in groups)
    found = list(run_ray(tasks, job.config, note))
    return [one.outcome for one in found if isinstance(one, Computed)]


def test_tables_are_the_same_as_without_ray_and_vectors_stay_in_the_workers(
    dump: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    original = ray.get

    def counting(reference: Any) -> Any:
        value = original(reference)
        received.append(len(pickle.dumps(value)))
        return value

    monkeypatch.setattr(ray, "get", counting)
    rotary_file(dump, tmp_path / "rotary.json")
    monkeypatch.chdir(tmp_path)  # the workers have another current folder
    found = run_analysis(config(dump, tmp_path, "ray", rotary="rotary.json"))
    assert found.failures == []
    assert "bins" in found.paths.tables
    assert len(found.metrics) == 4
    assert tables(found) == expected
    assert 0 < sum(received) < 4 * 4000 * 32 * 4 / 10  # bytes of the queries


def test_the_heads_of_a_node_that_goes_away_are_computed_again(
    dump: Path, expected: dict[str, bytes], tmp_path: Path, cluster: Any
) -> None:
    departing = Path(shutil.copytree(dump, tmp_path / "departing"))
    node = cluster.add_node(num_cpus=1)
    (tmp_path / "node").write_text(node.node_id)

    def remove() -> None:
        wait_for([tmp_path / "busy"])
        cluster.remove_node(node, allow_graceful=False)

    remover = threading.Thread(target=remove)
    remover.start()
    found = run_analysis(config(departing, tmp_path / "out", "ray"))
    remover.join()
    assert (tmp_path / "busy").exists()
    assert found.failures == []
    assert tables(found) == expected


def test_a_death_in_a_group_is_not_counted_for_its_heads(tmp_path: Path) -> None:
    job = Job(tmp_path, UNKNOWN_TEXTS, ap.make_config(), WorkerLog(tmp_path / "log"))
    deaths, error = _Deaths(ray), ray.exceptions.WorkerCrashedError()
    alone, failures = deaths.after(Task(job, Group(0, 0, (0, 1))), error)
    assert [task.group.q_heads for task in alone] == [(0,), (1,)]
    assert failures == []
    assert deaths.after(alone[1], error) == ([alone[1]], [])
    (failure,) = deaths.after(alone[1], error)[1]
    assert isinstance(failure.outcome, Failure)
    assert failure.outcome.q_head == 1


def test_the_dump_of_a_relative_path_is_opened_for_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # not the folder of the workers
    for heads in (1, 2):  # the workers have opened the dump before the second head is added
        dump = make_dump(Path("dump"), layers=1, q_heads=heads, k_heads=1, n=60)
        plan = make_plan(open_dump(dump), ap.make_config())
        outcomes = computed(dump, plan.groups, WorkerLog(tmp_path / "log"))
        assert [type(outcome) for outcome in outcomes] == [HeadResult] * heads


def test_a_cluster_without_a_free_cpu_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_SECONDS_BEFORE_NOTE", 0.2)
    dump = open_dump(make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=60))
    free, busy = tmp_path / "free", tmp_path / "busy"

    def occupy() -> None:
        busy.touch()
        while not free.exists():
            time.sleep(0.02)

    occupied = ray_engine._remote(ray, occupy).remote()  # in a worker that has started
    wait_for([busy])
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        free.touch()

    groups = make_plan(dump, ap.make_config()).groups
    (outcome,) = computed(dump.path, groups, WorkerLog(tmp_path / "log"), note)
    ray.get(occupied)
    assert isinstance(outcome, HeadResult)
    assert notes == ["waiting for a free CPU of the Ray cluster"]


def test_a_dump_that_the_cluster_cannot_read_is_a_failure(tmp_path: Path) -> None:
    log, group = WorkerLog(tmp_path / "log"), Group(0, 0, (0, 1))
    outcomes = computed(tmp_path / "gone", [group], log)
    for outcome in outcomes:
        assert isinstance(outcome, Failure)
        assert "does not exist" in outcome.reason
    assert len(outcomes) == 2
    assert computed(tmp_path / "gone", [], log) == []


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
    assert failures[1, 1].startswith(
        "its process died (killed, or memory was short), in 2 attempts"
    )
    assert "ZeroDivisionError('a defect')" in failures[0, 3]
    assert "ZeroDivisionError: a defect" in log.path.read_text()


@pytest.mark.parametrize("service", ["raylet", "gcs_server"])
def test_a_cluster_that_dies_is_named_in_one_line_and_the_run_continues(
    service: str,
    dump: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from ray.cluster_utils import Cluster

    waiting = Path(shutil.copytree(dump, tmp_path / "waiting"))
    words = ["analyze", str(waiting), "--engine", "ray", "--output_dir", str(tmp_path / "out")]
    records = [tmp_path / "out" / ".heads" / f"l00h0{head}.json" for head in (0, 1)]
    dying = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    address = dying.address

    def kill() -> None:
        wait_for(records)  # the other heads wait
        [process] = dying.head_node.all_processes[service]
        process.process.kill()

    ray.shutdown()  # the commands connect themselves
    monkeypatch.setattr(ray_cluster, "_SECONDS_WITHOUT_ANSWER", 2.0)
    killer = threading.Thread(target=kill)
    killer.start()
    capfd.readouterr()
    try:
        assert main([*words, "--ray_address", address]) == 1
        printed = capfd.readouterr()
        killer.join()
    finally:  # for other tests
        dying.shutdown()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    assert printed.out == ""
    [error] = [
        line for line in printed.err.splitlines() if not line.startswith(("layout: ", "heads: "))
    ]
    assert error.startswith(f"error: Ray cluster at {address}: the connection was lost (")
    assert error.endswith("Finished heads are kept; run the same command again to continue.")
    written = {path: path.stat().st_mtime_ns for path in records}
    (tmp_path / "continue").touch()
    assert tables(run_analysis(config(waiting, tmp_path / "out"))) == expected
    assert {path: path.stat().st_mtime_ns for path in records} == written


def test_a_run_continues_under_any_engine_after_its_driver_was_killed(
    dump: Path, expected: dict[str, bytes], tmp_path: Path, cluster: Any
) -> None:
    waiting = Path(shutil.copytree(dump, tmp_path / "waiting"))
    words = ["analyze", str(waiting), "--engine", "ray", "--ray_address", cluster.address]
    words += ["--output_dir", str(tmp_path / "a")]
    records = [tmp_path / "a" / ".heads" / f"l00h0{head}.json" for head in (0, 1)]
    ray.shutdown()  # the commands connect themselves
    with subprocess.Popen([sys.executable, "-m", "attention_plasticity", *words]) as driver:
        wait_for(records)  # the other heads wait
        driver.kill()
    assert len(list(records[0].parent.glob("l*.json"))) == 2
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("?/.heads/l*.json")}
    (tmp_path / "continue").touch()
    try:
        assert main(words) == 0
        assert not ray.is_initialized()
    finally:  # for other tests
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    local = run_analysis(config(waiting, tmp_path / "b"))
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert tables(local) == expected
    assert {name: (tmp_path / "a" / name).read_bytes() for name in expected} == expected
