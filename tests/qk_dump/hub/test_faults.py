"""Six kinds of faults while a dump is fetched or published.

Connection refused, cut answers, 5xx once, 5xx always, 429 and wrong content. A fetch or a push
ends well, or with one line that says what to do. A branch always holds one complete dump.
"""

import huggingface_hub.constants as constants
import pytest

import hub_server
from hub_server import (
    WRITER,
    reset_after,
    reset_before,
    running_hub,
    status,
    truncated,
    wrong_bytes,
)
from hubs import (
    REPO,
    TINY,
    client_of,
    downloads,
    files_of,
    on_branch,
    pull_refusal,
    push_refusal,
    small_dump,
)
from qk_dump.card import overview_card
from qk_dump.hub.fetch import fetch_dump
from qk_dump.hub.publish import push_dump
from qk_toolkit.errors import HubError

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
FILE = "l00h01q/data.parquet"
BUSY = status(429, {"Retry-After": "0"})
PASSING = {
    "cut answer": truncated,
    "5xx once": status(503),
    "429": BUSY,
    "lost request": reset_before,
    "lost reply": reset_after,
}


@pytest.mark.usefixtures("commit")
def test_a_hub_that_is_not_there(dump, client, hub):
    client.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "fetching failed: no connection" in pull_refusal()
    assert "publishing failed: no connection" in push_refusal(dump)
    client.setenv("HF_ENDPOINT", hub.endpoint)
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)


@pytest.mark.parametrize("endpoint", ["info", "tree", "resolve_head", "resolve_get"])
@pytest.mark.usefixtures("commit")
def test_a_fetch_survives_a_fault(hub, dump, endpoint, tmp_path):
    for name, fault in {**PASSING, "wrong content": wrong_bytes}.items():
        if name == "wrong content" and endpoint != "resolve_get":
            continue
        plan = hub.fail(endpoint, fault)
        fetched = fetch_dump(TINY, cache_dir=str(tmp_path / name))
        assert plan.hits == 1, name
        assert files_of(fetched.folder) == files_of(dump), name


LASTING = {
    "cut answer": (truncated, "no connection"),
    "5xx always": (status(500), "the Hub answered 500; run the same command again later"),
    "429": (BUSY, "too many requests; wait a while"),
    "wrong content": (wrong_bytes, f"the downloaded {FILE} differs from commit"),
    "another length": (status(200, body=b"short"), "of a downloaded file differs from commit"),
    "no permission": (status(403), "the token has no permission"),
    "no token": (status(401), "HF_TOKEN or 'hf auth login'"),
}


@pytest.mark.parametrize(("fault", "said"), LASTING.values(), ids=LASTING)
@pytest.mark.usefixtures("commit")
def test_a_lasting_fault_is_told_and_nothing_wrong_is_kept(hub, dump, fault, said, cache, client):
    hub.fail("resolve_get", fault, path=FILE, times=None)
    message = pull_refusal()
    assert message.startswith("me/qk@tiny: ")
    assert said in message
    right = set(files_of(dump).values())
    assert all(blob.read_bytes() in right for blob in (cache / "datasets--me--qk/blobs").iterdir())
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "offline" in pull_refusal()
    client.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.heal()
    hub.log.clear()
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)
    assert FILE in downloads(hub)


@pytest.mark.usefixtures("commit")
def test_what_arrived_before_another_file_failed_is_checked_too(hub, dump, cache):
    hub.fail("resolve_get", wrong_bytes, path=FILE, times=None)
    hub.fail("resolve_get", status(403), path="l00h00q", times=None)
    pull_refusal()
    right = set(files_of(dump).values())
    assert all(blob.read_bytes() in right for blob in (cache / "datasets--me--qk/blobs").iterdir())
    hub.heal()
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)


REQUESTS = {
    "ask for the dataset": ("info", ""),
    "create the dataset": ("create_repo", ""),
    "list branches": ("refs", ""),
    "find the first commit": ("commits", ""),
    "create the branch": ("branch", ""),
    "list files": ("tree", ""),
    "ask how to send files": ("preupload", ""),
    "ask where to send Parquet": ("lfs_batch", ""),
    "send a Parquet file": ("lfs_put", ""),
    "confirm a Parquet file": ("lfs_verify", ""),
    "check the card": ("yaml", ""),
    "commit the dump": ("commit", "/commit/tiny"),
    "fetch the card of main": ("resolve_get", ""),
    "commit the card of main": ("commit", "/commit/main"),
}
FIRST = ("create the dataset", "find the first commit", "create the branch")


class Pushes:
    """Pushes a new dump over an old one, or into nothing for the requests that create something."""

    def __init__(self, hub, folder):
        self.hub = hub
        self.old = files_of(small_dump(folder / "old", examples=3, n=5))
        self.folder = small_dump(folder / "new")
        self.new = files_of(self.folder)

    def outcome(self, request, name, fault, times):
        """Push with the fault, then without. Returns the error of the first push."""
        repo = f"me/{request}-{name}".replace(" ", "-")
        if request not in FIRST:
            self.hub.store.write(repo, self.old, "tiny")
            main = overview_card(repo, {"tiny": None}).encode()
            self.hub.store.write(repo, {"README.md": main}, "main")
        endpoint, path = REQUESTS[request]
        plan = self.hub.fail(endpoint, fault, path=path, times=times)
        error = ""
        try:
            push_dump(self.folder, repo, "tiny")
        except HubError as found:
            error = str(found)
        self.hub.heal()
        assert plan.hits, "the fault met no request"
        there = on_branch(self.hub, repo=repo)
        assert there == self.new if not error else there in ({}, self.old, self.new)
        self._push_again(repo, 2 if request in FIRST else 3)
        return error

    def _push_again(self, repo, commits):
        known = self.hub.store.repos.get(repo)
        arrived = set(known.objects) if known else set()
        before = len(self.hub.log)
        push_dump(self.folder, repo, "tiny")
        assert on_branch(self.hub, repo=repo) == self.new
        assert b"`org/tiny`" in self.hub.branch(repo)["README.md"]
        assert len(self.hub.commits(repo, "tiny")) == commits  # of the Hub, the old dump, and ours
        sent = [entry for entry in self.hub.log[before:] if entry.endpoint == "lfs_put"]
        assert not arrived & {entry.path.rpartition("/")[2] for entry in sent}


@pytest.fixture(scope="module")
def pushes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    with running_hub() as hub, client_of(hub, folder / "cache"):
        yield Pushes(hub, folder)


USUAL = ("create the branch", "send a Parquet file", "commit the dump")


@pytest.mark.parametrize(
    "request_kind",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.long) for name in REQUESTS],
)
def test_a_push_ends_well_or_says_what_to_do(pushes, request_kind, caplog):
    caplog.set_level("DEBUG")
    for name, fault in PASSING.items():
        assert pushes.outcome(request_kind, name, fault, 1) == "", name
    for name, fault in {"5xx always": status(500), "refused": status(403)}.items():
        error = pushes.outcome(request_kind, name, fault, None)
        if (request_kind, name) == ("confirm a Parquet file", "5xx always"):
            continue  # the Hub has the file: the next attempt does not send it
        assert "\n" not in error
        assert "again" in error or "write access" in error
        assert ("is published, but" in error) == ("of main" in request_kind)
    error = pushes.outcome(request_kind, "wrong content", wrong_bytes, 1)
    assert not error or "run the same command again" in error
    assert WRITER not in caplog.text
    assert REPO not in pushes.hub.store.repos
