"""Captures that are killed, interrupted, or shared by two processes: the dump is the same."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from qk_dump.layout import UNFINISHED
from sniffing import same_bytes, start_sniffing, tables_of, words
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
    finish(start_sniffing(*words(*inputs, dump)))
    return dump


def finish(run: subprocess.Popen[bytes], code: int = 0) -> None:
    assert run.wait(timeout=240) == code


def segments(dump: Path) -> list[Path]:
    return [path for path in (dump / UNFINISHED / "segments").glob("[0-9]*") if path.is_dir()]


def stop_half_way(run: subprocess.Popen[bytes], dump: Path, number: signal.Signals) -> None:
    """Send a signal as soon as a few texts are on disk."""
    until = time.monotonic() + 120
    while len(segments(dump)) < 3:
        assert time.monotonic() < until, "nothing is saved"
        assert run.poll() is None, "the capture ended before it could be interrupted"
        time.sleep(0.002)
    run.send_signal(number)


def test_a_killed_capture_goes_on_and_ends_the_same(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    flags = words(*inputs, tmp_path, output__save_seconds=1e-6)
    run = start_sniffing(*flags)
    stop_half_way(run, tmp_path, signal.SIGKILL)
    finish(run, -signal.SIGKILL)
    done = len(segments(tmp_path))
    assert 3 <= done < TEXTS
    assert not (tmp_path / "dump.json").exists()
    finish(again := start_sniffing(*flags, stderr=subprocess.PIPE))
    assert again.stderr is not None
    told = again.stderr.read().decode()
    again.stderr.close()
    assert f"continuing: {done} texts are finished" in told
    assert same_bytes(tmp_path, whole)
    assert tables_of(tmp_path)["examples"] == tables_of(whole)["examples"]
    assert not (tmp_path / UNFINISHED).exists()


def test_ctrl_c_saves_what_is_done_and_says_so(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    flags = words(*inputs, tmp_path, output__save_seconds=0.05)
    run = start_sniffing(*flags, stderr=subprocess.PIPE)
    stop_half_way(run, tmp_path, signal.SIGINT)
    told = run.communicate(timeout=240)[1].decode()
    assert run.returncode == 130
    assert "run the same command again to continue" in told
    assert "Traceback" not in told
    finish(start_sniffing(*flags))
    assert same_bytes(tmp_path, whole)


def test_two_processes_make_the_dump_of_one(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    flags = words(*inputs, tmp_path, output__save_seconds=0.01)
    finish(start_sniffing(*flags, launcher=launcher))
    assert same_bytes(tmp_path, whole)
    assert tables_of(tmp_path)["examples"] == tables_of(whole)["examples"]
    again = start_sniffing(*flags, "--overwrite", launcher=launcher)
    finish(again)
    assert same_bytes(tmp_path, whole)


def test_a_second_capture_into_the_same_folder_is_refused(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    flags = words(*inputs, tmp_path, output__save_seconds=1e-6)
    run = start_sniffing(*flags)
    stop_half_way(run, tmp_path, signal.SIGSTOP)
    try:
        other = start_sniffing(*flags, stderr=subprocess.PIPE)
        told = other.communicate(timeout=240)[1].decode()
        assert other.returncode == 2
        assert "another capture is writing here" in told
    finally:
        run.send_signal(signal.SIGCONT)
    finish(run)
