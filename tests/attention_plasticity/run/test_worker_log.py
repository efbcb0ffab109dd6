"""What workers print is kept in the run's folder: warnings, and the traceback of a defect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attention_plasticity.run.worker import WorkerLog
from commands_here import analyze_here
from dumps import make_dump

ONLY_WORKERS = "import sys\nif 'attention_plasticity.run.worker' in sys.orig_argv:\n    "
WARNS = "import warnings; warnings.warn('planted warning')"
BREAKS = """import attention_plasticity.measure.seeds as seeds
    def broken(*arguments):
        raise ZeroDivisionError('planted defect')
    seeds.regress = broken"""
DIES = "import os; print('planted last words', file=sys.stderr, flush=True); os._exit(3)"
FLOODS = "print('flood ' * 500_000, file=sys.stderr)"


Planted = Callable[..., tuple[int, str, Path]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Runs a small dump with code planted into its workers: exit code, what it says, the log."""
    site, dump, out = tmp_path / "site", tmp_path / "dump", tmp_path / "out"
    site.mkdir()
    monkeypatch.syspath_prepend(site)  # workers get this path, and import sitecustomize
    make_dump(dump, layers=1, q_heads=2, k_heads=1, n=1000)

    def analyze(planted: str = "", *words: object) -> tuple[int, str, Path]:
        (site / "sitecustomize.py").write_text(ONLY_WORKERS + planted if planted else "")
        done = analyze_here("--dataset_local_root", dump, "--output_dir", out, *words)
        return done.returncode, done.stdout + done.stderr, out / "workers.log"

    return analyze


def test_warnings_are_kept_and_move_with_the_tables_of_their_run(run: Planted) -> None:
    code, told, log = run(WARNS)
    assert code == 0
    content = log.read_text()
    assert "planted warning" in content
    assert f"messages of the workers are in {log}" in told
    assert "planted warning" not in told
    code, told, log = run("", "--overwrite")
    assert code == 0
    assert not log.exists()
    assert "workers.log" not in told
    assert (log.parent / "previous-1" / "workers.log").read_text() == content


def test_the_traceback_of_a_defect_is_kept_and_named_in_the_failure(run: Planted) -> None:
    code, told, log = run(BREAKS)
    assert code == 1
    assert "internal error: ZeroDivisionError('planted defect')" in told
    assert f"the traceback is in {log}" in told
    text = log.read_text()
    assert "layer 0, key head 0, query heads 0-1:\n" in text
    assert "Traceback (most recent call last)" in text
    assert "planted defect" in text
    code, told, log = run()  # the heads are computed again, and nothing is left to say
    assert code == 0
    assert not log.exists()


def test_the_last_words_of_a_worker_that_dies_are_kept(run: Planted) -> None:
    code, told, log = run(DIES)
    assert code == 1
    assert "the worker process died (exit code 3): planted last words" in told
    assert f"more is in {log}" in told
    assert "planted last words" in log.read_text()


def test_a_log_is_bounded(run: Planted) -> None:
    code, _, log = run(FLOODS)
    assert code == 0
    assert log.stat().st_size < 1_100_000
    assert log.read_text().endswith("The rest is left out.\n")


def test_entries_stop_at_the_limit(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "workers.log", limit=100)
    log.add("layer 0", b"  \n ")
    assert not log.written
    assert not log.path.exists()
    for number in range(50):
        log.add(f"layer {number}", b"x" * 30)
    assert log.written
    text = log.path.read_text()
    assert text.startswith("layer 0:\n" + "x" * 30 + "\n\n")
    assert text.count("The rest is left out.") == 1
    assert len(text) < 200


def test_no_table_takes_the_logs_name(run: Planted) -> None:
    code, told, _ = run("", "--bucket_csv", "workers.log")
    assert code == 2
    assert "workers.log must be different files" in told
