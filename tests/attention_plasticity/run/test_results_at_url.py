"""Results at URLs, with a real S3 server: the same tables, interruptions, failures of uploads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.run.merging import merge_shards, run_shard
from attention_plasticity.run.runner import Refused, run_analyses, run_analysis
from attention_plasticity.run.several import configs_of
from attention_plasticity.tables.finished_run import FinishedRun
from commands_here import analyze_here
from dumps import make_dump
from hub_server import running_hub, status
from hubs import client_of
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_toolkit import store, uploads
from qk_toolkit.cache import cache_folder
from qk_toolkit.errors import ConfigError, HubError, StoreError
from qk_toolkit.watcher import Watcher
from s3_server import S3, damaged, error, slow


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_machine(tmp_path / "first", monkeypatch)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dump(tmp_path_factory.mktemp("dump"), layers=2, q_heads=4, k_heads=2, n=120)


@pytest.fixture(scope="module")
def local(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a local run."""
    return run_analysis(config(dump, tmp_path_factory.mktemp("local"))).paths.folder


@pytest.fixture(scope="module")
def part(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a local run of head 0."""
    return run_analysis(config(dump, tmp_path_factory.mktemp("part"), heads="0")).paths.folder


def use_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work as if on another machine: with a cache of its own."""
    monkeypatch.setenv("ATTENTION_PLASTICITY_CACHE", str(folder))


def config(dump: Path, out: object, **fields: Any) -> ap.RunnerConfig:
    return ap.make_config(
        dataset_local_root=str(dump), output_dir=str(out), **{"max_workers": 1, **fields}
    )


def run_info(content: bytes | str) -> dict[str, Any]:
    """run.json without what differs between two runs."""
    info: dict[str, Any] = json.loads(content)
    del info["finished"], info["seconds"], info["config"]
    return info


def assert_same(s3: S3, prefix: str, folder: Path) -> None:
    """The files at the URL are those of a run in a folder."""
    for path in folder.glob("*.csv"):
        assert s3.get(f"{prefix}/{path.name}") == path.read_bytes()
    assert run_info(s3.get(f"{prefix}/run.json")) == run_info((folder / "run.json").read_text())
    names = {name.removeprefix(f"{prefix}/") for name in s3.names(f"{prefix}/")}
    local = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert {name for name in names if "shard" not in name and "facts" not in name} == local


def local_files() -> list[str]:
    """Files that are left in the cache, except locks and what was fetched to be read."""
    return [
        path.name
        for path in cache_folder().rglob("*")
        if path.is_file()
        and not path.name.startswith(".lock")
        and not {"read", "records"} & set(path.parts)
    ]


def test_the_command_writes_the_tables_of_a_local_run_and_figures_read_them(
    s3: S3, dump: Path, local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = analyze_here(dump, "--output_dir", s3.url("results/mine/"))
    assert done.returncode == 0, done.stderr
    assert f"{s3.url('results/mine')}/head_metrics.csv" in done.stdout
    assert str(cache_folder()) not in done.stdout + done.stderr
    assert_same(s3, "results/mine", local)
    assert local_files() == []
    url = s3.url("results/mine")
    run = ap.open_run(url)
    assert run.head_metrics.equals(ap.open_run(local).head_metrics)
    assert url in repr(run)
    assert run.model_name == "mine"
    for words in (
        ["plot", "map", url, "--output", f"{url}/figures/map.png"],
        ["report", url],
        ["compare", url, local, "--output_dir", s3.url("compared")],
    ):
        assert main([str(word) for word in words]) == 0
        assert str(cache_folder()) not in "".join(capsys.readouterr())
    assert s3.get("results/mine/figures/map.png").startswith(b"\x89PNG")
    assert "results/mine/figures/map.txt" in s3.names()
    assert url.encode() in s3.get("results/mine/report.html")
    assert "compared/compare.csv" in s3.names()


def test_reading_fetches_only_what_changed(s3: S3, part: Path, local: Path) -> None:
    s3.put_folder(part, "run")
    assert set(FinishedRun.open(s3.url("run")).head_metrics["q_head"]) == {0}
    s3.requests.clear()
    FinishedRun.open(s3.url("run"))
    assert {request.path.partition("?")[0] for request in s3.requests} <= {f"/{s3.bucket}"}
    s3.put_folder(local, "run")
    assert set(FinishedRun.open(s3.url("run")).head_metrics["q_head"]) == {0, 1, 2, 3}
    for name in s3.names("run/"):
        s3.delete(name)
    with pytest.raises(ConfigError, match=r"s3://.*/run: holds neither run.json nor tables"):
        FinishedRun.open(s3.url("run"))


def test_a_killed_run_continues_on_another_machine(
    s3: S3, dump: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.url("run")
    for path in ("/.heads/l01", ".csv"):  # half of the run is sent when it is killed
        s3.fail("PUT", error(500), path=path)
    with started(dump, url) as run:
        while recorded(s3) < 4 and run.poll() is None:
            time.sleep(0.05)
        run.kill()
    assert run.returncode == -signal.SIGKILL
    s3.heal()
    assert recorded(s3) == 4
    use_machine(tmp_path / "second", monkeypatch)
    notes: list[str] = []
    run_analysis(config(dump, url), Notes(notes))
    assert notes[-1] == "4 of 8 heads were finished earlier and are kept"
    assert_same(s3, "run", local)


def started(dump: Path, url: str) -> subprocess.Popen[str]:
    """The command in a process of its own that sends its records soon."""
    words = ["analyze", str(dump), "--output_dir", url, "--max_workers", "1"]
    code = f"""
import sys
from attention_plasticity.cli import main
from qk_toolkit import uploads
uploads._SECONDS = 0.05
sys.exit(main({words!r}))
"""
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def recorded(s3: S3) -> int:
    return len([name for name in s3.names("run/.heads/") if "/l0" in name])


def test_a_failed_upload_loses_nothing(
    s3: S3, dump: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAITS", (0.01,))
    monkeypatch.setattr(uploads, "_SECONDS", 0.05)
    s3.fail("PUT", error(500), path="/run/head_metrics.csv")
    with pytest.raises(StoreError, match="all files are kept in") as caught:
        run_analysis(config(dump, s3.url("run")))
    folder = Path(str(caught.value).rpartition("kept in ")[2])
    assert {"run.json", "head_metrics.csv"} <= {path.name for path in folder.iterdir()}
    assert "secret-of-the-test" not in str(caught.value)
    assert "run/run.json" not in s3.names()
    s3.heal()
    notes: list[str] = []
    run_analysis(config(dump, s3.url("run")), Notes(notes))
    assert notes[1:] == ["8 of 8 heads were finished earlier and are kept"]
    assert_same(s3, "run", local)


@pytest.mark.parametrize("name", ["head_metrics.csv", "run.json", ".heads/l00h01.json"])
def test_a_file_that_arrived_damaged_blocks_no_later_run(
    s3: S3,
    dump: Path,
    local: Path,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_WAITS", ())
    url = s3.url("run")
    s3.fail("PUT", damaged, path=f"/run/{name}")
    with pytest.raises(StoreError, match="bytes after it was sent with"):
        run_analysis(config(dump, url))
    s3.heal()
    notes: list[str] = []
    run_analysis(config(dump, url), Notes(notes))
    assert f"{url}/{name}: arrived damaged; the local copy is sent again" in notes
    assert notes[-1] == "8 of 8 heads were finished earlier and are kept"
    assert_same(s3, "run", local)


def test_a_damaged_file_is_made_again_on_another_machine(
    s3: S3, dump: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAITS", ())
    url = s3.url("run")
    s3.fail("PUT", damaged, path="/run/head_metrics.csv")
    with pytest.raises(StoreError, match="bytes after it was sent with"):
        run_analysis(config(dump, url))
    s3.heal()
    use_machine(tmp_path / "second", monkeypatch)
    with pytest.raises(StoreError, match=r"head_metrics.csv: is damaged .*run the analysis again"):
        ap.open_run(url)
    notes: list[str] = []
    run_analysis(config(dump, url), Notes(notes))
    assert f"{url}/head_metrics.csv: is damaged; it is made again" in notes
    assert notes[-1] == "8 of 8 heads were finished earlier and are kept"
    for path in local.glob("*.csv"):
        assert s3.get(f"run/{path.name}") == path.read_bytes()


def test_a_damaged_local_copy_loses_nothing_at_the_url(
    s3: S3, dump: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAITS", ())
    s3.fail("PUT", error(500), path="/run/run.json")
    with pytest.raises(StoreError, match="all files are kept in") as caught:
        run_analysis(config(dump, s3.url("run")))
    folder = Path(str(caught.value).rpartition("kept in ")[2])
    s3.heal()
    for name in ("head_metrics.csv", ".heads/l00h01.json"):
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
    s3.requests.clear()
    notes: list[str] = []
    run_analysis(config(dump, s3.url("run")), Notes(notes))
    assert notes[1:] == ["8 of 8 heads were finished earlier and are kept"]
    puts = [request.path for request in s3.requests if request.method == "PUT"]
    assert not any(".heads/l0" in path for path in puts)
    assert_same(s3, "run", local)


@pytest.mark.parametrize("stalled", ["/.heads/l0", "/head_metrics.csv"])
def test_an_interruption_does_not_wait_for_a_server_that_does_not_answer(
    s3: S3, dump: Path, stalled: str
) -> None:
    """Records are sent by a thread, tables by the main thread."""
    plan = s3.fail("PUT", slow(100.0), path=stalled)
    with started(dump, s3.url("run")) as run:
        while not plan.hits and run.poll() is None:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, messages = run.communicate()
    assert run.returncode == 130, messages
    assert messages.splitlines()[-1].startswith("interrupted; ")
    assert not any(stalled in request.path for request in s3.requests)  # no answer until now


@pytest.mark.parametrize("stalled", ["/.heads/l0", "/head_metrics.csv"])
def test_the_folder_stays_locked_while_a_request_is_in_progress(
    s3: S3, dump: Path, stalled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, where the process lives on after an interruption."""
    monkeypatch.setattr("qk_toolkit.uploads._SECONDS", 0.01)
    monkeypatch.setattr("qk_toolkit.uploads._SECONDS_TO_STOP", 0.05)
    plan = s3.fail("PUT", slow(4.0), path=stalled, times=1)
    settings = config(dump, s3.url("run"))
    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: plan.hits > 0):
        run_analysis(settings)
    with pytest.raises(ConfigError, match="another run is writing here"):
        run_analysis(settings)
    while (locked := refusal_of(settings)) is not None:  # until the thread has ended
        assert "another run is writing here" in locked
        time.sleep(0.1)


@contextmanager
def interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Send Ctrl-C to this process during the block, as Python handles it in a notebook."""

    def interrupt() -> None:
        while not condition():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # another test may have imported the entry point of a command, which ends the process
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def refusal_of(settings: ap.RunnerConfig) -> str | None:
    """Why a run cannot begin; None if it was made."""
    try:
        run_analysis(settings)
    except ConfigError as error:
        return str(error)
    return None


class Notes(Watcher):
    """Keeps the notes of a run."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def note(self, text: str) -> None:
        self._notes.append(text)


def test_other_results_at_the_url_are_refused_then_set_aside(
    s3: S3, dump: Path, part: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.url("run")
    s3.put_folder(part, "run")
    with pytest.raises(ConfigError, match=f"{url}: holds results of an earlier run that differs"):
        run_analysis(config(dump, url, heads="1"))
    for number in (1, 2):
        notes: list[str] = []
        other = config(dump, url, heads="1", output_csv="new.csv", overwrite=True)
        run_analysis(other, Notes(notes))
        assert notes[-1] == f"files of an earlier run were moved to {url}/previous-{number}"
        use_machine(tmp_path / f"machine-{number}", monkeypatch)
    old = (part / "head_metrics.csv").read_bytes()
    assert s3.get("run/previous-1/head_metrics.csv") == old
    assert "run/head_metrics.csv" not in s3.names()
    assert len([name for name in s3.names("run/.heads/") if "/l0" in name]) == 2
    for name in s3.names("run/"):
        s3.delete(name)
    run_analysis(config(dump, url, heads="0"))  # nothing of the removed run is left
    assert set(ap.open_run(url).head_metrics["q_head"]) == {0}


def test_shards_record_at_one_url_and_merge_makes_the_tables(
    s3: S3,
    dump: Path,
    local: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = s3.url("run")

    def recorded_by(index: int, place: str) -> int:
        use_machine(tmp_path / f"machine-{index}", monkeypatch)
        fields = {"engine": "shards", "num_shards": 2, "shard_index": index}
        outcome = run_shard(config(dump, place, **fields))
        assert outcome.place == place
        assert local_files() == []
        return outcome.recorded

    assert recorded_by(0, url) == 4
    for name in s3.names("run/"):  # what the shard would have written there
        s3.put(f"run-0/{name.removeprefix('run/')}", s3.get(name))
    assert recorded_by(1, url) == 8
    assert recorded_by(1, f"{url}-1") == 4
    assert main(["merge", f"{url}/"]) == 0
    assert f"{url}/run.json" in capsys.readouterr().out
    assert_same(s3, "run", local)
    merge_shards([f"{url}-0", f"{url}-1"], s3.url("merged"))
    merge_shards([f"{url}-0", f"{url}-1"], tmp_path / "merged")
    for path in local.glob("*.csv"):
        assert s3.get(f"merged/{path.name}") == path.read_bytes()
        assert (tmp_path / "merged" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(ConfigError, match=f"{s3.url('merged')}: has no records of shards"):
        merge_shards([s3.url("merged")])
    removed = next(name for name in s3.names("run-0/.heads/") if "/l0" in name)
    s3.delete(removed)
    s3.put("run-0/run.json", b"{}")
    FinishedRun.open(f"{url}-0")  # does not change the copy of the records
    outcome = merge_shards([f"{url}-0", f"{url}-1"], tmp_path / "merged")
    assert [failure.reason for failure in outcome.failures] == ["no shard has computed this head"]


def test_a_shard_whose_local_copy_is_of_another_dump_names_the_folder(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAITS", ())
    one, two = (
        make_dump(tmp_path / str(rows), layers=1, q_heads=1, k_heads=1, n=rows) for rows in (60, 80)
    )
    fields = {"engine": "shards", "num_shards": 1, "shard_index": 0}
    s3.fail("PUT", error(500), path="l0")
    with pytest.raises(StoreError):
        run_shard(config(one, s3.url("run"), **fields))
    s3.heal()
    for name in s3.names("run"):
        s3.delete(name)
    with pytest.raises(ConfigError, match=f"and the local copy {cache_folder()}") as caught:
        run_shard(config(two, s3.url("run"), **fields))
    shutil.rmtree(str(caught.value).rpartition("the local copy ")[2].rstrip("."))
    assert run_shard(config(two, s3.url("run"), **fields)).finished == 1


def test_several_dumps_have_folders_at_the_url(
    s3: S3, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAITS", ())
    other = make_dump(tmp_path / "other", layers=1, q_heads=2, k_heads=1, n=120)
    common = ap.make_config(output_dir=s3.url("all"), max_workers=1)
    s3.fail("PUT", error(500), path="/all/other/run.json")
    outcomes = list(run_analyses(configs_of(common, [str(other), str(dump)])))
    failed = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert [isinstance(outcome.reason, StoreError) for outcome in failed] == [True]
    assert f"all/{dump.name}/run.json" in s3.names()
    assert "all/other/head_metrics.csv" in s3.names()


def test_places_that_cannot_be_used_are_refused(
    s3: S3, dump: Path, part: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3.url("run")
    for fields, reason in (
        ({"output_dir": "hf://owner/name"}, "expected owner/name@branch"),
        ({"output_dir": "hf://datasets/owner/name", "engine": "shards"}, "cannot record heads"),
        ({"output_dir": url, "bucket_csv": "tables/b.csv"}, "a name without a folder"),
        ({"output_dir": "s3://key:secret@bucket/run"}, "s3://…@bucket: a URL with a password"),
        ({"output_csv": f"{url}/a.csv"}, "is a URL; give its folder as output_dir"),
        ({"output_csv": "s3://key:secret@bucket/a.csv"}, "s3://…@bucket: a URL with a password"),
    ):
        with pytest.raises(ConfigError, match=reason):
            ap.make_config(fields)
    with pytest.raises(ConfigError, match="inside a dump"):
        run_analysis(config(dump, s3.url("dump/l00h00q")))
    with pytest.raises(ConfigError, match="is a URL; a path on this machine is needed"):
        ap.open_run(part).report().save(f"{url}/report.html")
    secret = "s3://AKIAKEY:abc/SECRET@bucket/x"
    for words in (
        ["analyze", secret],
        ["analyze", str(dump), "--output_dir", secret],
        ["analyze", str(dump), "--model_dir", secret],
        ["merge", secret],
        ["report", secret],
        ["push", secret, "--repo", "me/x", "--branch", "b"],
    ):
        assert main(words) == 2
        printed = "".join(capsys.readouterr())
        assert "s3://…@bucket" in printed
        assert "SECRET" not in printed
        assert "AKIAKEY" not in printed
    assert main(["analyze", str(dump), "--output_dir", "s3://no-such-bucket-of-ours/run"]) == 1
    error_line = capsys.readouterr().err.splitlines()[-1]
    assert error_line.startswith("error: s3://no-such-bucket-of-ours/run: listing failed")
    assert main(["analyze", str(dump), "--output_dir", url, "--dry_run"]) == 0
    assert s3.names() == []


def test_the_hub_gets_the_tables_in_one_commit(dump: Path, tmp_path: Path) -> None:
    url, one = "hf://datasets/me/qk@results/mine", {"heads": "0", "single_example": True}
    local = run_analysis(config(dump, tmp_path / "local", **one)).paths.folder
    with running_hub() as hub, client_of(hub, tmp_path / "cache"):
        hub.fail("commit", status(500), times=99)
        with pytest.raises(HubError, match=f"all files are kept in {cache_folder()}"):
            run_analysis(config(dump, url, heads="0"))
        hub.heal()
        notes: list[str] = []
        run_analysis(config(dump, url, heads="0"), Notes(notes))
        assert notes[-1] == "2 of 2 heads were finished earlier and are kept"
        assert "mine/key_head_metrics.csv" in hub.branch("me/qk", "results")
        run_analysis(config(dump, url, overwrite=True, **one))  # it has fewer tables
        found = hub.branch("me/qk", "results")
        assert sorted(name for name in found if name.startswith("mine/")) == sorted(
            f"mine/{path.name}" for path in local.iterdir() if path.name[0] != "."
        )
        for path in local.glob("*.csv"):
            assert found[f"mine/{path.name}"] == path.read_bytes()
        assert len(hub.commits("me/qk", "results")) == 3  # with that of the dataset
        fields = {"engine": "shards", "num_shards": 1, "shard_index": 0}
        run_shard(config(dump, tmp_path / "shard", heads="0", **fields))
        merge_shards([tmp_path / "shard"], "hf://datasets/me/new@results")  # makes the dataset
        assert "run.json" in hub.branch("me/new", "results")
        assert ap.open_run(url).head_metrics.equals(ap.open_run(local).head_metrics)
