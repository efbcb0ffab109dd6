"""Fetching a dump into a folder: whole or not to be read, continued, and beside nothing else."""

import shutil
import subprocess

import huggingface_hub.constants as constants
import pytest

import hub_server
from commands import command
from dumps import make_dump
from hub_server import slow
from hubs import REPO, TINY, downloads, files_of, pull_refusal, upload
from qk_dump.hub.fetch import HeadChoice, fetch_dump
from qk_dump.hub.place import HubPlace
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError
from waiting import PATIENCE, wait_for

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = make_dump(tmp_path_factory.mktemp("dump"), n=40)
    write_manifest(folder, DumpManifest(model="m", num_layers=2, num_q_heads=4, num_k_heads=2))
    return folder


@pytest.fixture
def into(tmp_path):
    return tmp_path / "data" / "mine"


@pytest.mark.usefixtures("client")
def test_a_folder_gets_the_dump_and_a_second_time_costs_nothing(hub, local, into, cache):
    upload(hub, local)
    first = fetch_dump(TINY, choice=HeadChoice([0], [1]), into=str(into))
    assert first.folder == into
    assert {*files_of(into)} == {"dump.json", "l00h00k/data.parquet", "l00h01q/data.parquet"}
    hub.log.clear()
    fetch_dump(TINY, into=str(into))
    assert files_of(into) == files_of(local)
    assert len(downloads(hub)) == 10  # of 12 heads
    assert not list(cache.rglob("*.parquet"))
    hub.log.clear()
    assert fetch_dump(TINY, into=str(into)).heads == open_dump(into).folders
    assert not downloads(hub)


@pytest.mark.usefixtures("client")
def test_a_folder_is_filled_from_the_cache(hub, local, into, monkeypatch):
    upload(hub, local, "main", "model/")
    place = HubPlace(REPO)
    cached = fetch_dump(place).folder
    damaged = cached / "l01h02q" / "data.parquet"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    hub.log.clear()
    fetch_dump(place, into=str(into))
    assert files_of(into) == files_of(local)
    assert downloads(hub) == ["model/l01h02q/data.parquet"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = into.with_name("again")
    assert "no checked copy of model/l01h02q" in pull_refusal(place, into=str(again))
    with pytest.raises(ConfigError, match="was not fetched to the end"):
        open_dump(again)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fetch_dump(place, into=str(again))
    assert files_of(again) == files_of(local)


def test_a_killed_pull_into_a_folder_continues(hub, local, into, tmp_path):
    upload(hub, local)
    cache = ("--cache_dir", tmp_path / "cache", "--max_workers", 1)
    words = ("pull", f"{REPO}@tiny", into, *cache)
    plan = hub.fail("resolve_get", slow(PATIENCE), skip=6, times=None)
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command(*words), env=hub.environment, stdout=quiet) as running:
        try:
            wait_for("the seventh file", lambda: plan.hits)
        finally:
            running.kill()
    first = downloads(hub)
    hub.heal()
    hub.log.clear()
    with pytest.raises(ConfigError, match=f"pull {REPO}@tiny {into}"):
        open_dump(into)
    staged = next((into / ".capture").rglob("l*/data.parquet"))
    staged.write_bytes(bytes(staged.stat().st_size))
    done = subprocess.run(command(*words), env=hub.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(into)
    assert {*first} & {*downloads(hub)} == {f"{staged.parent.name}/data.parquet"}
    assert files_of(into) == files_of(local)


@pytest.mark.usefixtures("client")
def test_a_folder_with_other_data_is_refused_and_left_alone(hub, local, into):
    upload(hub, local)
    upload(hub, make_dump(into.parent / "other", n=41), "other")
    shutil.copytree(local, into)
    (into / "notes.txt").write_text("mine")
    before = files_of(into)
    assert "holds other data: notes.txt is not that of me/qk@tiny" in pull_refusal(into=str(into))
    assert files_of(into) == before
    (into / "notes.txt").unlink()
    said = pull_refusal(HubPlace(REPO, "other"), into=str(into))
    assert "holds other data: dump.json is not that of me/qk@other" in said
    assert files_of(into) == files_of(local)
    file = str(local / "dump.json")
    assert f"{file}: is no folder of this machine" in pull_refusal(into=file)
    assert "s3://bucket/dump: is a URL" in pull_refusal(into="s3://bucket/dump")
