"""Several processes write a dump into one folder, and are killed."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest

from captures import HEADS, add, content, finish, in_process, opened, undisturbed
from qk_dump.manifest import read_manifest
from qk_toolkit.errors import ConfigError


@pytest.fixture
def whole() -> dict[str, bytes]:
    return undisturbed(12)


def test_a_killed_process_gives_its_rank_back(tmp_path: Path) -> None:
    run = in_process(
        "capture = opened(folder); print('open', flush=True); time.sleep(60)", tmp_path
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "open\n"
    with pytest.raises(ConfigError, match="another capture is writing here"):
        opened(tmp_path)
    run.kill()
    run.communicate()
    opened(tmp_path).close()


RANK = """
rank, ranks, batches = map(int, sys.argv[2:])
capture = opened(folder, rank=rank)
print("open", flush=True)
for batch in range(rank, batches, ranks):
    if not capture.complete and batch not in capture.finished:
        add(capture, [batch])
        capture.flush()
        time.sleep(0.01)
if not capture.missing(batches):
    finish(capture, batches)
capture.close()
"""


def test_processes_side_by_side_make_one_dump(tmp_path: Path, whole: dict[str, bytes]) -> None:
    runs = [in_process(RANK, tmp_path, rank, 2, 12) for rank in range(2)]
    for run in runs:
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 0, errors
    assert content(tmp_path) == whole


def test_all_processes_may_complete_the_dump_at_once(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    with closing(opened(tmp_path)) as capture:
        add(capture, range(12))
        capture.flush()
    runs = [in_process(RANK, tmp_path, rank, 2, 12) for rank in range(2)]
    for run in runs:
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 0, errors
    assert content(tmp_path) == whole


def test_kills_at_any_moment_lose_nothing(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """A few moments; make reliability kills at many."""
    finished: frozenset[int] = frozenset()
    for delay in (0.0, 0.1, 0.2, 0.3):
        run = in_process(RANK, tmp_path, 0, 1, 12)
        assert run.stdout is not None
        run.stdout.readline()
        time.sleep(delay)
        run.kill()
        run.communicate()
        with closing(opened(tmp_path)) as capture:
            assert capture.complete or capture.finished >= finished
            finished = capture.finished
    with closing(opened(tmp_path)) as capture:
        if not capture.complete:
            add(capture, capture.missing(12))
            finish(capture, 12)
    assert content(tmp_path) == whole


@pytest.mark.parametrize("heads", [1, 9])
def test_a_kill_while_heads_are_written(
    tmp_path: Path, whole: dict[str, bytes], heads: int
) -> None:
    stop = f"""
import os, signal
capture = opened(folder)
add(capture, range(12))
def die(done, total):
    if done == {heads}:
        os.kill(os.getpid(), signal.SIGKILL)
finish(capture, 12, on_head=die)
"""
    run = in_process(stop, tmp_path)
    run.communicate(timeout=60)
    assert run.returncode == -9
    assert read_manifest(tmp_path / "dump.json") is None
    assert len(list(tmp_path.glob("**/l*"))) >= heads
    with closing(opened(tmp_path)) as capture:
        finish(capture, 12)
    assert content(tmp_path) == whole


def test_a_waiting_process_takes_over_from_one_killed_while_completing(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    slow = """
capture = opened(folder, rank=1)
def wait(done, total):
    print("writing", flush=True)
    time.sleep(60)
finish(capture, 12, on_head=wait)
"""
    with closing(opened(tmp_path)) as capture:
        add(capture, range(12))
        capture.flush()
        run = in_process(slow, tmp_path)
        assert run.stdout is not None
        assert run.stdout.readline() == "writing\n"
        assert capture.lock_to_finish() is None  # at once: a process that may end does not wait
        Timer(0.5, run.kill).start()
        finish(capture, 12)
        run.communicate()
    assert run.returncode == -9
    assert content(tmp_path) == whole
    assert len(HEADS) == len(list(tmp_path.glob("**/l*")))
