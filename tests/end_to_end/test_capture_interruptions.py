"""Captures that are killed, interrupted, moved, or shared by processes: the dump is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest

import hanging_texts
from qk_dump.folder_kinds import UNFINISHED
from qk_sniffer.capture.segments import saved_chunks
from rank_processes import Forwards, ended, run_ranks, start_alone
from sniffing import ONE_THREAD, same_bytes, start_sniffing, tables_of, wait_for, words
from tiny_texts import save_texts, save_tiny_model

LENGTHS = [20, 12, 25, 18, 9, 22, 30, 400, 15, 28, 17, 24] + [100] * 12
LONGEST = 7
BATCHES = range(len(LENGTHS))
KILLED = -signal.SIGKILL
MOST_CLAIMED = 6  # of a process: two are prepared, one is in the model, three wait for the disk


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(place / "model"), save_texts(place / "texts", LENGTHS)


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a capture nobody disturbed."""
    dump = tmp_path_factory.mktemp("whole") / "dump"
    assert ended(start_alone(words(*inputs, dump))) == 0
    return dump


def assert_same(dump: Path, whole: Path) -> None:
    assert same_bytes(dump, whole)
    assert tables_of(dump)["examples"] == tables_of(whole)["examples"]
    assert not (dump / UNFINISHED).exists()


def stop_half_way(run: ForkServerProcess, dump: Path, number: signal.Signals) -> None:
    """Send a signal as soon as a few texts are on disk."""
    wait_for(lambda: len(saved_chunks(dump)) >= 3 or not run.is_alive())
    assert run.pid is not None
    os.kill(run.pid, number)


def test_a_killed_capture_goes_on_also_elsewhere(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    dump, moved, told = tmp_path / "dump", tmp_path / "moved", tmp_path / "told"
    run = start_alone(words(*inputs, dump))
    stop_half_way(run, dump, signal.SIGKILL)
    assert ended(run) == KILLED
    done = len(saved_chunks(dump))
    assert 3 <= done < len(LENGTHS)
    assert not (dump / "dump.json").exists()
    dump.rename(moved)
    assert ended(start_alone(words(*inputs, moved), told)) == 0
    assert f"continuing: {done} texts are finished" in told.read_text()
    assert_same(moved, whole)


def test_ctrl_c_keeps_finished_texts_and_says_so(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    dump, told = tmp_path / "dump", tmp_path / "told"
    run = start_alone(words(*inputs, dump), told)
    stop_half_way(run, dump, signal.SIGINT)
    assert ended(run) == 130
    assert "run the same command again to continue\n" in told.read_text()
    assert "Traceback" not in told.read_text()
    assert len(saved_chunks(dump)) >= 3
    assert not list((dump / UNFINISHED).rglob("*.running"))  # it has not ended with a text
    assert ended(start_alone(words(*inputs, dump))) == 0
    assert_same(dump, whole)


@pytest.mark.long
def test_ctrl_c_ends_a_capture_whose_dataset_hangs(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    """In an interpreter of its own, which also has to end its threads."""
    dump, told, before = tmp_path / "dump", tmp_path / "told", 7
    command = [sys.executable, hanging_texts.__file__, *words(*inputs, dump)]
    variables = {**os.environ, **ONE_THREAD, hanging_texts.TEXTS_BEFORE: str(before)}
    with (
        told.open("w") as output,
        subprocess.Popen(command, env=variables, stdout=output, stderr=output) as run,
    ):
        wait_for(lambda: "hangs\n" in told.read_text())
        wait_for(lambda: len(saved_chunks(dump)) == before)
        run.send_signal(signal.SIGINT)
        try:
            assert run.wait(timeout=60) == 130
        finally:
            run.kill()
    assert "run the same command again to continue" in told.read_text()
    assert "Traceback" not in told.read_text()
    assert ended(start_alone(words(*inputs, dump))) == 0
    assert_same(dump, whole)


@pytest.mark.long
def test_two_processes_of_torchrun_make_the_dump_of_one(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    flags = words(*inputs, tmp_path / "dump")
    assert start_sniffing(*flags, launcher=launcher).wait(timeout=240) == 0
    assert_same(tmp_path / "dump", whole)


def test_two_commands_in_one_folder_share_the_work(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    dump = tmp_path / "dump"
    flags = words(*inputs, dump)
    first = start_alone(flags, tmp_path / "first")
    stop_half_way(first, dump, signal.SIGSTOP)
    second = start_alone(flags, tmp_path / "second")
    wait_for(lambda: len(saved_chunks(dump)) >= len(LENGTHS) - MOST_CLAIMED)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGCONT)
    assert (ended(first), ended(second)) == (0, 0)
    told = (tmp_path / "first").read_text() + (tmp_path / "second").read_text()
    assert told.count("another process completes the dump") == 1
    assert_same(dump, whole)


def test_three_processes_run_the_longest_texts_first_and_each_text_once(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    forwards = Forwards(tmp_path / "log", 3)
    ranks = run_ranks(words(*inputs, tmp_path / "dump"), forwards, tmp_path)
    assert ranks.codes == [0] * 3
    assert_same(tmp_path / "dump", whole)
    batches = [batch for _, batch in forwards.run()]
    assert sorted(batches) == [*BATCHES]
    assert LONGEST in batches[:3]


@pytest.mark.parametrize(
    "streaming", [False, pytest.param(True, marks=pytest.mark.long)], ids=["loaded", "streamed"]
)
def test_a_killed_process_leaves_its_texts_to_the_others(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path, streaming: bool
) -> None:
    forwards = Forwards(tmp_path / "log", 2, kills={1: 2})
    flags = words(*inputs, tmp_path / "dump", dataset__streaming=streaming)
    ranks = run_ranks(flags, forwards, tmp_path)
    assert ranks.codes == [0, KILLED]
    assert_same(tmp_path / "dump", whole)
    lost = [batch for rank, batch in forwards.run() if rank == 1]
    again = [batch for rank, batch in forwards.run() if rank == 0]
    assert len(lost) == 2
    assert {*BATCHES} - {*again} <= {lost[0]}  # the first of them may have been saved
    assert len(again) == len({*again})


@pytest.mark.parametrize("batch_size", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_text_that_ends_its_processes_is_left_out(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path, batch_size: int
) -> None:
    """Twice with its batch, then alone."""
    dump, told = tmp_path / "dump", tmp_path / "told"
    flags = words(*inputs, dump, inference__batch_size=batch_size)
    deadly = Forwards(tmp_path / "log", 1, deadly=LONGEST)
    for _ in range(3):
        assert ended(start_alone(flags, told, deadly)) == KILLED
    assert ended(start_alone(flags, told, deadly)) == 0
    assert f"left out: text {LONGEST}. Processes ended without a message" in told.read_text()
    assert f"remove {dump / UNFINISHED / 'ended.json'}" in told.read_text()
    assert json.loads((dump / "dump.json").read_text())["left_out"] == [LONGEST]
    found, expected = tables_of(dump), tables_of(whole)
    assert found.pop("examples") == expected.pop("examples")
    for head, table in expected.items():
        kept = table.filter(np.array(table["example_id"]) != LONGEST)
        exact = table.column_names if batch_size == 1 else ["example_id", "position", "token_id"]
        assert found[head].select(exact).equals(kept.select(exact))
