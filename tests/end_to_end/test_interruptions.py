"""Runs that are killed, interrupted or run out of disk: nothing finished is lost, bytes agree."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from attention_plasticity.api import open_run
from commands import start
from commands_here import analyze_here, run_here
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_toolkit.errors import ConfigError

TABLES = (
    *("head_metrics.csv", "head_bucket_plasticity.csv"),
    *("head_component_weights.csv", "head_influences.csv", "head_bin_plasticity.csv"),
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that a run can be caught half-way."""
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=3, q_heads=4, k_heads=2, n=3000, d=32), 3, 32)


@pytest.fixture(scope="module")
def finished(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run nobody disturbed, with one worker."""
    out = tmp_path_factory.mktemp("whole")
    assert analyze_here("--dataset_local_root", dump, "--output_dir", out).returncode == 0
    return out


@pytest.fixture(scope="module")
def whole(finished: Path) -> dict[str, bytes]:
    return tables(finished)


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed run that a test may continue or spoil."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def tables(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in TABLES}


def records(out: Path) -> set[str]:
    return {path.name for path in out.glob(".heads/*/l*h*.json.gz")}


def record_of(out: Path, name: str) -> Path:
    """The record of a head, such as `l01h02`."""
    [found] = out.glob(f".heads/*/{name}-*.json.gz")
    return found


def heads_of(out: Path) -> dict[str, int]:
    """How many heads were analysed, failed and so on."""
    return dict(json.loads((out / "run.json").read_text())["heads"])


def children(run: subprocess.Popen[bytes]) -> list[str]:
    return Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()


def wait_for_records(out: Path, count: int, run: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while len(records(out)) < count:
        assert time.monotonic() < until, "the run records nothing"
        assert run.poll() is None, "the run ended before it could be interrupted"
        time.sleep(0.005)


def wait_until_gone(workers: list[str]) -> None:
    until = time.monotonic() + 30
    while any(Path("/proc", pid).exists() for pid in workers):
        assert time.monotonic() < until, "a worker goes on for nobody"
        time.sleep(0.02)


def test_a_killed_run_ends_its_workers_and_continues_with_the_same_bytes(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 2)
    done: set[str] = set()
    for _ in range(2):
        run = start("analyze", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_records(tmp_path, len(done) + 1, run)
        workers = children(run)
        run.kill()
        run.wait()
        assert not any((tmp_path / name).exists() for name in TABLES)
        assert records(tmp_path) >= done
        wait_until_gone(workers)
        done = records(tmp_path)
    last = analyze_here(*words)
    assert last.returncode == 0
    assert f"{len(done)} of 12 heads were finished earlier" in last.stderr
    assert tables(tmp_path) == whole


def test_an_unfinished_run_says_how_many_heads_are_finished(copy: Path, tmp_path: Path) -> None:
    for path in copy.iterdir():
        path.is_file() and path.unlink()
    record_of(copy, "l01h02").unlink()
    told = f"{copy}: the analysis is not finished: 11 heads recorded so far"
    for words in (["report", copy], ["plot", "all", copy, "--output", tmp_path / "figures"]):
        refused = run_here(*words)
        assert refused.returncode == 2
        assert told in refused.stderr
    with pytest.raises(ConfigError, match="the analysis is not finished: 11 heads"):
        open_run(copy)


def test_a_signal_ends_at_once_with_its_code_and_the_run_continues(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 1)
    run = start(
        "analyze", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for_records(tmp_path, 1, run)
    workers = children(run)
    os.killpg(run.pid, signal.SIGINT)  # what a terminal does: everyone in the foreground gets it
    began = time.monotonic()
    told = run.communicate(timeout=30)[1].decode()
    assert run.returncode == 130
    assert time.monotonic() - began < 10
    assert not any(Path("/proc", worker).exists() for worker in workers)
    last = "interrupted; finished heads are kept; run the same command again to continue"
    assert told.splitlines()[-1].startswith(last)
    assert "Traceback" not in told
    assert analyze_here(*words).returncode == 0
    assert tables(tmp_path) == whole


def test_only_heads_whose_files_are_broken_or_change_fail_and_a_killed_worker_costs_nothing(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    changing, out = Path(shutil.copytree(dump, tmp_path / "dump")), tmp_path / "out"
    broken = changing / "l01h03q" / "data.parquet"
    content = broken.read_bytes()
    broken.write_bytes(content[:-100])
    words = ("--dataset_local_root", changing, "--output_dir", out, "--max_workers", 1)
    run = start("analyze", *words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_for_records(out, 1, run)
    os.kill(int(children(run)[0]), signal.SIGKILL)
    for head in ("l00h00q", "l02h01k"):  # one whose head is finished, one whose heads are not
        os.utime(changing / head / "data.parquet", (1, 1))
    told = run.communicate(timeout=60)[0].decode()
    assert run.returncode == 1
    assert "its files changed during the run" in told
    failures = json.loads((out / "run.json").read_text())["failures"]
    failed = {(failure["layer"], failure["q_head"]) for failure in failures}
    assert failed == {(0, 0), (1, 3), (2, 2), (2, 3)}
    recorded = {name[:6] for name in records(out)}
    assert not {f"l{layer:02d}h{head:02d}" for layer, head in failed} & recorded
    broken.write_bytes(content)
    again = analyze_here(*words)
    assert again.returncode == 0
    assert "8 of 12 heads were finished earlier" in again.stderr
    assert heads_of(out)["failed"] == 0
    assert tables(out) == whole


def test_a_full_disk_is_told_and_leaves_earlier_results_whole(
    small_disk: Path, tmp_path: Path
) -> None:
    """The disk has room for two versions of the tables, as new ones are written beside the old."""
    subprocess.run(["mount", "-o", "remount,size=512k", str(small_disk)], check=True)
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=60, d=4)
    add_rotary(dump, width=4)
    out, filler = small_disk / "out", small_disk / "filler"
    words = ("--dataset_local_root", dump, "--output_dir", out)
    assert analyze_here(*words).returncode == 0
    before = tables(out)
    for moment, spare, culprit in (  # spare: bytes that stay free
        ("writing the tables", 8192, r"run\.json"),
        ("recording a head", 0, r"l00h01-\w+\.json\.gz"),
    ):
        if moment == "recording a head":
            record_of(out, "l00h01").unlink()
        else:
            (out / "run.json").unlink()
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 512)
        os.truncate(filler, filler.stat().st_size - spare)
        full = analyze_here(*words)
        assert full.returncode == 1, moment
        place = rf"{re.escape(str(out))}\S*({culprit}): cannot be written"
        assert re.search(place, full.stderr), moment
        assert "No space left on device" in full.stderr, moment
        assert "Traceback" not in full.stderr, moment
        assert tables(out) == before, moment
        filler.unlink()
        assert analyze_here(*words).returncode == 0, moment
        assert tables(out) == before, moment
