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
from filelock import FileLock

from commands import start
from commands_here import analyze_here
from dumps import add_rotary, make_dump, rotary_file
from lasting_workers import workers as workers  # a fixture of all tests here

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
    return {path.name for path in (out / ".heads").glob("l*.json")}


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


def test_any_number_of_workers_gives_the_same_bytes(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """Also with the rotary records in a file of their own."""
    file = rotary_file(dump, tmp_path / "rotary.json")
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path / "out", "--max_workers", 4)
    assert analyze_here(*words, "--rotary", file).returncode == 0
    assert tables(tmp_path / "out") == whole


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


def test_kills_at_any_moment_lose_nothing(
    dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 1)
    done: set[str] = set()
    for delay in (0.3, 0.8, 1.3, 1.7, 2.1):  # from the start of a run to its end
        run = start("analyze", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            run.wait(timeout=delay)
        run.kill()
        run.wait()
        assert records(tmp_path) >= done
        done = records(tmp_path)
        if (tmp_path / "run.json").exists():
            assert tables(tmp_path) == whole
    assert analyze_here(*words).returncode == 0
    assert tables(tmp_path) == whole
    assert not list(tmp_path.rglob("*.part-*"))


def test_damaged_records_are_computed_again_with_a_note(
    dump: Path, whole: dict[str, bytes], copy: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", copy)
    cut, edited = (copy / ".heads" / f"l01h0{head}.json" for head in (2, 3))
    cut.write_text(cut.read_text()[:500])
    content = edited.read_text()
    place = content.index('"ap_overall": 0.') + len('"ap_overall": 0.')
    digit = "1" if content[place] != "1" else "2"
    edited.write_text(content[:place] + digit + content[place + 1 :])
    note = "the records of 2 heads (layer 1: 2-3) are damaged; these heads are computed again"
    assert note in analyze_here(*words, "--dry_run").stdout
    again = analyze_here(*words)
    assert note in again.stderr
    assert "10 of 12 heads were finished earlier" in again.stderr
    assert tables(copy) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_at_once_with_its_code_and_the_run_continues(
    number: signal.Signals, dump: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", tmp_path, "--max_workers", 1)
    run = start(
        "analyze", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for_records(tmp_path, 1, run)
    workers = children(run)
    if number == signal.SIGINT:
        os.killpg(run.pid, number)  # what a terminal does: everyone in the foreground gets it
    else:
        run.send_signal(number)
    began = time.monotonic()
    told = run.communicate(timeout=30)[1].decode()
    assert run.returncode == 128 + number
    assert time.monotonic() - began < 10
    assert not any(Path("/proc", worker).exists() for worker in workers)
    if number == signal.SIGINT:
        last = "interrupted; finished heads are kept; run the same command again to continue"
        assert told.splitlines()[-1].startswith(last)
    assert "Traceback" not in told
    assert analyze_here(*words).returncode == 0
    assert tables(tmp_path) == whole


def test_a_second_run_in_the_same_folder_is_refused(dump: Path, copy: Path) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", copy)
    with FileLock(copy / ".lock"):  # what a run holds while it works
        second = analyze_here(*words)
    assert second.returncode == 2
    assert "another run is writing here" in second.stderr
    assert analyze_here(*words).returncode == 0


def test_other_settings_are_refused_and_named(
    dump: Path, whole: dict[str, bytes], copy: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", copy)
    refused = analyze_here(*words, "--seed", 1, "--query_model", "full")
    assert refused.returncode == 2
    assert "query_model (positional then, full now)" in refused.stderr
    assert "seed (0 then, 1 now)" in refused.stderr
    assert tables(copy) == whole
    fresh = analyze_here(*words, "--seed", 1, "--output_csv", "m.csv", "--overwrite")
    assert fresh.returncode == 0
    assert (copy / "m.csv").read_bytes() != whole["head_metrics.csv"]
    assert not (copy / "head_metrics.csv").exists(), "a table under another name stays behind"
    assert tables(copy / "previous-1") == whole


def test_what_does_not_touch_the_numbers_may_change(
    dump: Path, whole: dict[str, bytes], copy: Path
) -> None:
    words = ("--dataset_local_root", dump, "--output_dir", copy)
    again = analyze_here(*words, "--max_workers", 2, "--output_csv", "other.csv")
    assert again.returncode == 0
    assert "12 of 12 heads were finished earlier" in again.stderr
    assert (copy / "other.csv").read_bytes() == whole[TABLES[0]]
    assert (copy / "previous-1" / TABLES[0]).read_bytes() == whole[TABLES[0]]
    assert not (copy / TABLES[0]).exists()


def test_overwrite_computes_everything_again_and_keeps_tables_with_one_name_in_two_folders(
    dump: Path, whole: dict[str, bytes], copy: Path
) -> None:
    places = ("--output_csv", copy / "a" / "t.csv", "--bucket_csv", copy / "b" / "t.csv")
    words = ("--dataset_local_root", dump, "--output_dir", copy, *places)
    assert analyze_here(*words).returncode == 0
    before = sorted(whole[name] for name in TABLES[:2])
    assert sorted((copy / part / "t.csv").read_bytes() for part in "ab") == before
    again = analyze_here(*words, "--overwrite")
    assert again.returncode == 0
    assert "finished earlier" not in again.stderr
    kept = [path for path in (copy / "previous-2").glob("*t.csv") if path.name != "head_drift.csv"]
    assert sorted(path.read_bytes() for path in kept) == before
    assert sorted((copy / part / "t.csv").read_bytes() for part in "ab") == before
    for name in TABLES[2:]:
        assert (copy / "previous-2" / name).read_bytes() == whole[name], name
        assert (copy / name).read_bytes() == whole[name], name


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
    assert not {f"l{layer:02d}h{head:02d}.json" for layer, head in failed} & records(out)
    broken.write_bytes(content)
    again = analyze_here(*words)
    assert again.returncode == 0
    assert "8 of 12 heads were finished earlier" in again.stderr
    assert json.loads((out / "run.json").read_text())["heads"]["failed"] == 0
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
        ("beginning", 0, r"settings\.json"),
        ("writing the tables", 8192, r"\.csv|run\.json"),
        ("recording a head", 8192, r"l00h01\.json"),
    ):
        if moment == "recording a head":
            (out / ".heads" / "l00h01.json").unlink()
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
