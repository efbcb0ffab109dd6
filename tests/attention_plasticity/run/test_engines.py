"""Worker processes of this machine: a death fails one key head, and none outlives its run.

Heads have 1,000 rows: with fewer, every new worker imports scipy.stats, which takes 0.6 s.
"""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from attention_plasticity.run.engines import LocalProcesses, WorkerDiedError, _environment, _Process
from attention_plasticity.run.worker import THREAD_VARIABLES
from dumps import make_dump
from runs_here import analyse, computed, records, run_info, tables
from waiting import wait_for

LAYERS = 3


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return make_dump(
        tmp_path_factory.mktemp("dump"), layers=LAYERS, q_heads=2, k_heads=1, n=1000, d=4
    )


@pytest.fixture(scope="module")
def whole(dump, tmp_path_factory):
    """The folder of a run without worker processes."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    analyse(dump, out)
    return out


_of_other_tests = set()


@pytest.fixture(autouse=True)
def _no_workers_of_other_tests():
    """Some tests keep workers for the next ones of their process."""
    _of_other_tests.clear()
    _of_other_tests.update(workers_of())


def workers_of(pid=None):
    """The worker processes of a process, which were started by this test."""
    children = psutil.Process(pid).children()
    found = [one for one in children if "attention_plasticity.run.worker" in _words(one)]
    return [one for one in found if one not in _of_other_tests]


def _words(process):
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended
        return []


def run_with_processes(dump, out, workers=1, **fields):
    with LocalProcesses(workers) as engine:
        return analyse(dump, out, engine=engine, max_workers=workers, **fields)


def test_a_worker_gets_the_job_once():
    """A job has all texts of the dump, which can be a megabyte."""
    process = _Process()
    try:
        job = "t" * 1000
        for word in ("ta", "tb"):
            assert process.call(str.count, (job, word[0])) == 1000
            assert process.call(os.path.basename, (job,)) == job
        assert process.call(os.getpid, ()) == process.call(os.getpid, ()) != os.getpid()
        assert process.call(str.count, ("other", "t")) == 1
        assert process.call(str.count, (job, "t")) == 1000
    finally:
        process.kill()
        process.close()


def test_processes_give_the_results_of_this_process_and_end(dump, whole, tmp_path):
    with LocalProcesses(4, started=0):
        assert workers_of() == []
    with LocalProcesses(2) as engine:
        assert len(workers_of()) == 1  # imports while the run is planned
        analyse(dump, tmp_path, engine=engine, max_workers=2)
        assert len(workers_of()) <= 2
    assert workers_of() == []
    assert tables(tmp_path) == tables(whole)


def test_a_key_head_that_kills_its_worker_fails_alone(dump, whole, tmp_path, planted):
    planted.before_heads("if group.layer == 1: os.kill(os.getpid(), 9)")
    outcome = run_with_processes(dump, tmp_path / "out")
    reason = (
        "the worker process died (killed, probably out of memory: lower max_workers or "
        "max_tokens_per_head)"
    )
    found = [(one.layer, one.q_head, one.reason) for one in outcome.failures]
    assert found == [(1, 0, reason), (1, 1, reason)]
    assert outcome.info["heads"]["analysed"] == 4
    assert run_info(tmp_path / "out")["failures"][0]["reason"] == reason
    assert computed(dump, tmp_path / "out") == [(1, 0), (1, 1)]
    assert tables(tmp_path / "out") == tables(whole)


def test_workers_that_cannot_start_are_a_reason_with_their_last_words(dump, tmp_path, planted):
    words = "print('planted last words', file=sys.stderr, flush=True); os._exit(3)"
    planted.plant("attention_plasticity.run.worker", words)
    outcome = run_with_processes(dump, tmp_path / "out", layers=[0])
    assert len(outcome.failures) == 2
    for failure in outcome.failures:
        assert "the worker process died (exit code 3): planted last words" in failure.reason


def test_a_defect_leaves_its_traceback_in_the_failure(dump, tmp_path, monkeypatch):
    """The same code runs in workers, so no process is needed."""
    with monkeypatch.context() as patch:
        patch.setattr("attention_plasticity.measure.seeds.rotate", _broken)
        outcome = analyse(dump, tmp_path, layers=[0])
    failure = outcome.failures[0]
    assert failure.reason == (
        "internal error: ZeroDivisionError('planted defect') (test_engines.py, line "
        f"{_broken.__code__.co_firstlineno + 1})"
    )
    assert failure.traceback.startswith("Traceback (most recent call last)")
    assert failure.traceback in run_info(tmp_path)["failures"][0]["traceback"]
    assert analyse(dump, tmp_path, layers=[0]).failures == []


def _broken(*arguments):
    raise ZeroDivisionError("planted defect")


def test_calls_after_the_end_and_calls_that_die_are_errors():
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            with LocalProcesses() as engine:
                with pytest.raises(WorkerDiedError, match=r"exit code 7"):
                    engine.submit(os._exit, 7).result()
                assert engine.submit(abs, -3).result() == 3  # a new process
                calls = [engine.submit(signal.pause) for _ in range(2)]
                wait_for("a call that runs", calls[0].running)
                engine.shutdown()
                assert other.poll() is None  # other processes of the user live on
        finally:
            other.kill()
    assert workers_of() == []
    assert all(call.cancelled() or call.exception() for call in calls)


def test_a_worker_has_one_thread_also_if_the_user_asks_for_more(monkeypatch):
    """Workers use all cores already; more threads would wait for each other."""
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "7")
    environment = _environment()
    assert {environment[name] for name in THREAD_VARIABLES} == {"1"}


SCRIPT = """
import sys
from attention_plasticity.config import make_config
from attention_plasticity.run.runner import run_analysis
print("once", flush=True)
run_analysis(make_config(dataset_local_root=sys.argv[1], output_dir=sys.argv[2], max_workers=2))
"""


def test_a_script_without_a_main_guard_is_interrupted(dump, whole, tmp_path, planted):
    """No worker is left after Ctrl-C, and the next run continues."""
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    planted.before_heads("if group.layer: gate(f'layer {group.layer}')")
    words = [sys.executable, str(script), str(dump), str(out)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as main:
        try:
            planted.wait_at("layer 1")  # in the middle of a key head, as the other worker
            planted.wait_at("layer 2")
            wait_for("the record of layer 0", lambda: len(records(out)) == 1)
            left = workers_of(main.pid)
            assert len(left) == 2
            main.send_signal(signal.SIGINT)
            printed, told = main.communicate()
        finally:
            main.kill()
        assert not any(worker.is_running() for worker in left)
    assert len(records(out)) == 1
    assert not (out / "run.json").exists()
    assert printed == "once\n"
    assert told.rstrip().endswith("KeyboardInterrupt")
    assert len(computed(dump, out)) == 4
    assert tables(out) == tables(whole)
