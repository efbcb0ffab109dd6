"""Fetching a dump with the real client: the right commit, what is needed, every byte checked."""

import json
import shutil
import subprocess
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

import hub_server
import qk_dump.hub.commit
from commands import command
from dumps import add_attended, make_dump
from hub_server import STRANGER, WRITER, running_hub, slow, status
from hubs import REPO, TINY, client_of, downloads, files_of, pull_refusal, upload
from qk_dump.hub.commit import RemoteFile, list_files
from qk_dump.hub.fetch import HeadChoice, fetch_dump
from qk_dump.hub.place import HubPlace
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.side_files import read_tokens, write_tokens
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError
from waiting import PATIENCE, wait_for

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
MANIFEST = DumpManifest(model="m", num_layers=2, num_q_heads=4, num_k_heads=2)
FILE = "l01h02q/data.parquet"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A dump that tells its layout."""
    folder = make_dump(tmp_path_factory.mktemp("dump"), n=40)
    write_manifest(folder, MANIFEST)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another dump with the same heads, without layer 1's last query head."""
    folder = make_dump(tmp_path_factory.mktemp("other"), n=41)
    write_manifest(folder, MANIFEST)
    shutil.rmtree(folder / "l01h03q")
    return folder


def heads(fetched):
    return sorted(path.name for path in fetched.folder.iterdir() if path.is_dir())


@pytest.mark.usefixtures("client")
def test_a_branch_comes_whole_and_a_second_time_costs_nothing(hub, local, monkeypatch):
    commit = upload(hub, local)
    told = []
    fetched = fetch_dump(TINY, on_bytes=lambda done, total: told.append((done, total)))
    assert fetched.commit == commit
    assert commit in fetched.describe()
    assert files_of(fetched.folder) == files_of(local)
    parquet = sum(path.stat().st_size for path in local.rglob("*.parquet"))
    assert (told[0], told[-1]) == ((0, parquet), (parquet, parquet))
    assert told == sorted(told)
    assert told.count((parquet, parquet)) == 1  # a bar ends once
    hub.log.clear()

    def never(*_):
        raise AssertionError("a file is read or written again")

    monkeypatch.setattr(RemoteFile, "is_same", never)  # also in a cache that cannot be written
    monkeypatch.setattr(qk_dump.hub.commit, "write_text", never)
    assert fetch_dump(TINY) == fetched
    assert not hub.requests("resolve_get", "resolve_head")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_dump(TINY).folder == fetched.folder


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (HeadChoice([1]), "l01h00k l01h00q l01h01k l01h01q l01h02q l01h03q"),
        (HeadChoice([1], [3]), "l01h01k l01h03q"),
        (HeadChoice([0], [2], group=1), "l00h02q"),  # a config that is refused afterwards
        (HeadChoice([0], [1], for_analysis=True), "l00h00k l00h00q l00h01q"),
    ],
)
@pytest.mark.usefixtures("client")
def test_only_the_wanted_heads_and_their_keys_travel(hub, local, tmp_path, choice, expected):
    dump = shutil.copytree(local, tmp_path / "dump")
    write_tokens(dump, {7: " the"})
    upload(hub, dump)
    fetched = fetch_dump(TINY, choice=choice)
    assert heads(fetched) == expected.split()
    beside = ["dump.json", "tokens.parquet"]
    assert sorted(downloads(hub)) == sorted(
        [*beside, *(f"{head}/data.parquet" for head in expected.split())]
    )
    assert len(fetched.heads) == 12
    assert read_tokens(fetched.folder) == {7: " the"}
    hub.log.clear()
    more = fetch_dump(TINY, choice=HeadChoice([0, 1]))  # added to those that are here
    assert len(heads(more)) == 12
    assert len(downloads(hub)) == 12 - len(expected.split())


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (HeadChoice([1]), "l01h00k l01h00q l01h01k l01h01q l01h02q l01h03q"),
        (HeadChoice([1], [3]), "l01h00k l01h01k l01h03q"),  # the key head of a query is not known
    ],
)
@pytest.mark.usefixtures("client")
def test_only_wanted_layers_of_a_dump_without_its_json_travel(
    hub, local, tmp_path, choice, expected
):
    dump = Path(shutil.copytree(local, tmp_path / "dump"))
    (dump / "dump.json").unlink()
    upload(hub, dump)
    fetched = fetch_dump(TINY, choice=choice)
    assert heads(fetched) == expected.split()
    assert sorted(downloads(hub)) == [f"{head}/data.parquet" for head in expected.split()]
    assert len(fetched.heads) == 12


