"""Results at URLs, with a real S3 server and a local Hub: the tables of a local run, always."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.tables.finished_run import FinishedRun
from dumps import make_dump
from hub_server import CLIENT_WARNINGS, running_hub, status
from hubs import client_of, upload
from qk_dump.manifest import DumpManifest, write_manifest
from qk_toolkit.cache import cache_folder
from qk_toolkit.errors import ConfigError, HubError, StoreError
from runs_here import Here, Notes, analyse, compared_info, computed, records, run_info, tables
from s3_server import S3, error, slow
from waiting import PATIENCE, wait_for

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)
FAST: dict[str, Any] = {"num_pairs_per_bin": 8, "num_pairs_per_bucket": 8}
LAYERS = 2
HEADS = [(layer, head) for layer in range(LAYERS) for head in range(2)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_machine(tmp_path / "first", monkeypatch)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_dump(tmp_path_factory.mktemp("d") / "dump", layers=LAYERS, q_heads=2, k_heads=1)
    write_manifest(folder, DumpManifest(num_layers=LAYERS, num_q_heads=2, num_k_heads=1))
    return folder


@pytest.fixture(scope="module")
def local(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a local run."""
    out = tmp_path_factory.mktemp("local")
    analyse(dump, out, **FAST)
    return out


def use_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work as if on another machine: with a cache of its own."""
    monkeypatch.setenv("ATTENTION_PLASTICITY_CACHE", str(folder))


def assert_same(s3: S3, local: Path, tmp_path: Path, prefix: str = "run") -> None:
    """The files at the URL are those of the local run, and nothing is left on this machine."""
    folder = tmp_path / "fetched"
    for name in s3.names(f"{prefix}/"):
        target = folder / name.removeprefix(f"{prefix}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(s3.get(name))
    assert tables(folder) == tables(local)
    assert compared_info(folder) == compared_info(local)
    assert [path.name for path in records(folder)] == [path.name for path in records(local)]
    assert local_files() == []


def local_files() -> list[str]:
    """Files that are left in the cache, except locks and what was fetched to be read."""
    found = (path for path in cache_folder().rglob("*") if path.is_file())
    return [one.name for one in found if ".lock" not in one.name and "read" not in one.parts]


def recorded(s3: S3) -> int:
    return sum(name.endswith(".record") for name in s3.names("run/.heads/"))


def kept_folder(caught: pytest.ExceptionInfo[Any]) -> Path:
    """The local folder that a message names."""
    return Path(str(caught.value).rpartition("kept in ")[2])


def test_the_command_writes_the_tables_of_a_local_run(
    s3: S3, dump: Path, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3.url("run")
    analyse(dump, f"{url}/", **FAST)
    puts = [request.path for request in s3.requests if request.method == "PUT"]
    assert puts[-1].endswith("/run.json")
    assert_same(s3, local, tmp_path)
    words = [word for name, value in FAST.items() for word in (f"--{name}", str(value))]
    assert main(["analyze", str(dump), "--output_dir", url, *words]) == 0
    told = capsys.readouterr()
    assert "4 of 4 heads were finished earlier" in told.err
    assert url in told.out
    assert str(cache_folder()) not in told.out + told.err
    assert ap.open_run(url).head_metrics.equals(ap.open_run(local).head_metrics)
    assert main(["analyze", str(dump), "--output_dir", url, *words, "--dry_run"]) == 0
    assert "4 heads, with these settings and files" in capsys.readouterr().out


def test_reading_fetches_only_what_changed(s3: S3, local: Path) -> None:
    s3.put_folder(local, "run")
    FinishedRun.open(s3.url("run"))
    s3.requests.clear()
    assert len(FinishedRun.open(s3.url("run")).head_metrics) == 4
    assert {request.path.partition("?")[0] for request in s3.requests} <= {f"/{s3.bucket}"}


def test_another_machine_has_the_heads_of_a_command_whose_tables_were_not_sent(
    s3: S3, dump: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.fail("PUT", error(500), path=".csv")
    with pytest.raises(StoreError, match="all files are kept in"):
        analyse(dump, s3.url("run"), layers=[0], **FAST)
    s3.heal()
    assert recorded(s3) == 1
    assert "run/run.json" not in s3.names()
    use_machine(tmp_path / "second", monkeypatch)
    watcher, engine = Notes(), Here()
    analyse(dump, s3.url("run"), engine=engine, watcher=watcher, **FAST)
    assert watcher.notes[-1] == "2 of 4 heads were finished earlier and are kept"
    assert engine.heads == HEADS[2:]
    assert_same(s3, local, tmp_path)


def test_two_machines_with_other_layers_at_the_same_time(
    s3: S3, dump: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second machine ends while the first is still at work. The first has all heads."""

    def other_machine(layer: int, k_head: int) -> None:
        if not s3.names("run/run.json"):
            use_machine(tmp_path / "second", monkeypatch)
            analyse(dump, s3.url("run"), layers=[1], **FAST)
            use_machine(tmp_path / "first", monkeypatch)

    outcome = analyse(dump, s3.url("run"), engine=Here(other_machine), layers=[0], **FAST)
    assert outcome.info["heads"]["analysed"] == 4
    assert_same(s3, local, tmp_path)


