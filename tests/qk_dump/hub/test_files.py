"""A Hub that lies: what it answers becomes no path, fills no disk and ends in no traceback."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest

from captures import content
from dumps import make_dump
from hub_server import (
    CLIENT_WARNINGS,
    HubServer,
    changed_json,
    endless,
    running_hub,
    status,
    with_headers,
)
from hub_server import hub as hub  # the fixture
from hubs import REPO, client_of, downloads, upload
from qk_dump.hub.files import RemoteFile
from qk_dump.hub.place import HubPlace
from qk_dump.hub.pull import fetch_dump
from qk_toolkit.errors import ConfigError, HubError, OutputError, ToolkitError

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)

TINY = HubPlace(REPO, "tiny")
FILE = "l00h01q/data.parquet"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of three heads."""
    return make_dump(tmp_path_factory.mktemp("dump"), layers=1, q_heads=2, k_heads=1, n=40)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def client(hub: HubServer, cache: Path) -> Iterator[pytest.MonkeyPatch]:
    with client_of(hub, cache) as patch:
        yield patch


@pytest.fixture
def commit(hub: HubServer, local: Path, client: pytest.MonkeyPatch) -> str:
    """The dump, on the Hub."""
    return upload(hub, local)


def refusal(kind: type[ToolkitError] = HubError, place: HubPlace = TINY) -> str:
    with pytest.raises(kind) as caught:
        fetch_dump(place)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", b"abc", b"x" * (3 << 20)])
