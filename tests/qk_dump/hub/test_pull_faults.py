"""What the loopback Hub of the tests can break, and what the real client makes of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

import hub_server
from hub_server import (
    WRITER,
    Fault,
    HubServer,
    no_naps,
    reset_after,
    reset_before,
    slow,
    status,
    truncated,
    wrong_bytes,
)

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
hub = hub_server.hub

REPO = "me/data"
DATASET: dict[str, Any] = {"repo_type": "dataset"}


@pytest.fixture
def api(hub: HubServer) -> HfApi:
    """The client of somebody who may write, and a repository with a file."""
    hub.store.write(REPO, {"a.txt": b"old"})
    return hub.api()


def push(api: HfApi, files: dict[str, bytes]) -> None:
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    api.create_commit(REPO, operations, commit_message="a commit", **DATASET)


def download(api: HfApi, place: Path, path: str, **options: Any) -> bytes:
    given = {"cache_dir": place, **DATASET, **options}
    return Path(api.hf_hub_download(REPO, path, **given)).read_bytes()


def test_the_reply_to_a_commit_is_lost(hub: HubServer, api: HfApi) -> None:
    hub.fail("commit", reset_after)
    with pytest.raises(Exception, match="reset by peer"):
        push(api, {"b.txt": b"b"})
    assert hub.branch(REPO)["b.txt"] == b"b"
    hub.fail("commit", reset_before)
    with pytest.raises(Exception, match="reset by peer"):
        push(api, {"c.txt": b"c"})
    assert "c.txt" not in hub.branch(REPO)
    hub.fail("commit", status(504, takes_effect=True))
    with pytest.raises(HfHubHTTPError, match="504"):
        push(api, {"c.txt": b"c"})
    assert hub.branch(REPO)["c.txt"] == b"c"
    assert [entry.status for entry in hub.requests("commit")] == [0, 0, 504]


@pytest.mark.parametrize(
    ("fault", "nap"),
    [
        (status(500), 1),
        (status(429, {"Retry-After": "3"}), 4),  # the client adds a second
        (reset_before, 1),
        (reset_after, 1),
        (truncated, 1),
    ],
)
@pytest.mark.parametrize("endpoint", ["tree", "preupload", "lfs_batch", "lfs_put", "lfs_verify"])
def test_what_the_client_tries_again_by_itself(
    hub: HubServer, api: HfApi, endpoint: str, fault: Fault, nap: float
) -> None:
    plan = hub.fail(endpoint, fault)
    with no_naps() as naps:
        push(api, {"x.parquet": b"x" * 5000})
        assert "x.parquet" in [entry.path for entry in api.list_repo_tree(REPO, **DATASET)]
    assert (plan.hits, naps, len(hub.requests(endpoint))) == (1, [nap], 2)
    assert len(hub.requests("commit")) == 1


def test_the_client_gives_up_in_the_end(hub: HubServer, api: HfApi) -> None:
    hub.fail("tree", status(500), times=None)
    with no_naps() as naps, pytest.raises(HfHubHTTPError, match="500"):
        list(api.list_repo_tree(REPO, **DATASET))
    assert naps == [1, 2, 4, 8, 8]
    hub.heal()
    assert list(api.list_repo_tree(REPO, **DATASET))


def test_a_cut_download_goes_on_where_it_stopped(
    hub: HubServer, api: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(250)) * 40
    push(api, {"x.parquet": content})
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # less than a chunk is thrown away
    hub.fail("resolve_get", truncated, times=2)
    with no_naps() as naps:
        assert download(api, tmp_path, "x.parquet") == content
    gets = hub.requests("resolve_get")
    assert [entry.status for entry in gets] == [200, 206, 206]
    assert [entry.bytes_out for entry in gets] == [5000, 2500, 2500]
    assert naps == [1, 1]


def test_wrong_bytes_are_not_noticed_by_the_client(
    hub: HubServer, api: HfApi, tmp_path: Path
) -> None:
    push(api, {"x.parquet": b"x" * 5000})
    hub.fail("resolve_get", wrong_bytes)
    got = download(api, tmp_path, "x.parquet")
    assert len(got) == 5000
    assert got != b"x" * 5000
    assert download(api, tmp_path, "x.parquet") == got  # the cache keeps them
    assert download(api, tmp_path, "x.parquet", force_download=True) == b"x" * 5000


def test_wrong_bytes_are_not_taken_by_the_hub(hub: HubServer, api: HfApi) -> None:
    hub.fail("lfs_put", wrong_bytes)
    with pytest.raises(RuntimeError, match=r"Error while uploading 'x\.parquet'"):
        push(api, {"x.parquet": b"x" * 5000})
    assert [entry.status for entry in hub.requests("lfs_put")] == [400]
    assert not hub.requests("lfs_verify", "commit")
    push(api, {"x.parquet": b"x" * 5000})
    assert hub.branch(REPO)["x.parquet"] == b"x" * 5000


def test_wrong_bytes_of_an_answer_are_no_json(hub: HubServer, api: HfApi) -> None:
    hub.fail("info", wrong_bytes)
    with pytest.raises(json.JSONDecodeError):
        api.dataset_info(REPO)


@pytest.mark.parametrize("framing", ["Content-Length: 9000", "Transfer-Encoding: chunked"])
def test_half_a_request_does_nothing(hub: HubServer, api: HfApi, framing: str) -> None:
    lines = [
        {"key": "header", "value": {"summary": "half"}},
        {"key": "deletedFile", "value": {"path": "a.txt"}},
    ]
    body = "\n".join(json.dumps(line) for line in lines)
    part = f"{len(body):x}\r\n{body}\r\n" if "chunked" in framing else body
    head = f"POST /api/datasets/{REPO}/commit/main HTTP/1.1\r\nAuthorization: Bearer {WRITER}\r\n"
    with socket.create_connection(("127.0.0.1", hub.server_port)) as killed:
        killed.sendall(f"{head}{framing}\r\n\r\n{part}".encode())
        killed.shutdown(socket.SHUT_WR)
        assert killed.recv(1) == b""
    assert hub.branch(REPO)["a.txt"] == b"old"
    assert not hub.requests("commit")


def test_a_late_answer(hub: HubServer, api: HfApi) -> None:
    hub.fail("resolve_head", slow(60))  # ends with the server, long before
    with pytest.raises(Exception, match="timed out"):
        api.get_hf_file_metadata(
            url=f"{hub.endpoint}/datasets/{REPO}/resolve/main/a.txt", timeout=0.05
        )


def test_a_fault_meets_the_request_it_is_meant_for(hub: HubServer, api: HfApi) -> None:
    hub.store.write(REPO, {"a.txt": b"a"}, "b")
    by_path = hub.fail("info", status(403), path="/revision/b")
    third = hub.fail("refs", status(404), skip=2)
    api.dataset_info(REPO)
    with pytest.raises(HfHubHTTPError, match="fault 403"):
        api.dataset_info(REPO, revision="b")
    api.dataset_info(REPO, revision="b")
    for _ in range(2):
        api.list_repo_refs(REPO, **DATASET)
    with pytest.raises(HfHubHTTPError, match="fault 404"):
        api.list_repo_refs(REPO, **DATASET)
    api.list_repo_refs(REPO, **DATASET)
    assert (by_path.hits, third.hits) == (1, 1)
    anything = hub.fail("*", status(500), times=None)
    with pytest.raises(HfHubHTTPError, match="500"):
        api.whoami()
    assert anything.hits == 1


def test_every_request_is_written_down(hub: HubServer, api: HfApi, tmp_path: Path) -> None:
    push(api, {"x.parquet": b"x" * 5000})
    download(api, tmp_path, "x.parquet")
    assert [entry.endpoint for entry in hub.requests()] == [
        "preupload",
        "lfs_batch",
        "lfs_put",
        "lfs_verify",
        "commit",
        "resolve_head",
        "resolve_get",
    ]
    put, head, get = hub.requests("lfs_put", "resolve_head", "resolve_get")
    assert (put.method, put.bytes_in, put.bytes_out) == ("PUT", 5000, 0)
    assert (head.method, head.bytes_out) == ("HEAD", 0)
    assert (get.method, get.bytes_in, get.bytes_out) == ("GET", 0, 5000)
    assert get.path == f"/datasets/{REPO}/resolve/main/x.parquet"
