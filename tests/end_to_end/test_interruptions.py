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

import numpy as np
import pytest
from filelock import FileLock

from commands import analyze, start
from dumps import make_dump

TABLES = (
    *("head_metrics.csv", "head_bucket_plasticity.csv"),
    *("head_component_weights.csv", "head_influences.csv"),
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that a run can be caught half-way."""
    return make_dump(tmp_path_factory.mktemp("dump"), layers=3, q_heads=4, k_heads=2, n=6000, d=32)


@pytest.fixture(scope="module")
def whole(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Tables of a run nobody disturbed, with one worker."""
    out = tmp_path_factory.mktemp("whole")
    assert (
        analyze("--dataset_local_root", dump, "--output_dir", out, "--max_workers", 1).returncode
        == 0
    )
    return tables(out)


def tables(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in TABLES}


def records(out: Path) -> set[str]:
    return {path.name for path in (out / ".heads").glob("l*.json")}


def children(run: subprocess.Popen[bytes]) -> list[str]:
    return Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()


def wait_for_records(out: Path, count: int, run: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while len(records(out)) < count:
        assert time.monotonic() < until, "the run records nothing"
        assert run.poll() is None, "the run ended before it could be interrupted"
        time.sleep(0.005)


def test_any_number_of_workers_gives_the_same_bytes(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    for workers in (2, 5):
        out = tmp_path / str(workers)
        words = ("--dataset_local_root", dump, "--output_dir", out, "--max_workers", workers)
        assert analyze(*words).returncode == 0
        assert tables(out) == whole


@pytest.mark.parametrize("deaths", [1, 3])
def test_a_killed_run_continues_and_ends_with_the_same_bytes(
    deaths: int, dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 2)
    done: set[str] = set()
    for _ in range(deaths):
        run = start("analyze", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_records(tmp_path, len(done) + 1, run)
        run.kill()
        run.wait()
        assert not any((tmp_path / name).exists() for name in TABLES)
        assert records(tmp_path) >= done
        done = records(tmp_path)
    last = analyze(*words)
    assert last.returncode == 0
    assert f"{len(done)} of 12 heads were finished earlier" in last.stderr
    assert tables(tmp_path) == whole


def test_kills_at_any_moment_lose_nothing(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 2)
    rng = np.random.default_rng(0)
    done: set[str] = set()
    for delay in rng.uniform(0.2, 2.5, 10):
        run = start("analyze", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            run.wait(timeout=delay)
        run.kill()
        run.wait()
        assert records(tmp_path) >= done
        done = records(tmp_path)
        if (tmp_path / "run.json").exists():
            assert tables(tmp_path) == whole
    assert analyze(*words).returncode == 0
    assert tables(tmp_path) == whole
    assert not list(tmp_path.rglob("*.part-*"))


def test_workers_end_when_their_run_is_killed(dump: Path, tmp_path: Path) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 2)
    run = start("analyze", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_records(tmp_path, 1, run)
    workers = [Path("/proc", pid) for pid in children(run)]
    run.kill()
    run.wait()
    until = time.monotonic() + 30
    while any(worker.exists() for worker in workers):
        assert time.monotonic() < until, "a worker goes on for nobody"
        time.sleep(0.02)


def test_damaged_records_are_computed_again_with_a_note(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path)
    assert analyze(*words).returncode == 0
    cut, edited = (tmp_path / ".heads" / f"l01h0{head}.json" for head in (2, 3))
    cut.write_text(cut.read_text()[:500])
    content = edited.read_text()
    place = content.index('"ap_overall": 0.') + len('"ap_overall": 0.')
    digit = "1" if content[place] != "1" else "2"
    edited.write_text(content[:place] + digit + content[place + 1 :])
    note = "the records of 2 heads (layer 1: 2-3) are damaged; these heads are computed again"
    assert note in analyze(*words, "--dry_run").stdout
    again = analyze(*words)
    assert note in again.stderr
    assert "10 of 12 heads were finished earlier" in again.stderr
    assert tables(tmp_path) == whole


def test_ctrl_c_ends_at_once_with_130_and_the_run_continues(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 2)
    run = start(
        "analyze", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for_records(tmp_path, 1, run)
    os.killpg(run.pid, signal.SIGINT)  # what a terminal does: everyone in the foreground gets it
    began = time.monotonic()
    _, told = run.communicate(timeout=30)
    assert run.returncode == 130
    assert time.monotonic() - began < 10
    last = "interrupted; finished heads are kept; run the same command again to continue"
    assert told.decode().splitlines()[-1].startswith(last)
    assert "Traceback" not in told.decode()
    assert analyze(*words).returncode == 0
    assert tables(tmp_path) == whole


def test_a_second_run_in_the_same_folder_is_refused(dump: Path, tmp_path: Path) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 1)
    with FileLock(tmp_path / ".lock"):  # what a run holds while it works
        second = analyze(*words)
    assert second.returncode == 2
    assert "another run is writing here" in second.stderr
    assert analyze(*words).returncode == 0


def test_other_settings_are_refused_and_named(dump: Path, tmp_path: Path) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--layers", "0")
    assert analyze(*words).returncode == 0
    before = tables(tmp_path)
    refused = analyze(*words, "--seed", 1, "--query_model", "full")
    assert refused.returncode == 2
    assert "query_model (positional then, full now)" in refused.stderr
    assert "seed (0 then, 1 now)" in refused.stderr
    assert tables(tmp_path) == before
    fresh = analyze(*words, "--seed", 1, "--overwrite")
    assert fresh.returncode == 0
    assert tables(tmp_path) != before
    assert tables(tmp_path / "previous-1") == before


def test_what_does_not_touch_the_numbers_may_change(dump: Path, tmp_path: Path) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--layers", "0")
    assert analyze(*words, "--max_workers", 1).returncode == 0
    again = analyze(*words, "--max_workers", 2, "--output_csv", "other.csv")
    assert again.returncode == 0
    assert "4 of 4 heads were finished earlier" in again.stderr
    earlier = tmp_path / "previous-1" / TABLES[0]
    assert (tmp_path / "other.csv").read_bytes() == earlier.read_bytes()
    assert not (tmp_path / TABLES[0]).exists()


def test_a_repaired_head_is_the_only_one_computed(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=60)
    broken = dump / "l00h02q" / "data.parquet"
    content = broken.read_bytes()
    broken.write_bytes(content[:-100])
    out = tmp_path / "out"
    words = ("--dataset_local_root", dump, "--output_dir", out)
    assert analyze(*words).returncode == 1
    broken.write_bytes(content)
    repaired = analyze(*words)
    assert repaired.returncode == 0
    assert "3 of 4 heads were finished earlier" in repaired.stderr
    assert json.loads((out / "run.json").read_text())["heads"]["failed"] == 0


def test_overwrite_computes_everything_again(dump: Path, tmp_path: Path) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--layers", "0")
    assert analyze(*words).returncode == 0
    before = tables(tmp_path)
    again = analyze(*words, "--overwrite")
    assert again.returncode == 0
    assert "finished earlier" not in again.stderr
    assert tables(tmp_path) == tables(tmp_path / "previous-1") == before


def test_a_table_under_another_name_does_not_stay_behind(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=60)
    out = tmp_path / "out"
    words = ("--dataset_local_root", dump, "--output_dir", out)
    assert analyze(*words).returncode == 0
    assert analyze(*words, "--seed", 1, "--output_csv", "m.csv", "--overwrite").returncode == 0
    assert not (out / "head_metrics.csv").exists()
    assert (out / "previous-1" / "head_metrics.csv").exists()
    assert (out / "m.csv").exists()


def test_tables_with_one_name_in_two_folders_are_all_kept(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=60)
    out = tmp_path / "out"
    places = ("--output_csv", out / "a" / "t.csv", "--bucket_csv", out / "b" / "t.csv")
    words = ("--dataset_local_root", dump, "--output_dir", out, *places)
    assert analyze(*words).returncode == 0
    before = sorted((out / part / "t.csv").read_bytes() for part in "ab")
    assert analyze(*words, "--overwrite").returncode == 0
    kept = sorted(path.read_bytes() for path in (out / "previous-1").glob("*t.csv"))
    assert kept == before


def test_a_file_that_changes_during_the_run_fails_its_heads(dump: Path, tmp_path: Path) -> None:
    changing = Path(shutil.copytree(dump, tmp_path / "dump"))
    words = ("--dataset_local_root", changing, "--output_dir", tmp_path / "out")
    run = start(
        "analyze", *words, "--max_workers", 1, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for_records(tmp_path / "out", 1, run)
    for head in ("l00h00q", "l02h01k"):  # one whose head is finished, one whose heads are not
        os.utime(changing / head / "data.parquet", (1, 1))
    told = run.communicate()[0].decode()
    assert run.returncode == 1
    assert "its files changed during the run" in told
    lost = {"l00h00.json", "l02h02.json", "l02h03.json"}
    assert not lost & records(tmp_path / "out")
    again = analyze(*words)
    assert again.returncode == 0
    assert "9 of 12 heads were finished earlier" in again.stderr


@pytest.mark.parametrize("moment", ["recording a head", "writing the tables"])
def test_a_full_disk_is_told_and_leaves_earlier_results_whole(
    moment: str, small_disk: Path, tmp_path: Path
) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=60, d=4)
    out = small_disk / "out"
    words = ("--dataset_local_root", dump, "--output_dir", out, "--max_workers", 1)
    assert analyze(*words).returncode == 0
    before = tables(out)
    if moment == "recording a head":
        (out / ".heads" / "l00h01.json").unlink()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)
    full = analyze(*words)
    assert full.returncode == 1
    culprit = (
        r"l00h01\.json|settings\.json" if "head" in moment else r"\.csv|run\.json|settings\.json"
    )
    assert re.search(rf"{re.escape(str(out))}\S*({culprit}): cannot be written", full.stderr)
    assert "No space left on device" in full.stderr
    assert "Traceback" not in full.stderr
    assert tables(out) == before
    filler.unlink()
    assert analyze(*words).returncode == 0
    assert tables(out) == before


def test_a_killed_worker_costs_a_second_attempt_only(dump: Path, tmp_path: Path) -> None:
    run = start(
        "analyze",
        *("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 1),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    wait_for_records(tmp_path, 1, run)
    os.kill(int(children(run)[0]), signal.SIGKILL)
    assert run.communicate(timeout=60)[0]
    assert run.returncode == 0
    assert json.loads((tmp_path / "run.json").read_text())["failures"] == []
    assert len(records(tmp_path)) == 12
