"""Captures that are killed, interrupted, or shared by two processes: the dump is the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from qk_dump.layout import UNFINISHED
from rank_processes import ended, start_alone
from sniffing import ONE_THREAD, same_bytes, start_sniffing, tables_of, words
from tiny_texts import save_texts, save_tiny_model

TEXTS = 40


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(place / "model"), save_texts(place / "texts", [400] * TEXTS)


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a capture nobody disturbed."""
    dump = tmp_path_factory.mktemp("whole") / "dump"
    assert ended(start_alone(words(*inputs, dump))) == 0
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
    flags = words(*inputs, dump, output__save_seconds=1e-6)
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
    flags = words(*inputs, dump, output__save_seconds=0.05)
    run = start_alone(flags, told)
    stop_half_way(run, dump, signal.SIGINT)
    assert ended(run) == 130
    assert "run the same command again to continue" in told.read_text()
    assert "Traceback" not in told.read_text()
    assert ended(start_alone(flags)) == 0
    assert same_bytes(dump, whole)


HANGING = """
import sys, threading
from itertools import islice
from qk_sniffer.entry import main
from qk_sniffer.pipeline.texts import Texts

number = int(sys.argv.pop())

def hanging(texts, complete=Texts.__iter__):
    yield from islice(complete(texts), number)
    print("hangs", flush=True)
    threading.Event().wait()

Texts.__iter__ = hanging
sys.exit(main())
"""


@pytest.mark.parametrize("texts_before", [0, 7])
def test_ctrl_c_ends_a_capture_whose_dataset_hangs(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path, texts_before: int
) -> None:
    dump = tmp_path / "dump"
    flags = words(*inputs, dump, output__save_seconds=1e-6)
    run = subprocess.Popen(
        [sys.executable, "-c", HANGING, *flags, str(texts_before)],
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "hangs\n", run.communicate()
    while len(segments(dump)) < texts_before:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    try:
        _, told = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "run the same command again to continue" in told
    assert "Traceback" not in told
    assert len(segments(dump)) == texts_before
    assert ended(start_alone(flags)) == 0
    assert same_bytes(dump, whole)


def test_two_processes_of_torchrun_overwrite_and_make_the_dump_of_one(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    dump = shutil.copytree(whole, tmp_path / "dump")
    stale = shutil.copytree(dump / "l00h00q", dump / "l99h00q") / "data.parquet"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    flags = words(*inputs, dump, output__save_seconds=0.01)
    assert start_sniffing(*flags, "--overwrite", launcher=launcher).wait(timeout=240) == 0
    assert not stale.exists()
    assert same_bytes(dump, whole)
    assert tables_of(dump)["examples"] == tables_of(whole)["examples"]


def test_a_second_capture_into_the_same_folder_is_refused(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    dump, told = tmp_path / "dump", tmp_path / "told"
    flags = words(*inputs, dump, output__save_seconds=1e-6)
    run = start_alone(flags)
    stop_half_way(run, dump, signal.SIGSTOP)
    try:
        assert ended(start_alone(flags, told)) == 2
        assert "another capture is writing here" in told.read_text()
    finally:
        assert run.pid is not None
        os.kill(run.pid, signal.SIGCONT)
    assert ended(run) == 0
