"""Files of a commit: their hashes, answers that are no answers, and a cache that is not as left."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

import hub_server
from hub_server import HubServer, changed_json, running_hub, status
from hubs import REPO, TINY, files_of, pull_refusal, upload
from hubs import cache as cache  # the fixtures
from hubs import client as client
from hubs import commit as commit
from hubs import dump as dump
from qk_dump.hub.files import list_files
from qk_dump.hub.place import HubPlace
from qk_dump.hub.pull import fetch_dump

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
hub = hub_server.hub
FILE = "l00h01q/data.parquet"


def test_a_listing_in_several_pages_is_complete() -> None:
    files = {f"d{i // 10}/e/{i}.txt": b"%d" % i for i in range(40)}
    with running_hub(page_size=7) as hub:
        commit = hub.store.write(REPO, files, "b").id
        found = list_files(hub.api(), HubPlace(REPO, "b"), commit)
        assert len(hub.requests("tree")) == 7
    assert set(found) == {".gitattributes", *files}


@pytest.mark.usefixtures("commit")
def test_redirects(hub: HubServer, dump: Path, tmp_path: Path) -> None:
    for endpoint in ("info", "tree", "resolve_get"):
        hub.fail(endpoint, status(302, {"Location": "?round"}), times=None)
        assert "fetching failed: too many redirects; check HF_ENDPOINT" in pull_refusal()
        hub.heal()
    hub.fail("resolve_get", status(307, {"Location": "?again"}), path=FILE, times=10)
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)
    with running_hub() as elsewhere:
        there = f"{elsewhere.endpoint}/datasets/{REPO}/resolve/{upload(elsewhere, dump)}/{FILE}"
        elsewhere.store.repos[REPO].private = True  # the token would open it
        hub.fail("resolve_get", status(302, {"Location": there}), path=FILE, times=None)
        message = pull_refusal(cache_dir=str(tmp_path / "another"))
    assert "no such dataset, or no access" in message


GARBLED = (b"", b"null", b"{}", b"5", b'{"id": "me/qk", "sha', b"\xff\xfe", b"<html>Sign in</html>")


@pytest.mark.usefixtures("commit")
def test_answers_that_are_none_are_told(hub: HubServer, cache: Path) -> None:
    """For example those of a proxy."""
    for body in GARBLED:
        for endpoint in ("info", "tree"):
            hub.fail(endpoint, status(200, body=body), times=None)
            assert pull_refusal().startswith("me/qk@tiny: "), (endpoint, body)
            hub.heal()
    hub.fail("info", changed_json(lambda info: {**info, "sha": "main"}))
    assert "gives 'main' as a commit, not 40 hexadecimal digits" in pull_refusal()
    assert not cache.exists()


def test_a_cache_that_others_changed(
    commit: str, cache: Path, dump: Path, tmp_path: Path, client: pytest.MonkeyPatch
) -> None:
    snapshot = cache / "datasets--me--qk" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "l00h01q").mkdir()
    (snapshot / FILE).write_bytes(b"not from the Hub")
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)
    records = cache / "datasets--me--qk" / "attention-plasticity"
    for record in records.iterdir():
        record.write_text("{")
    assert files_of(fetch_dump(TINY).folder) == files_of(dump)
    assert {json.loads(record.read_text())["commit"] for record in records.iterdir()} == {commit}
    (snapshot / FILE).unlink()
    (snapshot / FILE).mkdir()
    assert f"{FILE}: cannot be written: Is a directory" in pull_refusal()
    (tmp_path / "file").write_text("a file")
    client.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert "cannot be written: " in pull_refusal()