@pytest.mark.usefixtures("client")
def test_keys_drawn_by_attention_come_with_their_key_head(hub, local, tmp_path):
    folder = Path(shutil.copytree(local, tmp_path / "dump"))
    for layer in range(2):
        add_attended(folder, layer, 1)
    upload(hub, folder)
    dump = open_dump(f"hf://datasets/{REPO}@tiny", choice=HeadChoice([1], [3]))
    parquet = sorted(name for name in downloads(hub) if name.endswith(".parquet"))
    expected = ["attended/l01h01k", "l01h01k", "l01h03q"]
    assert parquet == [f"{head}/data.parquet" for head in expected]
    assert len(dump.folders) == 12
    assert [head.folder for head in dump.attended] == ["attended/l00h01k", "attended/l01h01k"]


@pytest.mark.usefixtures("client")
def test_a_branch_that_moved_is_fetched_anew_and_what_it_lost_is_gone(hub, local, other, tmp_path):
    upload(hub, local)
    before = fetch_dump(TINY)
    other = shutil.copytree(other, tmp_path / "other")
    shutil.copy(local / FILE, other / FILE)
    commit = upload(hub, other)
    hub.log.clear()
    after = fetch_dump(TINY)
    assert after.commit == commit != before.commit
    assert files_of(after.folder) == files_of(other)
    assert "l01h03q" not in heads(after)
    assert FILE not in downloads(hub)  # unchanged
    assert files_of(fetch_dump(HubPlace(REPO, before.commit)).folder) == files_of(local)


@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_file_that_was_damaged_here_is_fetched_again(hub, local, damage, client):
    """Page checksums tell a change of bytes when the file is read."""
    upload(hub, local)
    blob = (fetch_dump(TINY).folder / FILE).resolve()
    data = blob.read_bytes()
    if damage == "removed":
        blob.unlink()
    else:
        blob.write_bytes(data[:-1])
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    assert f"no checked copy of {FILE} of commit" in pull_refusal()
    client.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.log.clear()
    assert files_of(fetch_dump(TINY).folder) == files_of(local)
    assert set(downloads(hub)) == {FILE}


def test_offline_the_checked_copy_is_used_and_said(hub, local, other, client):
    upload(hub, local)
    online = fetch_dump(TINY)
    upload(hub, other)
    hub.fail("resolve_get", status(403), path=FILE, times=None)
    pull_refusal()  # a newer commit that did not come hides no older one
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    fetched = fetch_dump(TINY)
    assert not hub.log
    assert (fetched.commit, fetched.checked_online) == (online.commit, False)
    assert fetched.describe().endswith(f"{online.commit}, offline: the checked copy in the cache")
    assert files_of(fetched.folder) == files_of(local)
    assert fetched.as_record()["checked_online"] is False
    assert files_of(fetch_dump(HubPlace(REPO, online.commit)).folder) == files_of(local)


@pytest.mark.usefixtures("client")
def test_heads_may_lie_below_a_folder(hub, local, tmp_path):
    upload(hub, local, "main", "model/")
    for given in (None, "model", "./model/"):
        fetched = fetch_dump(HubPlace(REPO, folder=given), choice=HeadChoice([0], [3]))
        assert heads(fetched) == ["l00h01k", "l00h03q"]
        assert fetched.folder.name == "model"
        assert fetched.as_record()["model_dir"] == "model"
    dump = open_dump(f"hf://datasets/{REPO}")
    assert (dump.name, dump.manifest) == ("model", MANIFEST)
    said = "no heads found. Set model_dir to one of: "
    assert f"{said}model" in pull_refusal(HubPlace(REPO, folder="modle"))
    for name in ("gemma", "qwen"):
        shutil.copytree(local, tmp_path / "both" / name)
    upload(hub, tmp_path / "both", "main")
    hub.log.clear()
    assert f"{said}gemma, qwen" in pull_refusal(HubPlace(REPO))
    assert files_of(fetch_dump(HubPlace(REPO, "main", "qwen")).folder) == files_of(local)
    assert not any("gemma" in path for path in downloads(hub))


@pytest.mark.usefixtures("client")
def test_what_is_not_there_is_told(hub, local, tmp_path):
    upload(hub, local)
    said = {
        HubPlace("me/none", "tiny"): "no such dataset; check the name",
        HubPlace(
            REPO, "none"
        ): "me/qk@none: fetching failed: there is no branch, tag or commit 'none'",
        HubPlace("me/a b", "tiny"): "me/a b@tiny: ",
        HubPlace(REPO, "tiny", "model"): "in the root of the branch: leave model_dir out",
        HubPlace(REPO): "me/qk@main: no heads found. Name the branch of",
    }
    for place, words in said.items():
        assert words in pull_refusal(place)
    assert "Its layers: 0, 1." in pull_refusal(choice=HeadChoice([7]))
    add_attended(tmp_path / "attended")  # attended keys alone are no dump
    upload(hub, tmp_path / "attended", "attended")
    assert "no heads found" in pull_refusal(HubPlace(REPO, "attended"))


