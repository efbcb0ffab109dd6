"""Captures that are killed, interrupted, moved, or shared by processes: the dump is the same."""

import os
import signal
import subprocess
import sys

import pytest

import hanging_texts
from qk_dump.layout import UNFINISHED
from qk_sniffer.capture.segments import saved_chunks
from rank_processes import Forwards, ended, run_ranks, start_alone
from sniffing import ONE_THREAD, same_bytes, start_sniffing, tables_of, words
from tiny_texts import save_texts, save_tiny_model
from waiting import PATIENCE, wait_for

LENGTHS = [20, 12, 25, 18, 9, 22, 30, 400, 15, 28, 17, 24] + [100] * 12
LONGEST = 7
BATCHES = range(len(LENGTHS))
KILLED = -signal.SIGKILL
MOST_UNSAVED = 4  # texts of a process: one is in the model, three wait for the disk


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    place = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(place / "model"), save_texts(place / "texts", LENGTHS)


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """The dump of a capture nobody disturbed."""
    dump = tmp_path_factory.mktemp("whole") / "dump"
    assert ended(start_alone(words(*inputs, dump))) == 0
    return dump


def assert_same(dump, whole):
    assert same_bytes(dump, whole)
    assert tables_of(dump)["examples"] == tables_of(whole)["examples"]
    assert not (dump / UNFINISHED).exists()


def test_a_killed_capture_goes_on_also_elsewhere(inputs, whole, tmp_path):
    dump, moved, told = tmp_path / "dump", tmp_path / "moved", tmp_path / "told"
    run = start_alone(words(*inputs, dump), None, Forwards(tmp_path / "log", 1, kills={0: 9}))
    assert ended(run) == KILLED
    done = len(saved_chunks(dump))
    assert 9 - MOST_UNSAVED <= done < 9
    assert not (dump / "dump.json").exists()
    dump.rename(moved)
    assert ended(start_alone(words(*inputs, moved), told)) == 0
    assert f"continuing: {done} texts are finished" in told.read_text()
    assert_same(moved, whole)


def test_ctrl_c_keeps_finished_texts_and_says_so(inputs, whole, tmp_path):
    dump, told = tmp_path / "dump", tmp_path / "told"
    forwards = Forwards(tmp_path / "log", 1, held=9)
    run = start_alone(words(*inputs, dump), told, forwards)
    forwards.wait_until_held()
    assert run.pid is not None
    os.kill(run.pid, signal.SIGINT)
    assert ended(run) == 130
    assert "run the same command again to continue\n" in told.read_text()
    assert "Traceback" not in told.read_text()
    assert len(saved_chunks(dump)) >= 9 - MOST_UNSAVED
    assert ended(start_alone(words(*inputs, dump))) == 0
    assert_same(dump, whole)


@pytest.mark.long
def test_ctrl_c_ends_a_capture_whose_dataset_hangs(inputs, whole, tmp_path):
    """In an interpreter of its own, which also has to end its threads."""
    dump, told, before = tmp_path / "dump", tmp_path / "told", 7
    command = [sys.executable, hanging_texts.__file__, *words(*inputs, dump)]
    variables = {**os.environ, **ONE_THREAD, hanging_texts.TEXTS_BEFORE: str(before)}
    with (
        told.open("w") as output,
        subprocess.Popen(command, env=variables, stdout=output, stderr=output) as run,
    ):
        try:
            wait_for("a dataset that hangs", lambda: "hangs\n" in told.read_text())
            wait_for("the texts before", lambda: len(saved_chunks(dump)) == before)
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=PATIENCE) == 130
        finally:
            run.kill()
    assert "run the same command again to continue" in told.read_text()
    assert "Traceback" not in told.read_text()
    assert ended(start_alone(words(*inputs, dump))) == 0
    assert_same(dump, whole)


@pytest.mark.long
def test_two_processes_of_torchrun_make_the_dump_of_one(inputs, whole, tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    flags = words(*inputs, tmp_path / "dump")
    with start_sniffing(*flags, launcher=launcher) as run:
        assert run.wait() == 0
    assert_same(tmp_path / "dump", whole)


def test_two_commands_in_one_folder_share_the_work(inputs, whole, tmp_path):
    """The first command is held in a text until the second one has done all that is free."""
    dump, told = tmp_path / "dump", [tmp_path / "first", tmp_path / "second"]
    flags, held = words(*inputs, dump), Forwards(tmp_path / "log", 1, held=3)
    first = start_alone(flags, told[0], held)
    held.wait_until_held()
    second = start_alone(flags, told[1], Forwards(tmp_path / "other", 1))
    free = len(LENGTHS) - 2  # the first has a chunk in the model and has prepared another
    wait_for("the work of the second", lambda: len(saved_chunks(dump)) >= free)
    held.release()
    assert (ended(first), ended(second)) == (0, 0)
    texts = "".join(path.read_text() for path in told)
    assert texts.count("another process completes the dump") == 1
    assert_same(dump, whole)


def test_three_processes_run_the_longest_texts_first_and_each_text_once(inputs, whole, tmp_path):
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
def test_a_killed_process_leaves_its_texts_to_the_others(inputs, whole, tmp_path, streaming):
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
