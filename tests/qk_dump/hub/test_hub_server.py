"""The loopback Hub of the tests, proved with the real clients; its faults are tested next door."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    HfFileSystem,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

import hub_server
from dumps import make_dump
from hub_server import READER, STRANGER, WRITER, HubServer, running_hub
from hub_store import Account
from qk_dump.card import card
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
hub = hub_server.hub

REPO = "me/data"
DATASET: dict[str, Any] = {"repo_type": "dataset"}


@pytest.fixture
def api(hub: HubServer) -> HfApi:
    """The client of somebody who may write, and a repository with a file."""
    hub.store.write(REPO, {"a.txt": b"old"})
    return hub.api()


def push(api: HfApi, files: dict[str, bytes], **options: Any) -> str:
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    return commit(api, operations, **options)


def commit(api: HfApi, operations: list[Any], **options: Any) -> str:
    given = {"commit_message": "a commit", **DATASET, **options}
    return str(api.create_commit(REPO, operations, **given).oid)


def download(api: HfApi, place: Path, path: str, **options: Any) -> bytes:
    given = {"cache_dir": place, **DATASET, **options}
    return Path(api.hf_hub_download(REPO, path, **given)).read_bytes()


def ask(hub: HubServer, path: str, **headers: str) -> tuple[int, bytes, Any]:
    """A request without the client's help."""
    request = urllib.request.Request(hub.endpoint + path, headers=headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read(), reply.headers
    except HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


# Repositories and branches


def test_a_repository_is_created_once(hub: HubServer) -> None:
    api = hub.api()
    url = api.create_repo(REPO, **DATASET)
    assert (url.repo_id, url.repo_type) == (REPO, "dataset")
    assert api.create_repo(REPO, exist_ok=True, **DATASET) == url
    with pytest.raises(HfHubHTTPError, match="already created"):
        api.create_repo(REPO, **DATASET)
    assert list(hub.branch(REPO)) == [".gitattributes"]
    assert api.dataset_info(REPO).private is False
    api.delete_repo(REPO, **DATASET)
    assert not api.repo_exists(REPO, **DATASET)


def test_a_private_repository_is_its_owners(hub: HubServer) -> None:
    hub.api().create_repo(REPO, private=True, **DATASET)
    assert hub.api(READER).dataset_info(REPO).private is True
    for token in (STRANGER, False):
        with pytest.raises(RepositoryNotFoundError):
            hub.api(token).dataset_info(REPO)


def test_branches_come_and_go(hub: HubServer, api: HfApi) -> None:
    first = api.dataset_info(REPO).sha
    push(api, {"b.txt": b"new"})
    api.create_branch(REPO, branch="from main", **DATASET)
    api.create_branch(REPO, branch="models/tiny", revision=first, **DATASET)
    api.create_branch(REPO, branch="models/tiny", exist_ok=True, **DATASET)
    with pytest.raises(HfHubHTTPError, match="already exists"):
        api.create_branch(REPO, branch="models/tiny", **DATASET)
    assert "b.txt" in hub.branch(REPO, "from main")
    assert "b.txt" not in hub.branch(REPO, "models/tiny")
    refs = {ref.name: ref.target_commit for ref in api.list_repo_refs(REPO, **DATASET).branches}
    assert refs == hub.branches(REPO)
    assert api.dataset_info(REPO, revision="models/tiny").sha == first
    api.delete_branch(REPO, branch="models/tiny", **DATASET)
    assert set(hub.branches(REPO)) == {"main", "from main"}


def test_branches_that_cannot_be(api: HfApi) -> None:
    with pytest.raises(RevisionNotFoundError):
        api.create_branch(REPO, branch="b", revision="nowhere", **DATASET)
    with pytest.raises(RevisionNotFoundError):
        api.delete_branch(REPO, branch="nowhere", **DATASET)
    with pytest.raises(HfHubHTTPError, match="Cannot delete the main branch"):
        api.delete_branch(REPO, branch="main", **DATASET)


# Commits


def test_one_commit_takes_many_files_small_and_large(hub: HubServer, api: HfApi) -> None:
    files = {f"folder {i % 3}/{i}.txt": f"text {i}".encode() for i in range(300)}
    files |= {f"l00h0{i}q/data.parquet": bytes([i]) * 3000 for i in range(4)}
    files |= {"large.bin": b"x" * 1_000_001, "empty.parquet": b""}
    head = push(api, files, commit_description="more about it")
    assert hub.branch(REPO) == {
        "a.txt": b"old",
        **files,
        ".gitattributes": hub.branch(REPO)[".gitattributes"],
    }
    assert len(hub.requests("preupload")) == 2  # the client asks for 256 at a time
    assert len(hub.requests("commit")) == 1
    assert len(hub.requests("lfs_put")) == len(hub.requests("lfs_verify")) == 5
    assert hub.bytes_in("lfs_put") == 4 * 3000 + 1_000_001
    newest, *older = hub.commits(REPO)
    assert (newest.id, newest.title, newest.message) == (head, "a commit", "more about it")
    assert (newest.author, newest.parent) == ("me", older[0].id)
    listed = api.list_repo_commits(REPO, **DATASET)
    assert [one.commit_id for one in listed] == [one.id for one in hub.commits(REPO)]
    assert listed[0].authors == ["me"]


def test_what_is_there_is_not_sent_again(hub: HubServer, api: HfApi) -> None:
    files = {"x.parquet": b"x" * 5000, "b.txt": b"b"}
    head = push(api, files)
    assert (
        push(api, files) == head
    )  # the client sees from the answer to preupload that all is there
    api.create_branch(REPO, branch="other", revision=hub.commits(REPO)[1].id, **DATASET)
    push(api, files, revision="other")
    assert hub.branch(REPO, "other") == hub.branch(REPO)
    assert len(hub.requests("commit")) == 2
    assert len(hub.requests("lfs_put")) == 1


def test_uploads_ahead_of_the_commit(hub: HubServer, api: HfApi) -> None:
    operations = [CommitOperationAdd("x.parquet", b"x" * 5000)]
    api.preupload_lfs_files(REPO, operations, **DATASET)
    assert hub.bytes_in("lfs_put") == 5000
    assert "x.parquet" not in hub.branch(REPO)
    commit(api, operations)
    assert hub.branch(REPO)["x.parquet"] == b"x" * 5000
    assert hub.bytes_in("lfs_put") == 5000


def test_a_commit_on_something_older_is_refused(hub: HubServer, api: HfApi) -> None:
    parent = api.dataset_info(REPO).sha
    head = push(api, {"b.txt": b"1"}, parent_commit=parent)
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as refused:
        push(api, {"b.txt": b"2"}, parent_commit=parent)
    assert refused.value.response.status_code == 412
    assert hub.commits(REPO)[0].id == head


def test_deletions_and_copies(hub: HubServer, api: HfApi) -> None:
    push(api, {"f/1.txt": b"1", "f/g/2.txt": b"2", "fg.txt": b"3", "x.parquet": b"x"})
    operations = [
        CommitOperationCopy("x.parquet", "y.parquet"),
        CommitOperationCopy("a.txt", "z.txt"),
        CommitOperationDelete("f/"),
        CommitOperationDelete("x.parquet"),
    ]
    commit(api, operations)
    files = hub.branch(REPO)
    assert set(files) == {".gitattributes", "a.txt", "fg.txt", "y.parquet", "z.txt"}
    assert (files["y.parquet"], files["z.txt"]) == (b"x", b"old")
    before = hub.branches(REPO)
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        commit(api, [CommitOperationAdd("c.txt", b"c"), CommitOperationDelete("x.parquet")])
    assert hub.branches(REPO) == before


def test_a_commit_without_its_large_file_is_refused(hub: HubServer, api: HfApi) -> None:
    operation = CommitOperationAdd("x.parquet", b"x" * 5000)
    operation._upload_mode, operation._is_uploaded = "lfs", True
    with pytest.raises(HfHubHTTPError, match="pointed to a file that does not exist"):
        commit(api, [operation])
    assert "x.parquet" not in hub.branch(REPO)


def test_a_card_without_front_matter_is_warned_about(api: HfApi) -> None:
    with pytest.warns(UserWarning, match="missing yaml metadata"):
        push(api, {"README.md": b"# A dump\n"})


def test_the_rule_for_large_files_can_be_another() -> None:
    with running_hub(lfs_patterns=("*.bin",), lfs_over=10) as hub:
        hub.store.create_repo(REPO)
        push(hub.api(), {"a.parquet": b"small", "b.parquet": b"not so small", "c.bin": b"c"})
        tree = {entry.path: entry for entry in hub.api().list_repo_tree(REPO, **DATASET)}
    assert [path for path, entry in tree.items() if entry.lfs] == ["b.parquet", "c.bin"]


# Reading


def test_the_tree_comes_in_pages() -> None:
    with running_hub(page_size=7) as hub:
        hub.store.write(REPO, {f"d{i // 10}/e/{i}.txt": b"%d" % i for i in range(40)}, "b")
        api = hub.api()
        tree = list(api.list_repo_tree(REPO, recursive=True, revision="b", **DATASET))
        assert sum(entry.path.endswith(".txt") for entry in tree) == 40
        assert len(tree) == len({entry.path for entry in tree}) == 1 + 40 + 4 + 4
        assert len(hub.requests("tree")) == 7
        inner = api.list_repo_tree(REPO, "d1/e", revision="b", expand=True, **DATASET)
        assert {entry.last_commit.title for entry in inner} == {"seed"}
        with pytest.raises(EntryNotFoundError):
            list(api.list_repo_tree(REPO, "d9", revision="b", **DATASET))


def test_downloads_are_what_the_tree_says(hub: HubServer, api: HfApi, tmp_path: Path) -> None:
    files = {"x/data.parquet": b"x" * 5000, "é ü%20.txt": "ü".encode(), "empty": b""}
    head = push(api, files)
    folder = Path(api.snapshot_download(REPO, cache_dir=tmp_path, **DATASET))
    assert folder.name == head
    for path, content in files.items():
        assert (folder / path).read_bytes() == content
    [large] = api.get_paths_info(REPO, ["x/data.parquet", "nowhere"], **DATASET)
    assert large.lfs.sha256 == hashlib.sha256(files["x/data.parquet"]).hexdigest()
    assert (large.size, large.lfs.size) == (5000, 5000)
    siblings = {one.rfilename: one for one in api.dataset_info(REPO, files_metadata=True).siblings}
    assert siblings["x/data.parquet"].lfs.sha256 == large.lfs.sha256
    assert siblings["a.txt"].blob_id == hashlib.sha1(b"blob 3\0old").hexdigest()


def test_a_commit_can_be_read_after_its_branch_is_gone(
    hub: HubServer, api: HfApi, tmp_path: Path
) -> None:
    commit_id = hub.store.write(REPO, {"a.txt": b"of the branch"}, "b").id
    api.delete_branch(REPO, branch="b", **DATASET)
    assert download(api, tmp_path, "a.txt", revision=commit_id) == b"of the branch"
    assert download(api, tmp_path, "a.txt") == b"old"


def test_parts_of_a_file(hub: HubServer, api: HfApi) -> None:
    push(api, {"x.parquet": b"0123456789"})
    path = f"/datasets/{REPO}/resolve/main/x.parquet"
    for wanted, expected in (("3-5", b"345"), ("7-", b"789"), ("-2", b"89"), ("8-99", b"89")):
        code, body, headers = ask(hub, path, Range=f"bytes={wanted}")
        assert (code, body) == (206, expected)
        assert headers["Content-Range"].endswith("/10")
    assert ask(hub, path, Range="bytes=10-")[0] == 416
    code, body, headers = ask(hub, path)
    digest = hashlib.sha256(b"0123456789").hexdigest()
    assert (code, body, headers["ETag"]) == (200, b"0123456789", f'"{digest}"')
    assert (headers["X-Linked-Etag"], headers["X-Linked-Size"]) == (f'"{digest}"', "10")
    assert headers["X-Repo-Commit"] == hub.branches(REPO)["main"]


def test_the_file_system_of_the_client(hub: HubServer) -> None:
    hub.store.write(REPO, {"l00h00q/data.parquet": b"PAR1", "l00h00k/data.parquet": b"x"}, "b/c")
    files = HfFileSystem(endpoint=hub.endpoint, token=WRITER, skip_instance_cache=True)
    root = f"datasets/{REPO}@b%2Fc"
    assert files.glob(f"{root}/*q/*.parquet") == [f"{root}/l00h00q/data.parquet"]
    assert files.cat_file(f"{root}/l00h00q/data.parquet", start=1, end=3) == b"AR"
    assert files.info(f"{root}/l00h00k/data.parquet")["size"] == 1
    assert not files.exists(f"{root}/l00h00k/nothing.parquet")


def test_load_dataset_reads_the_branch_that_is_asked_for(hub: HubServer, tmp_path: Path) -> None:
    heads = [HeadId(0, 0, "q"), HeadId(0, 0, "k")]
    hub.store.create_repo(REPO)
    for branch, rows in (("tiny", 50), ("models/other", 70)):
        folder = make_dump(tmp_path / branch, layers=1, q_heads=1, k_heads=1, n=rows, d=4)
        (folder / "README.md").write_text(card(DumpManifest(model=branch), heads, examples=False))
        hub.api().create_branch(REPO, branch=branch, **DATASET)
        found = [path for path in folder.rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
        push(hub.api(), files, revision=branch)
    script = f"""
import json, datasets
heads = [datasets.load_dataset("{REPO}", "l00h00q", revision=branch, split="train")
         for branch in ("tiny", "models/other")]
print(json.dumps([[head.num_rows, head.column_names, len(head[0]["vector"])] for head in heads]))
"""
    command = [sys.executable, "-W", "error", "-W", "default::DeprecationWarning", "-c", script]
    done = subprocess.run(
        command, env=hub.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (rows, columns, width), (other_rows, *_) = json.loads(done.stdout)
    assert (rows, other_rows, width) == (50, 70, 4)
    assert {"bucket", "position", "example_id", "vector"} <= set(columns)
    assert not hub.requests("unknown")


# Who may do what


def test_what_is_not_there(hub: HubServer, api: HfApi, tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("me/nothing")
    with pytest.raises(RepositoryNotFoundError):
        hub.api(token=False).hf_hub_download("me/nothing", "a", cache_dir=tmp_path, **DATASET)
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(REPO, revision="nowhere")
    with pytest.raises(RevisionNotFoundError):
        download(api, tmp_path, "a.txt", revision="nowhere")
    with pytest.raises(RevisionNotFoundError):
        push(api, {"b.txt": b"b"}, revision="nowhere")
    with pytest.raises(EntryNotFoundError):
        download(api, tmp_path, "nothing.txt")
    assert not api.file_exists(REPO, "nothing.txt", **DATASET)
    assert not api.revision_exists(REPO, "nowhere", **DATASET)


@pytest.mark.parametrize(("token", "code"), [("hf_bad", 401), (READER, 403), (STRANGER, 403)])
def test_who_may_not_write(hub: HubServer, api: HfApi, token: str, code: int) -> None:
    for attempt in (
        lambda: push(hub.api(token), {"b.txt": b"b"}),
        lambda: hub.api(token).create_branch(REPO, branch="b", **DATASET),
        lambda: hub.api(token).create_repo("me/more", **DATASET),
    ):
        with pytest.raises(HfHubHTTPError) as refused:
            attempt()
        assert refused.value.response.status_code == code
    assert len(hub.commits(REPO)) == 2
    assert list(hub.store.repos) == [REPO]


def test_nobody_may_not_write(hub: HubServer, api: HfApi) -> None:
    with pytest.raises(HfHubHTTPError) as refused:
        push(hub.api(token=False), {"b.txt": b"b"})
    assert refused.value.response.status_code == 401


def test_a_gated_repository_gives_its_files_to_whom_it_knows(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.store.write(REPO, {"a.txt": b"a"})
    hub.store.repos[REPO].gated = True
    for token in (STRANGER, False):
        with pytest.raises(GatedRepoError):
            download(hub.api(token), tmp_path, "a.txt")
    assert hub.api(STRANGER).dataset_info(REPO).gated == "manual"
    hub.store.repos[REPO].granted.add("other")
    assert download(hub.api(STRANGER), tmp_path, "a.txt") == b"a"


def test_accounts_are_given_by_the_test() -> None:
    with running_hub({"hf_org": Account("somebody", orgs=("lab",))}) as hub:
        api = hub.api("hf_org")
        assert api.whoami()["name"] == "somebody"
        api.create_repo("lab/data", **DATASET)
        assert list(hub.store.repos) == ["lab/data"]
        with pytest.raises(HfHubHTTPError, match="Invalid user token"):
            hub.api(WRITER).whoami()


def test_nothing_of_the_callers_hub_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with running_hub() as hub:
        hub.store.write(REPO, {})
        assert HfApi(endpoint=hub.endpoint).dataset_info(REPO).sha
        given = hub.environment
    assert given["HF_TOKEN"] == WRITER
    assert "HF_HUB_OFFLINE" not in given
    assert "HTTP_PROXY" not in given