@pytest.mark.parametrize("token", [None, STRANGER, "hf_bogus"])
def test_a_private_dataset_needs_the_right_token(hub, local, cache, token):
    upload(hub, local)
    hub.store.repos[REPO].private = True
    with client_of(hub, cache, token):
        assert "HF_TOKEN or 'hf auth login'" in pull_refusal()
    with client_of(hub, cache):
        assert files_of(fetch_dump(TINY).folder) == files_of(local)
    assert not any(WRITER.encode() in data for data in files_of(cache).values())
    hub.store.repos[REPO].private, hub.store.repos[REPO].gated = False, True
    with client_of(hub, cache / "new", STRANGER):
        assert "is gated; ask for access" in pull_refusal()


def test_a_killed_pull_continues(hub, local, tmp_path):
    upload(hub, local)
    words = ("pull", f"{REPO}@tiny", "--cache_dir", tmp_path, "--max_workers", 1)
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
    done = subprocess.run(command(*words), env=hub.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(first) == 6
    assert not set(first) & set(downloads(hub))
    assert files_of(Path(done.stdout.splitlines()[-1])) == files_of(local)


@pytest.mark.usefixtures("client")
def test_another_branch_is_never_taken_for_this_one(hub, local, other):
    upload(hub, local, "a")
    upload(hub, other, "b")
    assert files_of(fetch_dump(HubPlace(REPO, "a")).folder) == files_of(local)
    hub.fail("*", status(500), times=None)
    said = "fetching failed: the Hub answered 500"
    assert said in pull_refusal(HubPlace(REPO, "b"))
    assert said in pull_refusal(HubPlace(REPO, "a"))  # the branch may have moved
    hub.heal()
    assert files_of(fetch_dump(HubPlace(REPO, "b")).folder) == files_of(other)


SMALL = "l00h01q/data.parquet"


def test_a_listing_in_several_pages_is_complete():
    files = {f"d{i // 10}/e/{i}.txt": b"%d" % i for i in range(40)}
    with running_hub(page_size=7) as hub:
        commit = hub.store.write(REPO, files, "b").id
        found = list_files(hub.api(), HubPlace(REPO, "b"), commit)
        assert len(hub.requests("tree")) == 7
    assert set(found) == {".gitattributes", *files}


@pytest.mark.usefixtures("commit")
def test_redirects(hub, dump, tmp_path):
    for endpoint in ("info", "tree", "resolve_get"):
        hub.fail(endpoint, status(302, {"Location": "?round"}), times=None)
        assert "fetching failed: too many redirects; check HF_ENDPOINT" in pull_refusal()
        hub.heal()
    hub.fail("resolve_get", status(307, {"Location": "?again"}), path=SMALL, times=10)
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)
    with running_hub() as elsewhere:
        there = f"{elsewhere.endpoint}/datasets/{REPO}/resolve/{upload(elsewhere, dump)}/{SMALL}"
        elsewhere.store.repos[REPO].private = True  # the token would open it
        hub.fail("resolve_get", status(302, {"Location": there}), path=SMALL, times=None)
        message = pull_refusal(cache_dir=str(tmp_path / "another"))
    assert "no such dataset, or no access" in message


GARBLED = (b"", b"null", b"{}", b"5", b'{"id": "me/qk", "sha', b"\xff\xfe", b"<html>Sign in</html>")


@pytest.mark.usefixtures("commit")
def test_answers_that_are_none_are_told(hub, cache):
    """For example those of a proxy."""
    for body in GARBLED:
        for endpoint in ("info", "tree"):
            hub.fail(endpoint, status(200, body=body), times=None)
            assert pull_refusal().startswith("me/qk@tiny: "), (endpoint, body)
            hub.heal()
    assert not cache.exists()


def test_a_cache_that_others_changed(commit, cache, dump, tmp_path, client):
    snapshot = cache / "datasets--me--qk" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "l00h01q").mkdir()
    (snapshot / SMALL).write_bytes(b"not from the Hub")
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)
    records = cache / "datasets--me--qk" / "attention-plasticity"
    for record in records.iterdir():
        record.write_text("{")
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)
    assert {json.loads(record.read_text())["commit"] for record in records.iterdir()} == {commit}
    (snapshot / SMALL).unlink()
    (snapshot / SMALL).mkdir()
    assert f"{SMALL}: cannot be written: Is a directory" in pull_refusal()
    (tmp_path / "file").write_text("a file")
    client.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert "cannot be written: " in pull_refusal()


@pytest.mark.usefixtures("client")
def test_an_unfinished_capture_on_the_hub_is_refused(hub, local, tmp_path):
    dump = shutil.copytree(local, tmp_path / "dump")
    (dump / "dump.json").unlink()
    (dump / ".capture").mkdir()
    (dump / ".capture" / "plan.json").write_text('{"model": {"name": "tiny"}}')
    upload(hub, dump)
    hub.log.clear()
    with pytest.raises(ConfigError, match=r"its capture is not finished\..* capture tiny TEXTS"):
        open_dump(f"hf://datasets/{REPO}@tiny")
    assert not [path for path in downloads(hub) if path.endswith(".parquet")]
