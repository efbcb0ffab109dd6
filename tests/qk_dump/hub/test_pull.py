"""Fetching a dump with the real client: the right commit, what is needed, every byte checked."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest

import qk_dump.hub.pull
from captures import content
from commands import command
from dumps import add_attended, make_dump
from hub_server import (
    CLIENT_WARNINGS,
    HubServer,
    slow,
    status,
)
from hub_server import hub as hub  # the fixture
from hubs import REPO, downloads, upload
from pulling import FILE, MANIFEST, TINY
from pulling import cache as cache  # the fixtures
from pulling import client as client
from pulling import local as local
from qk_dump.hub.branches import dumps_on_branches
from qk_dump.hub.files import RemoteFile
from qk_dump.hub.place import HubPlace, parse_place
from qk_dump.hub.pull import Fetched, HeadChoice, fetch_dump
from qk_dump.manifest import write_manifest
from qk_dump.source import DumpSource, open_dump
from qk_dump.tokens import read_tokens, write_tokens
from qk_toolkit.errors import ConfigError, HubError

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another dump with the same heads, without layer 1's last query head."""
    folder = make_dump(tmp_path_factory.mktemp("other"), n=41)
    write_manifest(folder, MANIFEST)
    shutil.rmtree(folder / "l01h03q")
    return folder