def test_hashes_are_those_of_the_hub(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    for digest, kind in ((hashlib.sha256(data).hexdigest(), "sha256"), (git, "git")):
        for told in (data, tmp_path / "file"):
            assert RemoteFile(len(data), digest, kind).is_same(told)
            assert not RemoteFile(len(data) + 1, digest, kind).is_same(told)
        assert not RemoteFile(len(data), digest, kind).is_same(data + b"x")


COMMITS: list[object] = [
    "/tmp/evil",
    "../../../evil",
    "..",
    "",
    None,
    5,
    ["a"],
    "a" * 39,
    "A" * 40,
    "a" * 40 + "\n",
    "/" * 10_000,
]


@pytest.mark.usefixtures("commit")
def test_a_commit_that_is_none_becomes_no_path(hub: HubServer, cache: Path, tmp_path: Path) -> None:
    for told in COMMITS:
        hub.fail("info", changed_json(lambda info, told=told: {**info, "sha": told}))
        message = refusal()
        assert message.startswith("me/qk@tiny: the Hub gives ")
        assert "as a commit, expected 40 hexadecimal digits; the answer was not used" in message
    assert files_below(tmp_path) == []
    assert not downloads(hub)


NAMES: list[object] = [
    "/etc/l00h00q/data.parquet",
    "../l00h00q/data.parquet",
    "l00h00q/../../x.parquet",
    "a/../../l00h00q/data.parquet",
    "l00h00q//data.parquet",
    "./l00h00q/data.parquet",
    "l00h00q/data.parquet/",
    "",
    "l00h00q\\data.parquet",
    "C:/l00h00q/data.parquet",
    "l00h00q/\0.parquet",
    "l00h00q/a\nb.parquet",
    "l00h00q/\ud800.parquet",
    "l00h00q/\u202e.parquet",
    f"l00h00q/{'x' * 300}.parquet",
    None,
    5,
    ["l00h00q/data.parquet"],
    {"a": 1},
]


@pytest.mark.usefixtures("commit")
def test_a_name_that_leads_elsewhere_becomes_no_path(hub: HubServer, tmp_path: Path) -> None:
    for name in NAMES:
        hub.fail("tree", changed_json(lambda tree, name=name: [*tree, {**tree[-1], "path": name}]))
        message = refusal()
        assert message.startswith("me/qk@tiny: the Hub lists a file named "), name
        assert message.endswith("the answer was not used. Check HF_ENDPOINT.")
    assert files_below(tmp_path) == []
    assert not downloads(hub)


def wrong(**facts: Any) -> Callable[[Any], Any]:
    """A change of what the listing says of its last file, which is a Parquet file."""

    def change(tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
        last = {**tree[-1], **{name: value for name, value in facts.items() if name != "lfs"}}
        last["lfs"] = {**last["lfs"], **facts.get("lfs", {})}
        return [*tree[:-1], last]

    return change


@pytest.mark.usefixtures("commit")
def test_a_size_or_hash_that_no_file_has_is_refused(hub: HubServer, tmp_path: Path) -> None:
    for size in (-1, "5", None, 1.5, True, 10**30, [1]):
        hub.fail("tree", changed_json(wrong(size=size)))
        assert "with a size of " in refusal(), size
    for digest in ("../../evil", "", None, 5, "a" * 40, "g" * 64, ["a"]):
        hub.fail("tree", changed_json(wrong(lfs={"oid": digest})))
        assert " as its hash; the answer was not used" in refusal(), digest
    assert files_below(tmp_path) == []


@pytest.mark.usefixtures("commit")
def test_a_dump_that_does_not_fit_the_disk_is_refused_before_the_first_byte(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.fail("tree", changed_json(wrong(size=2**62)))
    message = refusal()
    assert "the download has " in message
    assert "free; choose another folder for downloads" in message
    assert files_below(tmp_path) == []


@pytest.mark.usefixtures("commit")
def test_more_files_than_any_dump_has_are_refused(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qk_dump.hub.files._MOST_FILES", 3)
    assert "the Hub lists more than 3 files" in refusal()
    next_page = f'<{hub.endpoint}/api/datasets/{REPO}/tree/tiny>; rel="next"'
    hub.fail("tree", with_headers(Link=next_page), times=None)  # the same page for ever
    monkeypatch.setattr("qk_dump.hub.files._MOST_FILES", 100)
    assert "the Hub lists more than 100 files" in refusal()


HEADERS = [
    {"ETag": '"../../../../evil"', "X_Linked_Etag": '"../../../../evil"'},
    {"X_Repo_Commit": "../../../evil"},
    {"Content_Disposition": 'attachment; filename="../../evil"'},
    {"ETag": "", "X_Repo_Commit": ""},
]


@pytest.mark.parametrize("headers", HEADERS, ids=range(len(HEADERS)))
@pytest.mark.usefixtures("commit")
def test_headers_become_no_path(
    hub: HubServer, local: Path, cache: Path, tmp_path: Path, headers: dict[str, str]
) -> None:
    for endpoint in ("resolve_get", "resolve_head"):
        hub.fail(endpoint, with_headers(**headers), times=None)
    assert content(fetch_dump(TINY).folder) == content(local)
    assert {name.split("/")[0] for name in files_below(tmp_path)} == {"cache"}
    blobs = [path.name for path in (cache / "datasets--me--qk" / "blobs").iterdir()]
    assert all(set(name) <= set("0123456789abcdef") for name in blobs)


@pytest.mark.usefixtures("commit")
def test_a_body_without_end_is_cut_and_not_kept(hub: HubServer, cache: Path) -> None:
    plan = hub.fail("resolve_get", endless, path=FILE, times=None)
    assert f"the downloaded {FILE} differs from commit" in refusal()
    assert plan.hits == 3
    assert hub.streamed < 200 << 20
    repo = cache / "datasets--me--qk"
    assert not [path for path in repo.rglob("*") if "incomplete" in path.name]
    assert sum(path.stat().st_size for path in (repo / "blobs").iterdir()) < 100_000


@pytest.mark.usefixtures("commit")
def test_a_body_longer_than_listed_is_not_kept(hub: HubServer, local: Path) -> None:
    longer = (local / FILE).read_bytes() + b"x"
    hub.fail("resolve_get", status(200, body=longer), path=FILE, times=None)
    assert f"the downloaded {FILE} differs from commit" in refusal()
    hub.heal()
    assert content(fetch_dump(TINY).folder) == content(local)


@pytest.mark.parametrize("endpoint", ["info", "tree", "resolve_get"])
@pytest.mark.usefixtures("commit")
def test_redirects_in_a_circle_end(hub: HubServer, endpoint: str) -> None:
    plan = hub.fail(endpoint, status(302, {"Location": "?round"}), times=None)
    assert refusal() == ("me/qk@tiny: fetching failed: too many redirects; check HF_ENDPOINT")
    assert plan.hits < 70  # by three files at once


@pytest.mark.usefixtures("commit")
def test_a_redirect_elsewhere_is_followed_without_the_token(
    hub: HubServer, local: Path, cache: Path
) -> None:
    with running_hub() as elsewhere:
        commit = upload(elsewhere, local)
        there = f"{elsewhere.endpoint}/datasets/{REPO}/resolve/{commit}/{FILE}"
        hub.fail("resolve_get", status(302, {"Location": there}), path=FILE, times=None)
        elsewhere.store.repos[REPO].private = True  # whom the token would open
        assert "no such dataset, or no access" in refusal()
        elsewhere.store.repos[REPO].private = False
        assert content(fetch_dump(TINY).folder) == content(local)


@pytest.mark.usefixtures("commit")
def test_a_redirect_to_a_file_of_ours_is_not_followed(hub: HubServer) -> None:
    hub.fail("resolve_get", status(302, {"Location": "file:///etc/passwd"}), times=None)
    assert "no connection" in refusal()


@pytest.mark.usefixtures("commit")
def test_a_chain_of_redirects_is_followed_for_a_while(hub: HubServer, local: Path) -> None:
    hub.fail("resolve_get", status(307, {"Location": "?again"}), path=FILE, times=10)
    assert content(fetch_dump(TINY).folder) == content(local)


GARBLED = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "a number": b"5",
    "text": b'"x"',
    "half": b'{"id": "me/qk", "sha',
    "not UTF-8": b"\xff\xfe",
    "a page": b"<html><body>Sign in</body></html>",
    "nested": b"[" * 100_000,
    "nulls": b"[null, null]",
    "objects": b"[{}]",
    "a file without facts": b'[{"type": "file"}]',
    "a file of lists": b'[{"type": "file", "path": [], "size": [], "oid": [], "lfs": []}]',
    "another kind of lfs": b'[{"type": "file", "path": "a", "size": 1, "oid": "a", "lfs": 5}]',
    "dates": b'{"id": 3, "sha": "x", "lastModified": 5, "siblings": 7, "cardData": []}',
}


@pytest.mark.parametrize("endpoint", ["info", "tree"])
@pytest.mark.usefixtures("commit")
def test_garbled_answers_are_told(hub: HubServer, endpoint: str, tmp_path: Path) -> None:
    for name, body in GARBLED.items():
        if (endpoint, name) == ("tree", "a list"):
            continue  # a commit without files
        hub.fail(endpoint, status(200, body=body), times=None)
        message = refusal((HubError, ConfigError))  # type: ignore[arg-type]
        assert message.startswith("me/qk@tiny: "), name
        hub.heal()
    assert files_below(tmp_path) == []


@pytest.mark.usefixtures("commit")
def test_a_next_page_that_is_no_address_is_told(hub: HubServer) -> None:
    for address in ("http://[bad", "gopher://x/", "x:y", "//", "\t"):
        hub.fail("tree", with_headers(Link=f'<{address}>; rel="next"'), times=None)
        assert refusal().startswith("me/qk@tiny: fetching failed: ")
        hub.heal()


@pytest.mark.usefixtures("client")
def test_a_head_that_no_model_has_is_refused(hub: HubServer, local: Path, tmp_path: Path) -> None:
    odd = Path(shutil.copytree(local, tmp_path / "odd"))
    (odd / "l00h01q").rename(odd / "l4000000000h01q")
    upload(hub, odd)
    assert "l4000000000h01q/data.parquet: is the folder of layer 4000000000" in refusal(ConfigError)
    assert not downloads(hub)


def cached(cache: Path, commit: str) -> dict[str, Path]:
    repo = cache / "datasets--me--qk"
    snapshot = repo / "snapshots" / commit
    return {
        "the repo's blobs": repo / "blobs",
        "the commit": snapshot,
        "a head": snapshot / "l00h01q",
    }


@pytest.mark.parametrize("place", ["the repo's blobs", "the commit", "a head"])
def test_nothing_is_written_through_a_link_out_of_the_cache(
    place: str, commit: str, cache: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = cached(cache, commit)[place]
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert "is outside the cache because of a link; remove the link" in refusal(ConfigError)
    assert not list(outside.iterdir())


def test_a_file_that_leads_out_of_the_cache_is_replaced(
    commit: str, cache: Path, local: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    file = cached(cache, commit)["a head"] / "data.parquet"
    file.parent.mkdir(parents=True)
    file.symlink_to(tmp_path / "secret")
    assert content(fetch_dump(TINY).folder) == content(local)
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_pipe_in_the_cache_is_refused_unopened(commit: str, cache: Path) -> None:
    file = cached(cache, commit)["a head"] / "data.parquet"
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    said = f"{file}: is a named pipe, not a regular file; remove it"
    assert refusal(ConfigError).startswith(said)


@pytest.mark.usefixtures("commit")
def test_a_cache_that_cannot_be_is_told(tmp_path: Path, client: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    client.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert "cannot be written: Not a directory" in refusal(OutputError)


def test_a_folder_in_a_files_place_is_told(commit: str, cache: Path) -> None:
    (cached(cache, commit)["a head"] / "data.parquet").mkdir(parents=True)
    assert "data.parquet: is a folder, not a regular file; remove it" in refusal(ConfigError)


def test_a_cache_of_links_elsewhere_is_used(
    commit: str, cache: Path, local: Path, tmp_path: Path
) -> None:
    real = tmp_path / "disk" / "datasets--me--qk"
    real.mkdir(parents=True)
    cache.mkdir()
    (cache / "datasets--me--qk").symlink_to(real)  # people move a dataset to a larger disk
    assert content(fetch_dump(TINY).folder) == content(local)
    assert (real / "blobs").is_dir()


NOTES = {
    "files are a list": {"files": [1]},
    "files are a number": {"files": 5},
    "no files": {"checked": {}},
    "a file is a number": {"files": {"l00h00q/data.parquet": 5}},
    "a file has no hash": {"files": {"l00h00q/data.parquet": [1]}},
    "a hash is a path": {"files": {"l00h00q/data.parquet": [1, "../../evil", "sha256"]}},
    "a kind is none": {"files": {"l00h00q/data.parquet": [1, "a" * 64, "md5"]}},
    "a name leads out": {"files": {"../l00h00q/data.parquet": [1, "a" * 64, "sha256"]}},
}


def test_offline_garbled_notes_are_told(
    commit: str, cache: Path, client: pytest.MonkeyPatch
) -> None:
    fetch_dump(TINY)
    notes = cache / "datasets--me--qk" / "attention-plasticity"
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    for name, note in NOTES.items():
        (notes / f"{commit}.json").write_text(json.dumps(note))
        assert f"offline, and {notes / commit}.json is damaged; unset" in refusal(), name
    for text in ("{", "[" * 100_000, "5", ""):
        (notes / f"{commit}.json").write_text(text)
        assert "offline, and the cache holds no checked copy" in refusal()
    (notes / f"{commit}.json").unlink()
    os.mkfifo(notes / f"{commit}.json")
    assert "offline, and the cache holds no checked copy" in refusal()


def test_offline_a_note_of_commits_leads_nowhere(
    commit: str, cache: Path, client: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetch_dump(TINY)
    notes = cache / "datasets--me--qk" / "attention-plasticity"
    (tmp_path / "evil.json").write_text((notes / f"{commit}.json").read_text())
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    for told in (str(tmp_path / "evil"), 5, None, ["a"], {}):
        (notes / "revisions.json").write_text(json.dumps({"tiny": told}))
        assert "offline, and the cache holds no checked copy" in refusal()
    assert "no checked copy" in refusal(place=HubPlace(REPO, str(tmp_path / "evil")))


def test_online_garbled_notes_are_no_obstacle(commit: str, cache: Path, local: Path) -> None:
    for checked in (5, [1], {FILE: 5}, {FILE: ["a"]}, {FILE: None}):
        fetched = fetch_dump(TINY)
        note = cache / "datasets--me--qk" / "attention-plasticity" / f"{commit}.json"
        note.write_text(json.dumps({"files": 3, "checked": checked}))
        assert content(fetch_dump(TINY).folder) == content(fetched.folder) == content(local)