def test_two_commands_on_one_machine_are_refused(s3: S3, dump: Path) -> None:
    """They would share a local folder, which the first removes at its end."""
    refused: list[str] = []

    def second(layer: int, k_head: int) -> None:
        with pytest.raises(ConfigError) as caught:
            analyse(dump, s3.url("run"), layers=[1], **FAST)
        refused.append(str(caught.value))

    analyse(dump, s3.url("run"), engine=Here(second), layers=[0], **FAST)
    assert refused == [f"{s3.url('run')}: another command on this machine is writing here"]


@pytest.mark.parametrize("path", ["/run/head_metrics.csv", ".record"])
def test_a_failed_upload_loses_nothing(
    s3: S3, dump: Path, local: Path, tmp_path: Path, path: str
) -> None:
    s3.fail("PUT", error(500), path=path)
    with pytest.raises(StoreError, match="all files are kept in") as caught:
        analyse(dump, s3.url("run"), **FAST)
    assert len(records(kept_folder(caught))) == 2
    assert "secret-of-the-test" not in str(caught.value)
    assert "run/run.json" not in s3.names()
    s3.heal()
    assert computed(dump, s3.url("run"), **FAST) == []
    assert_same(s3, local, tmp_path)


def test_a_store_that_cannot_be_reached_is_named(s3: S3, dump: Path) -> None:
    s3.fail("*", error(503))
    engine = Here()
    with pytest.raises(StoreError, match=f"{s3.url('run')}: listing failed"):
        analyse(dump, s3.url("run"), engine=engine)
    assert engine.heads == []  # before any work


def test_tables_of_other_settings_do_not_stay(
    s3: S3, dump: Path, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_folder(local, "run")
    s3.put("run/head_kernel.csv", b"stale")
    other = analyse(dump, tmp_path / "other", single_example=True, **FAST)
    gone = set(tables(local)) - set(other.info["tables"].values())
    assert gone
    analyse(dump, s3.url("run"), single_example=True, **FAST)
    assert not {f"run/{name}" for name in (*gone, "head_kernel.csv")} & set(s3.names("run/"))
    for path in (tmp_path / "other").glob("*.csv"):
        assert s3.get(f"run/{path.name}") == path.read_bytes()
    use_machine(tmp_path / "second", monkeypatch)
    assert computed(dump, s3.url("run"), **FAST) == []  # back, without computation


@contextmanager
def interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Send Ctrl-C to this process during the block, as Python handles it in a notebook."""

    def interrupt() -> None:
        wait_for("a request that is not answered", condition)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_an_interruption_does_not_wait_for_a_server_that_does_not_answer(
    s3: S3, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")  # the server of the tests may fail under load
    plan = s3.fail("PUT", slow(PATIENCE), path="/head_metrics.csv")
    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: plan.hits > 0):
        analyse(dump, s3.url("run"), **FAST)
    answered = [request.path for request in s3.requests if request.method == "PUT"]
    assert not any(path.endswith("/head_metrics.csv") for path in answered)
    s3.heal()


# the Hub


def test_the_hub_gets_the_tables_in_one_commit(dump: Path, tmp_path: Path) -> None:
    url, single = "hf://datasets/me/qk@results/mine", {"single_example": True, **FAST}
    analyse(dump, tmp_path / "local", **single)
    with running_hub() as hub, client_of(hub, tmp_path / "cache"):
        hub.fail("commit", status(500), times=99)
        with pytest.raises(HubError, match=f"all files are kept in {cache_folder()}"):
            analyse(dump, url, **FAST)
        hub.heal()
        assert computed(dump, url, **FAST) == []
        assert "mine/key_head_metrics.csv" in hub.branch("me/qk", "results")
        analyse(dump, url, **single)  # it has fewer tables
        found = hub.branch("me/qk", "results")
        expected = {f"mine/{path.name}" for path in (tmp_path / "local").iterdir()}
        assert {name for name in found if name.startswith("mine/")} == expected - {"mine/.heads"}
        for name, content in tables(tmp_path / "local").items():
            assert found[f"mine/{name}"] == content
        assert len(hub.commits("me/qk", "results")) == 3  # with that of the dataset


def test_layers_of_a_dump_on_the_hub_are_fetched_one_by_one_and_kept(
    dump: Path, local: Path, tmp_path: Path
) -> None:
    """The files of the other layers are not here, but their records are.

    The dump names no texts, so the bins of all layers come from its first query head.
    """
    out, engine = tmp_path / "out", Here()
    with running_hub() as hub, client_of(hub, tmp_path / "cache"):
        upload(hub, dump)
        place: Any = "hf://datasets/me/qk@tiny"
        for layer, analysed in ((1, 2), (0, 4)):
            analyse(place, out, engine=engine, layers=[layer], **FAST)
            assert run_info(out)["heads"]["analysed"] == analysed
            fetched = list((tmp_path / "cache").rglob(f"l{layer:02d}h00q"))
            assert fetched
            assert analysed == 4 or not list((tmp_path / "cache").rglob("l00h01q"))
        assert sorted(engine.heads) == HEADS
        assert tables(out) == tables(local)
        assert run_info(out)["heads"]["not_captured"] == 0
        analyse(place, out, engine=engine, layers=[0], seed=1, **FAST)
        analyse(place, out, engine=engine, layers=[0], **FAST)
        analyse(place, out, engine=engine, **FAST)
        assert len(engine.heads) == 6
        assert tables(out) == tables(local)
        assert run_info(out)["input"]["hub"]["revision"] == "tiny"