def heads(fetched: Fetched) -> list[str]:
    return sorted(path.name for path in fetched.folder.iterdir() if path.is_dir())


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were hashed."""
    names: list[str] = []
    is_same = RemoteFile.is_same

    def listening(file: RemoteFile, content: Path) -> bool:
        names.append(content.parent.name)
        return is_same(file, content)

    monkeypatch.setattr(RemoteFile, "is_same", listening)
    return names


@pytest.mark.usefixtures("client")
def test_a_branch_comes_whole_and_a_second_time_costs_nothing(
    hub: HubServer, local: Path, hashed: list[str]
) -> None:
    commit = upload(hub, local)
    told: list[tuple[int, int]] = []
    fetched = fetch_dump(TINY, on_bytes=lambda done, total: told.append((done, total)))
    assert fetched.commit == commit
    assert commit in fetched.describe()
    assert content(fetched.folder) == content(local)
    parquet = sum(path.stat().st_size for path in local.rglob("*.parquet"))
    assert told[0] == (0, parquet)
    assert told[-1] == (parquet, parquet)
    assert told == sorted(told)
    hub.log.clear()
    hashed.clear()
    assert fetch_dump(TINY, on_bytes=lambda done, total: told.append((done, total))) == fetched
    assert told[-1] == (parquet, parquet)
    assert not hub.requests("resolve_get", "resolve_head")
    assert not hashed


@pytest.mark.usefixtures("client")
def test_texts_of_tokens_come_with_any_head(hub: HubServer, local: Path, tmp_path: Path) -> None:
    dump = shutil.copytree(local, tmp_path / "dump")
    write_tokens(dump, {7: " the"})
    upload(hub, dump)
    assert read_tokens(fetch_dump(TINY, choice=HeadChoice([1], [3])).folder) == {7: " the"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (HeadChoice([1]), "l01h00k l01h00q l01h01k l01h01q l01h02q l01h03q"),
        (HeadChoice([1], [3]), "l01h01k l01h03q"),
        (HeadChoice(None, [0, 1]), "l00h00k l00h00q l00h01q l01h00k l01h00q l01h01q"),
        (HeadChoice([0], [2], group=1), "l00h02q"),  # a config that is refused afterwards
    ],
)
@pytest.mark.usefixtures("client")
def test_only_the_wanted_heads_and_their_keys_travel(
    hub: HubServer, local: Path, choice: HeadChoice, expected: str
) -> None:
    upload(hub, local)
    fetched = fetch_dump(TINY, choice=choice)
    assert heads(fetched) == expected.split()
    assert sorted(downloads(hub)) == sorted(
        ["dump.json", *(f"{head}/data.parquet" for head in expected.split())]
    )
    assert len(fetched.heads) == 12


@pytest.mark.parametrize("below", ["", "model/"])
@pytest.mark.usefixtures("client")
def test_keys_drawn_by_attention_come_with_their_key_head(
    hub: HubServer, local: Path, tmp_path: Path, below: str
) -> None:
    folder = Path(shutil.copytree(local, tmp_path / "dump"))
    for layer in range(2):
        add_attended(folder, layer, 1)
    upload(hub, folder, below=below)
    dump = open_dump(f"hf://datasets/{REPO}@tiny", choice=HeadChoice([1], [3]))
    parquet = sorted(name for name in downloads(hub) if name.endswith(".parquet"))
    expected = ["attended/l01h01k", "l01h01k", "l01h03q"]
    assert parquet == [f"{below}{head}/data.parquet" for head in expected]
    assert len(dump.folders) == 12
    assert [head.folder for head in dump.attended] == ["attended/l00h01k", "attended/l01h01k"]
    assert [file.name for file in dump.attended_files(1, 1)] == ["data.parquet"]
    assert dumps_on_branches(f"hf://datasets/{REPO}@*") == [f"hf://datasets/{REPO}@tiny"]


@pytest.mark.usefixtures("client")
def test_files_of_one_content_are_fetched_and_checked_once(
    hub: HubServer, local: Path, tmp_path: Path, hashed: list[str]
) -> None:
    """Empty files of attended keys have the same bytes, and one place in the cache."""
    folder = Path(shutil.copytree(local, tmp_path / "dump"))
    empty = add_attended(folder, n=0)
    for head in range(1, 12):
        shutil.copytree(empty.parent, folder / "attended" / f"l01h{head:02d}k")
    upload(hub, folder)
    fetch_dump(TINY)
    assert sum(name.startswith("attended") for name in downloads(hub)) == 1
    hub.log.clear()
    hashed.clear()
    fetch_dump(TINY)
    assert not hub.requests("resolve_get")
    assert not hashed


@pytest.mark.usefixtures("client")
def test_attended_keys_alone_are_no_dump(hub: HubServer, tmp_path: Path) -> None:
    add_attended(tmp_path)
    upload(hub, tmp_path)
    with pytest.raises(ConfigError, match="no heads found"):
        fetch_dump(TINY)
    with pytest.raises(ConfigError, match="no branch of the dataset has heads"):
        dumps_on_branches(f"hf://datasets/{REPO}@*")


@pytest.mark.usefixtures("client")
def test_without_a_layout_everything_comes(hub: HubServer, local: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(local, tmp_path / "bare"))
    (bare / "dump.json").unlink()
    upload(hub, bare)
    assert len(heads(fetch_dump(TINY, choice=HeadChoice([1], [3])))) == 12


@pytest.mark.usefixtures("client")
def test_more_heads_are_added_to_those_that_are_here(hub: HubServer, local: Path) -> None:
    upload(hub, local)
    fetch_dump(TINY, choice=HeadChoice([0]))
    hub.log.clear()
    fetched = fetch_dump(TINY, choice=HeadChoice([0, 1], [0]))
    assert sorted(downloads(hub)) == ["l01h00k/data.parquet", "l01h00q/data.parquet"]
    assert len(heads(fetched)) == 8


@pytest.mark.usefixtures("client")
def test_another_branch_is_never_taken_for_this_one(
    hub: HubServer, local: Path, other: Path
) -> None:
    upload(hub, local, "a")
    upload(hub, other, "b")
    assert content(fetch_dump(HubPlace(REPO, "a")).folder) == content(local)
    hub.fail("*", status(500), times=None)
    with pytest.raises(HubError, match="me/qk@b: fetching failed: the Hub answered 500"):
        fetch_dump(HubPlace(REPO, "b"))
    with pytest.raises(HubError):  # nor is a branch that may have moved taken from the cache
        fetch_dump(HubPlace(REPO, "a"))
    hub.heal()
    assert content(fetch_dump(HubPlace(REPO, "b")).folder) == content(other)


@pytest.mark.usefixtures("client")
def test_a_branch_that_moved_is_fetched_anew_and_what_it_lost_is_gone(
    hub: HubServer, local: Path, other: Path
) -> None:
    upload(hub, local)
    before = fetch_dump(TINY)
    commit = upload(hub, other)
    after = fetch_dump(TINY)
    assert after.commit == commit != before.commit
    assert content(after.folder) == content(other)
    assert "l01h03q" not in heads(after)
    assert content(fetch_dump(HubPlace(REPO, before.commit)).folder) == content(local)


@pytest.mark.parametrize("damage", ["size", "bytes", "removed"])
@pytest.mark.usefixtures("client")
def test_a_file_that_was_damaged_here_is_fetched_again(
    hub: HubServer, local: Path, damage: str
) -> None:
    upload(hub, local)
    blob = (fetch_dump(TINY).folder / FILE).resolve()
    data = blob.read_bytes()
    if damage == "removed":
        blob.unlink()
    else:
        blob.write_bytes(data[:-1] if damage == "size" else b"?" + data[1:])
    hub.log.clear()
    fetched = fetch_dump(TINY)
    assert content(fetched.folder) == content(local)
    assert set(downloads(hub)) == {FILE}


def test_a_cache_that_cannot_be_written_can_be_read(
    hub: HubServer, local: Path, cache: Path, client: pytest.MonkeyPatch
) -> None:
    upload(hub, local)
    fetched = fetch_dump(TINY)

    def refuse(target: Path, text: str) -> None:
        raise AssertionError(f"{target} is written")

    client.setattr(qk_dump.hub.pull, "write_text", refuse)
    assert fetch_dump(TINY) == fetched
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_dump(TINY).folder == fetched.folder


def test_offline_the_checked_copy_is_used_and_said(
    hub: HubServer, local: Path, other: Path, client: pytest.MonkeyPatch
) -> None:
    upload(hub, local)
    online = fetch_dump(TINY)
    upload(hub, other)
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    fetched = fetch_dump(TINY)
    assert not hub.log
    assert (fetched.commit, fetched.checked_online) == (online.commit, False)
    assert fetched.describe().endswith(f"{online.commit}, offline: the checked copy in the cache")
    assert content(fetched.folder) == content(local)
    assert fetched.as_record()["checked_online"] is False
    by_commit = fetch_dump(HubPlace(REPO, online.commit))
    assert content(by_commit.folder) == content(local)


def test_offline_a_newer_commit_of_which_nothing_came_hides_no_older_one(
    hub: HubServer, local: Path, other: Path, client: pytest.MonkeyPatch
) -> None:
    upload(hub, local)
    before = fetch_dump(TINY)
    upload(hub, other)
    hub.fail("resolve_get", status(403), path=FILE, times=None)
    with pytest.raises(HubError):
        fetch_dump(TINY)
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_dump(TINY).commit == before.commit


def test_offline_without_a_checked_copy_is_told(
    hub: HubServer, local: Path, client: pytest.MonkeyPatch
) -> None:
    upload(hub, local)
    hub.api().hf_hub_download(
        REPO, FILE, repo_type="dataset", revision="tiny", cache_dir=constants.HF_HUB_CACHE
    )  # by another program: nobody checked it
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="offline, and the cache holds no checked copy of it"):
        fetch_dump(TINY)
    client.setattr(constants, "HF_HUB_OFFLINE", False)
    fetch_dump(TINY, choice=HeadChoice([1], [0]))
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    fetch_dump(TINY, choice=HeadChoice([1], [0]))
    with pytest.raises(HubError, match=r"no checked copy of l00h00k/data.parquet of commit"):
        fetch_dump(TINY)


def test_offline_a_file_that_was_damaged_here_is_told(
    hub: HubServer, local: Path, client: pytest.MonkeyPatch
) -> None:
    upload(hub, local)
    file = fetch_dump(TINY).folder / FILE
    file.write_bytes(b"?" + file.read_bytes()[1:])
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=f"no checked copy of {FILE} of commit"):
        fetch_dump(TINY)


@pytest.mark.usefixtures("client")
def test_heads_may_lie_below_a_folder(hub: HubServer, local: Path) -> None:
    upload(hub, local, "main", "model/")
    place = HubPlace(REPO)
    for given in (place, HubPlace(REPO, folder="model"), HubPlace(REPO, folder="./model/")):
        fetched = fetch_dump(given, choice=HeadChoice([0], [3]))
        assert heads(fetched) == ["l00h01k", "l00h03q"]
        assert fetched.folder.name == "model"
        assert fetched.as_record()["model_dir"] == "model"
    dump = open_dump(f"hf://datasets/{REPO}")
    assert dump.name == "model"
    assert dump.manifest == MANIFEST
    with pytest.raises(ConfigError, match=r"no heads found. Set model_dir to one of: model"):
        fetch_dump(HubPlace(REPO, folder="modle"))


@pytest.mark.usefixtures("client")
def test_several_models_are_listed(hub: HubServer, local: Path, tmp_path: Path) -> None:
    for name in ("gemma", "qwen"):
        shutil.copytree(local, tmp_path / "both" / name)
    upload(hub, tmp_path / "both", "main")
    with pytest.raises(ConfigError, match="Set model_dir to one of: gemma, qwen"):
        fetch_dump(HubPlace(REPO))
    assert content(fetch_dump(HubPlace(REPO, "main", "qwen")).folder) == content(local)
    assert not any("gemma" in path for path in downloads(hub))


@pytest.mark.usefixtures("client")
def test_a_folder_that_is_none_or_a_branch_without_heads_is_told(
    hub: HubServer, local: Path
) -> None:
    upload(hub, local)
    with pytest.raises(ConfigError, match="in the root of the branch: leave model_dir out"):
        fetch_dump(HubPlace(REPO, "tiny", "model"))
    with pytest.raises(ConfigError, match=r"me/qk@main: no heads found. Name the branch of"):
        fetch_dump(HubPlace(REPO))
    with pytest.raises(ConfigError, match=r"none of the selected .* Its layers: 0, 1\."):
        fetch_dump(TINY, choice=HeadChoice([7]))


@pytest.mark.usefixtures("client")
def test_a_branch_may_have_a_slash_in_its_name(hub: HubServer, local: Path) -> None:
    upload(hub, local, "team/tiny")
    dump = open_dump(f"hf://datasets/{REPO}@team%2Ftiny")
    assert content(dump.path) == content(local)
    assert dump.name == "team-tiny"
    assert parse_place(str(HubPlace(REPO, "team/tiny", "m"))) == HubPlace(REPO, "team/tiny", "m")


@pytest.mark.usefixtures("client")
def test_a_dump_lists_the_heads_that_were_not_fetched(hub: HubServer, local: Path) -> None:
    upload(hub, local)
    notes: list[str] = []
    source = DumpSource(f"hf://datasets/{REPO}@tiny")
    dump = open_dump(source, choice=HeadChoice([1], [0]), note=notes.append)
    assert len(dump.query_heads) == 8
    assert notes == [f"me/qk@tiny: commit {hub.branches(REPO)['tiny']}"]
    assert dump.origin == {
        "dataset": REPO,
        "revision": "tiny",
        "commit": hub.branches(REPO)["tiny"],
        "checked_online": True,
    }


@pytest.mark.usefixtures("client")
def test_damaged_notes_are_no_obstacle(hub: HubServer, local: Path, cache: Path) -> None:
    upload(hub, local)
    fetched = fetch_dump(TINY)
    for note in (cache / "datasets--me--qk" / "attention-plasticity").iterdir():
        note.write_text(json.dumps([1]) if "rev" in note.name else "{")
    assert fetch_dump(TINY) == fetched


def test_a_killed_pull_continues(hub: HubServer, local: Path, tmp_path: Path) -> None:
    upload(hub, local)
    words: tuple[Any, ...] = ("pull", f"{REPO}@tiny", "--cache_dir", tmp_path, "--max_workers", 1)
    plan = hub.fail("resolve_get", slow(60), skip=6, times=None)
    running = subprocess.Popen(command(*words), env=hub.environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not plan.hits:
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    first = downloads(hub)
    hub.heal()
    hub.log.clear()
    done = subprocess.run(command(*words), env=hub.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(first) == 6
    assert not set(first) & set(downloads(hub))
    assert content(Path(done.stdout.splitlines()[-1])) == content(local)
