"""Captures that are killed, interrupted, or shared by two processes: the dump is the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

import hanging_texts
from qk_dump.layout import UNFINISHED
from rank_processes import ended, start_alone
from sniffing import ONE_THREAD, same_bytes, start_sniffing, tables_of, words
from tiny_texts import save_texts, save_tiny_model

TEXTS = 40


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(place / "model"), save_texts(place / "texts", [100] * TEXTS)


def flags_of(inputs: tuple[Path, Path], dump: Path, **fields: object) -> list[str]:
    return words(*inputs, dump, capture__layers="0-1", **fields)


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a capture nobody disturbed."""
    dump = tmp_path_factory.mktemp("whole") / "dump"
    assert ended(start_alone(flags_of(inputs, dump))) == 0
    return dump


def segments(dump: Path) -> list[Path]:
    return [path for path in (dump / UNFINISHED / "segments").glob("[0-9]*") if path.is_dir()]


def stop_half_way(run: ForkServerProcess, dump: Path, number: signal.Signals) -> None:
    """Send a signal as soon as a few texts are on disk."""
    until = time.monotonic() + 120
    while len(segments(dump)) < 3:
        assert time.monotonic() < until, "nothing is saved"
        assert run.is_alive(), "the capture ended before it could be interrupted"
        time.sleep(0.002)
    assert run.pid is not None
    os.kill(run.pid, number)


def test_a_killed_capture_goes_on_and_ends_the_same(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    dump, told = tmp_path / "dump", tmp_path / "told"
    flags = flags_of(inputs, dump, output__save_seconds=1e-6)
    run = start_alone(flags)
    stop_half_way(run, dump, signal.SIGKILL)
    assert ended(run) == -signal.SIGKILL
    done = len(segments(dump))
    assert 3 <= done < TEXTS
    assert not (dump / "dump.json").exists()
    assert ended(start_alone(flags, told)) == 0
    assert f"continuing: {done} texts are finished" in told.read_text()
    assert same_bytes(dump, whole)
    assert tables_of(dump)["examples"] == tables_of(whole)["examples"]
    assert not (dump / UNFINISHED).exists()


def test_ctrl_c_saves_what_is_done_and_says_so(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    dump, told = tmp_path / "dump", tmp_path / "told"
    flags = flags_of(inputs, dump, output__save_seconds=0.05)
    run = start_alone(flags, told)
    stop_half_way(run, dump, signal.SIGINT)
    assert ended(run) == 130
    assert "run the same command again to continue" in told.read_text()
    assert "Traceback" not in told.read_text()
    assert ended(start_alone(flags)) == 0
    assert same_bytes(dump, whole)


@pytest.mark.parametrize(("texts_before", "forked"), [(0, True), (7, False)])
def test_ctrl_c_ends_a_capture_whose_dataset_hangs(
    inputs: tuple[Path, Path],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts_before: int,
    forked: bool,
) -> None:
    dump, told = tmp_path / "dump", tmp_path / "told"
    flags = flags_of(inputs, dump, output__save_seconds=1e-6)
    monkeypatch.setenv(hanging_texts.TEXTS_BEFORE, str(texts_before))
    start = start_forked if forked else start_new
    pid, code = start(flags, told)
    wait_for(lambda: told.exists() and "hangs\n" in told.read_text(), told)
    wait_for(lambda: len(segments(dump)) >= texts_before, told)
    os.kill(pid, signal.SIGINT)
    assert code() == 130
    assert "run the same command again to continue" in told.read_text()
    assert "Traceback" not in told.read_text()
    assert len(segments(dump)) == texts_before
    assert ended(start_alone(flags)) == 0
    assert same_bytes(dump, whole)


def start_forked(flags: list[str], told: Path) -> tuple[int, Callable[[], int | None]]:
    """The process, and a function that waits for its end and returns its exit code."""
    run = start_alone(flags, told, command="hanging_texts:sniff_qk")
    assert run.pid is not None
    return run.pid, partial(ended, run)


def start_new(flags: list[str], told: Path) -> tuple[int, Callable[[], int | None]]:
    """The same with an interpreter of its own, which also has to end its threads."""
    command = [sys.executable, hanging_texts.__file__, *flags]
    with told.open("w") as output:
        run = subprocess.Popen(
            command, env={**os.environ, **ONE_THREAD}, stdout=output, stderr=output
        )

    def code() -> int:
        try:
            return run.wait(timeout=60)
        finally:
            run.kill()

    return run.pid, code


def wait_for(true: Callable[[], bool], told: Path) -> None:
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until, told.read_text()
        time.sleep(0.01)


def test_two_processes_of_torchrun_overwrite_and_make_the_dump_of_one(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    dump = shutil.copytree(whole, tmp_path / "dump")
    stale = shutil.copytree(dump / "l00h00q", dump / "l99h00q") / "data.parquet"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    flags = flags_of(inputs, dump, output__save_seconds=0.01)
    assert start_sniffing(*flags, "--overwrite", launcher=launcher).wait(timeout=240) == 0
    assert not stale.exists()
    assert same_bytes(dump, whole)
    assert tables_of(dump)["examples"] == tables_of(whole)["examples"]


def test_a_second_capture_into_the_same_folder_is_refused(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    dump, told = tmp_path / "dump", tmp_path / "told"
    flags = flags_of(inputs, dump, output__save_seconds=1e-6)
    run = start_alone(flags)
    stop_half_way(run, dump, signal.SIGSTOP)
    try:
        assert ended(start_alone(flags, told)) == 2
        assert "another capture is writing here" in told.read_text()
    finally:
        assert run.pid is not None
        os.kill(run.pid, signal.SIGCONT)
    assert ended(run) == 0
