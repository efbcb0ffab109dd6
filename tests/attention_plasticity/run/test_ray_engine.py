"""Heads computed on a real Ray cluster of this machine, whose workers, nodes and drivers die."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from attention_plasticity.run import ray_engine
from attention_plasticity.run.engines import WorkerDiedError
from attention_plasticity.run.ray_engine import RayTasks
from attention_plasticity.run.runner import run_analysis
from dumps import add_rotary, make_dump, rotary_file
from planted import Planted
from runs_here import Notes, analyse, computed, records, settings, state, tables
from waiting import wait_for

ray = pytest.importorskip("ray")

PLAN = """
import attention_plasticity.head_analysis as module
from waiting import wait_for
original = module.analyze_group

def analyze(dump, layer, *arguments):
    name, beside = dump.path.name, dump.path.parent
    if name == "departing":
        import ray
        if ray.get_runtime_context().get_node_id() == (beside / "node").read_text():
            (beside / "busy").touch()
            wait_for("nothing", (beside / "never").exists)
        wait_for("work on the other node", (beside / "busy").exists)
    if name == "waiting" and layer > 0:
        wait_for("the test", (beside / "continue").exists)
    return original(dump, layer, *arguments)

module.analyze_group = analyze
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    """One cluster of one CPU for all tests, as it and every worker take seconds to start.

    Its workers import a file that stops them at some heads of dumps with certain names.
    """
    from ray.cluster_utils import Cluster

    planted = Planted(tmp_path_factory.mktemp("planted") / "site")
    planted.plant("default_worker.py", PLAN)  # other processes start faster
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(planted.place), *filter(None, sys.path)])
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # they lack our runtime_env
        nodes = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=2, q_heads=2, k_heads=1, n=1000, d=8), 2, 8)


@pytest.fixture(scope="module")
def whole(dump, tmp_path_factory):
    """The folder of a run without Ray."""
    out = tmp_path_factory.mktemp("local") / "out"
    analyse(dump, out)
    return out


def finished(out, layer):
    return sum(path.name.startswith(f"l{layer:02d}") for path in records(out))


def test_tables_are_the_same_as_without_ray(dump, whole, tmp_path, monkeypatch):
    """Also with relative paths: the workers have another current folder."""
    shutil.copytree(dump, tmp_path / "copy")
    rotary_file(dump, tmp_path / "rotary.json")
    monkeypatch.chdir(tmp_path)
    config = settings(Path("copy"), "out", engine="ray", rotary="rotary.json")
    assert run_analysis(config).failures == []
    assert tables(tmp_path / "out") == tables(whole)
    assert ray.is_initialized()  # a connection of the caller is kept


@pytest.mark.long
def test_the_heads_of_a_node_that_goes_away_are_computed_again(dump, whole, tmp_path, cluster):
    departing = Path(shutil.copytree(dump, tmp_path / "departing"))
    node = cluster.add_node(num_cpus=1)
    (tmp_path / "node").write_text(node.node_id)

    def remove():
        wait_for("a head on the second node", (tmp_path / "busy").exists)
        cluster.remove_node(node, allow_graceful=False)

    remover = threading.Thread(target=remove)
    remover.start()
    found = run_analysis(settings(departing, tmp_path / "out", engine="ray"))
    remover.join()
    assert found.failures == []
    assert tables(tmp_path / "out") == tables(whole)


def test_deaths_and_errors_of_calls():
    def call(what):
        if what == "dies":
            os._exit(3)
        if what == "fails":
            raise ValueError("a reason")
        return what

    with RayTasks(None, 1, print) as engine:
        engine.check()
        assert engine.workers >= 1
        assert engine.submit(call, "works").result() == "works"
        with pytest.raises(WorkerDiedError, match=r"^its process died \(killed, or memory was sho"):
            engine.submit(call, "dies").result()
        with pytest.raises(ValueError, match="a reason"):
            engine.submit(call, "fails").result()
    assert ray.is_initialized()


@pytest.mark.long
def test_a_cluster_without_a_free_cpu_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "_SECONDS_BEFORE_NOTE", 0.2)
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=60)
    free, busy = tmp_path / "free", tmp_path / "busy"

    def occupy():
        busy.touch()
        wait_for("the note about the CPU", free.exists)

    class Freeing(Notes):
        def note(self, text):
            super().note(text)
            if "CPU" in text:
                free.touch()

    watcher = Freeing()
    with RayTasks(None, 1, print) as engine:
        occupied = engine.submit(occupy)
        wait_for("a task on the only CPU", busy.exists)
        outcome = run_analysis(settings(dump, tmp_path / "out", engine="ray"), watcher)
        occupied.result()
    assert outcome.failures == []
    assert watcher.notes.count("waiting for a free CPU of the Ray cluster") == 1


@pytest.mark.long
@pytest.mark.parametrize("service", ["raylet", "gcs_server"])
def test_a_command_ends_when_its_cluster_dies_and_its_heads_are_kept(
    service, dump, whole, tmp_path, cluster
):
    from ray.cluster_utils import Cluster

    waiting, out = Path(shutil.copytree(dump, tmp_path / "waiting")), tmp_path / "out"
    dying = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    words = ["analyze", str(waiting), "--engine", "ray", "--ray_address", dying.address]
    words += ["--output_dir", str(out)]
    ray.shutdown()  # the command connects itself
    try:
        with subprocess.Popen([sys.executable, "-m", "attention_plasticity", *words]) as driver:
            try:  # the other heads wait
                wait_for("the record of layer 0", lambda: finished(out, 0) == 1)
                [process] = dying.head_node.all_processes[service]
                process.process.kill()
                wait_for("the end of the command", lambda: driver.poll() is not None)
            finally:
                driver.kill()
    finally:  # for other tests
        dying.shutdown()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    assert driver.returncode != 0
    assert len(records(out)) == 1
    assert computed(waiting, out) == [(1, 0), (1, 1)]
    assert tables(out) == tables(whole)


@pytest.mark.long
def test_a_run_continues_under_any_engine_after_its_driver_was_killed(
    dump, whole, tmp_path, cluster
):
    waiting = Path(shutil.copytree(dump, tmp_path / "waiting"))
    out, other = tmp_path / "a", tmp_path / "b"
    words = ["analyze", str(waiting), "--engine", "ray", "--ray_address", cluster.address]
    words += ["--output_dir", str(out)]
    ray.shutdown()  # the commands connect themselves
    with subprocess.Popen([sys.executable, "-m", "attention_plasticity", *words]) as driver:
        try:  # the other heads wait
            wait_for("the record of layer 0", lambda: finished(out, 0) == 1)
        finally:
            driver.kill()
    assert len(records(out)) == 1
    shutil.copytree(out, other)
    before = {path: found for path, found in state(out).items() if path in records(out)}
    (tmp_path / "continue").touch()
    try:
        assert main(words) == 0
        assert not ray.is_initialized()
    finally:  # for other tests
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    assert computed(waiting, other) == [(1, 0), (1, 1)]
    assert before.items() <= state(out).items()
    assert tables(out) == tables(other) == tables(whole)
