"""A Hub that lies: what it answers becomes no path, fills no disk and ends in no traceback."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captures import content
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
from hubs import REPO, downloads, upload
from qk_dump.hub.files import RemoteFile
from qk_dump.hub.pull import fetch_dump
from qk_toolkit.errors import ConfigError, HubError
from three_heads_on_hub import FILE, TINY, files_below, refusal
from three_heads_on_hub import cache as cache  # the fixtures
from three_heads_on_hub import client as client
from three_heads_on_hub import commit as commit
from three_heads_on_hub import local as local

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)


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
