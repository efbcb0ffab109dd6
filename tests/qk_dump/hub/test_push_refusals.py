"""What is not published: files outside the dump, heads that nobody could read, lies of a Hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hub_server
from dumps import make_dump
from hub_fault_table import files_of, small_dump
from hub_server import HubServer, changed_json, status
from hubs import client_of
from odd_files import NOT_REGULAR, claim, huge, replace_by
from pushes import REPO, refusal
from pushes import dump as dump  # the fixtures
from pushes import waits as waits
from qk_dump.hub.place import HubPlace
from qk_dump.hub.pull import fetch_dump
from qk_dump.hub.push import push_dump
from qk_toolkit.errors import ToolkitError

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
hub = hub_server.hub
HEAD = "l00h01q/data.parquet"


def refused_unsent(hub: HubServer, dump: Path) -> str:
    """The message of a refusal before the Hub heard anything."""
    message = refusal(dump)
    assert not hub.log
    assert not hub.store.repos
    return message


@pytest.mark.parametrize(
    ("name", "absolute"),
    [(HEAD, True), (HEAD, False), ("examples.parquet", True), ("dump.json", False)],
)
def test_a_link_that_leaves_the_dump_is_refused(
    hub: HubServer, dump: Path, name: str, absolute: bool
) -> None:
    secret = shutil.copy(dump / name, dump.parent / "secret")
    (dump / name).unlink()
    (dump / name).symlink_to(secret if absolute else os.path.relpath(secret, (dump / name).parent))
    message = refused_unsent(hub, dump)
    assert message.startswith(f"{dump / name}: is a link to ")
    assert "replace the link with the file, then push" in message


def test_a_head_folder_that_leaves_the_dump_is_refused(hub: HubServer, dump: Path) -> None:
    shutil.move(dump / "l00h01q", dump.parent / "elsewhere")
    (dump / "l00h01q").symlink_to(dump.parent / "elsewhere")
    assert "l00h01q/data.parquet: is a link to " in refused_unsent(hub, dump)


def test_a_link_inside_the_dump_is_published(hub: HubServer, dump: Path) -> None:
    expected = files_of(dump)
    (dump / "files").mkdir()
    shutil.move(dump / HEAD, dump / "files" / "q")
    (dump / HEAD).symlink_to("../files/q")
    push_dump(dump, REPO, "tiny")
    assert {**hub.branch(REPO, "tiny")}.items() >= expected.items()


def test_a_dump_that_is_itself_a_link_is_published(hub: HubServer, dump: Path) -> None:
    (dump.parent / "link").symlink_to(dump)
    push_dump(dump.parent / "link", REPO, "tiny")
    assert hub.branch(REPO, "tiny").items() >= files_of(dump).items()


def test_a_dump_that_was_fetched_can_be_published_again(
    hub: HubServer, dump: Path, tmp_path: Path
) -> None:
    push_dump(dump, REPO, "tiny")
    with client_of(hub, tmp_path / "cache"):
        fetched = fetch_dump(HubPlace(REPO, "tiny"))
    assert (fetched.folder / HEAD).is_symlink()
    push_dump(fetched.folder, REPO, "again")
    assert hub.branch(REPO, "again").items() >= files_of(dump).items()
    head = fetched.folder / HEAD
    head.unlink()
    head.symlink_to(tmp_path / "dump" / HEAD)
    assert "is a link to " in refusal(fetched.folder)


@pytest.mark.parametrize("name", [HEAD, "examples.parquet"])
def test_what_is_no_regular_file_is_refused_unopened(
    hub: HubServer, tmp_path: Path, name: str
) -> None:
    for number, (make, said) in enumerate(NOT_REGULAR.values()):
        dump = small_dump(tmp_path / str(number))
        replace_by(make, dump / name)
        message = refused_unsent(hub, dump)
        assert str(dump / name) in message
        assert said in message or "is a link to " in message


def without(column: str) -> Callable[[Path], object]:
    return lambda path: pq.write_table(pq.read_table(path).drop_columns(column), path)


def retyped(column: str, kind: pa.DataType) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        table = pq.read_table(path)
        place = table.schema.get_field_index(column)
        pq.write_table(table.set_column(place, column, table[column].cast(kind)), path)

    return change


GARBAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda path: path.write_text("a,b\n1,2\n" * 9), "is not a readable Parquet file"),
    "nothing": (lambda path: path.write_bytes(b""), "is not a readable Parquet file"),
    "half": (
        lambda path: path.write_bytes(path.read_bytes()[:-200]),
        "is not a readable Parquet file",
    ),
    "a huge footer": (huge, "its footer is 4,043,309,055 bytes long"),
    "no vectors": (without("vector"), "has no column 'vector'"),
    "text as bucket": (retyped("bucket", pa.string()), "column 'bucket' is string"),
    "rows by the billion": (lambda path: claim(path, 10**12, instead_of=777), "its footer gives"),
}


@pytest.mark.parametrize(("spoil", "said"), GARBAGE.values(), ids=GARBAGE)
def test_a_head_that_nobody_could_read_is_refused(
    hub: HubServer, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=777)
    spoil(dump / HEAD)
    message = refused_unsent(hub, dump)
    assert message.startswith(f"{dump / HEAD}: ")
    assert said in message


def test_examples_that_nobody_could_read_are_refused(hub: HubServer, dump: Path) -> None:
    (dump / "examples.parquet").write_text("garbage")
    assert "examples.parquet: is not a readable Parquet file" in refused_unsent(hub, dump)


def test_a_shard_whose_name_is_not_utf8_is_refused(hub: HubServer, dump: Path) -> None:
    (dump / HEAD).rename(dump / "l00h01q" / "caf\udce9.parquet")
    assert "caf\\udce9.parquet: its name is not UTF-8; rename it" in refused_unsent(hub, dump)


LIES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "the dataset's commit": ("info", lambda info: {**info, "sha": "../../evil"}),
    "the first commit": ("commits", lambda told: [{**one, "id": "/tmp/evil"} for one in told]),
    "no commits": ("commits", lambda told: []),
    "a branch's commit": (
        "refs",
        lambda refs: {**refs, "branches": [{**refs["branches"][0], "targetCommit": "../evil"}]},
    ),
    "the new commit": ("commit", lambda told: {**told, "commitOid": "../evil"}),
    "a file's name": ("tree", lambda tree: [{**tree[0], "path": "../evil"}]),
    "a file's hash": ("tree", lambda tree: [{**tree[0], "oid": "../evil"}]),
}


@pytest.mark.parametrize(("endpoint", "change"), LIES.values(), ids=LIES)
def test_a_hub_that_lies_is_told(
    hub: HubServer, dump: Path, endpoint: str, change: Callable[[Any], Any], tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    hub.fail(endpoint, changed_json(change), times=None)
    message = refusal(dump)
    assert message.startswith((f"{REPO}@tiny: ", f"{REPO}: ", f"{REPO}@main: "))
    assert sorted(tmp_path.rglob("*")) == before
    hub.heal()
    push_dump(dump, REPO, "tiny")
    assert hub.branch(REPO, "tiny").items() >= files_of(dump).items()


def test_a_manifest_under_another_name_is_not_fetched(hub: HubServer, dump: Path) -> None:
    hub.fail(
        "paths_info",
        changed_json(lambda told: [{**one, "path": "../../evil"} for one in told]),
        times=None,
    )
    push_dump(dump, REPO, "tiny")
    assert "| `tiny` |  |  |" in hub.branch(REPO)["README.md"].decode()


ENDPOINTS = ["info", "refs", "commits", "tree", "preupload", "lfs_batch", "commit", "paths_info"]


def outcome(dump: Path) -> str:
    """What a push says that may end well."""
    try:
        push_dump(dump, REPO, "tiny")
    except ToolkitError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_garbled_answers_are_told(hub: HubServer, dump: Path, endpoint: str) -> None:
    told = []
    for body in (b"", b"null", b"5", b"[null]", b'{"a": 1}', b"[" * 100_000, b"<html>", b"\xff"):
        hub.fail(endpoint, status(200, body=body), times=None)
        told.append(outcome(dump))
        hub.heal()
        hub.store.repos.clear()
    assert any(told) or endpoint == "commit"  # which is looked up, and found made
    assert all(not said or said.startswith((f"{REPO}@", f"{REPO}:")) for said in told)
    assert "\n" not in "".join(told)
