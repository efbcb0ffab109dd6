"""Fetching a dump from a Hub that fails, refuses, or lacks what was asked for."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from captures import content
from hub_server import (
    CLIENT_WARNINGS,
    STRANGER,
    WRITER,
    Fault,
    HubServer,
    reset_after,
    reset_before,
    status,
    truncated,
    wrong_bytes,
)
from hub_server import hub as hub  # the fixture
from hubs import REPO, client_of, downloads, upload
from pulling import FILE, TINY
from pulling import cache as cache  # the fixtures
from pulling import client as client
from pulling import local as local
from qk_dump.hub.place import HubPlace
from qk_dump.hub.pull import fetch_dump
from qk_toolkit.errors import ConfigError, HubError

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)

PASSING = {
    "wrong bytes": wrong_bytes,
    "half of the file": truncated,
    "another length": status(200, body=b"short"),
    "500": status(500),
    "429": status(429, {"Retry-After": "1"}),
    "reset": reset_before,
    "reset, late": reset_after,
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
@pytest.mark.usefixtures("client")
def test_a_fault_in_passing_is_repaired(hub: HubServer, local: Path, fault: Fault) -> None:
    upload(hub, local)
    plan = hub.fail("resolve_get", fault, path=FILE)
    fetched = fetch_dump(TINY)
    assert plan.hits == 1
    assert content(fetched.folder) == content(local)


@pytest.mark.parametrize("endpoint", ["info", "tree", "resolve_get"])
@pytest.mark.parametrize("fault", [status(500), status(429, {"Retry-After": "0"}), reset_before])
@pytest.mark.usefixtures("client")
def test_a_fault_of_any_request_is_repaired(
    hub: HubServer, local: Path, endpoint: str, fault: Fault
) -> None:
    upload(hub, local)
    plan = hub.fail(endpoint, fault)
    assert content(fetch_dump(TINY).folder) == content(local)
    assert plan.hits == 1


LASTING = {
    "wrong bytes": (wrong_bytes, "the downloaded l01h02q/data.parquet differs from commit"),
    "half of the file": (truncated, "no connection"),
    "another length": (status(200, body=b"short"), "differs from commit"),
    "500": (status(500), "the Hub answered 500; run the same command again later"),
    "429": (status(429, {"Retry-After": "0"}), "too many requests"),
    "reset": (reset_before, "no connection"),
    "401": (status(401), "HF_TOKEN or 'hf auth login'"),
    "403": (status(403), "the token has no permission"),
}


@pytest.mark.parametrize(("fault", "said"), LASTING.values(), ids=LASTING)
def test_a_lasting_fault_is_told_and_nothing_wrong_is_kept(
    hub: HubServer,
    local: Path,
    fault: Fault,
    said: str,
    cache: Path,
    client: pytest.MonkeyPatch,
) -> None:
    upload(hub, local)
    hub.fail("resolve_get", fault, path=FILE, times=None)
    with pytest.raises(HubError, match="me/qk@tiny") as caught:
        fetch_dump(TINY)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert WRITER not in str(caught.value)
    right = set(content(local).values())
    for file in (cache / "datasets--me--qk" / "blobs").iterdir():
        assert file.read_bytes() in right
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="offline"):
        fetch_dump(TINY)
    client.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.heal()
    hub.log.clear()
    assert content(fetch_dump(TINY).folder) == content(local)
    assert FILE in downloads(hub)
    assert len(downloads(hub)) < 13  # what was right the first time stays


REFUSED = {
    "no dataset": (HubPlace("me/none", "tiny"), "no such dataset"),
    "no branch": (HubPlace(REPO, "none"), "there is no branch, tag or commit 'none'"),
    "a bad name": (HubPlace("me/a b", "tiny"), "a b"),
}


@pytest.mark.parametrize(("place", "said"), REFUSED.values(), ids=REFUSED)
@pytest.mark.usefixtures("client")
def test_what_is_not_there_is_told(hub: HubServer, local: Path, place: HubPlace, said: str) -> None:
    upload(hub, local)
    with pytest.raises((HubError, ConfigError)) as caught:
        fetch_dump(place)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token", [None, STRANGER, "hf_bogus"])
def test_a_private_dataset_needs_the_right_token(
    hub: HubServer, local: Path, cache: Path, token: str | None
) -> None:
    upload(hub, local)
    hub.store.repos[REPO].private = True
    with client_of(hub, cache, token), pytest.raises(HubError) as caught:
        fetch_dump(TINY)
    assert "HF_TOKEN or 'hf auth login'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hf_" not in str(caught.value)
    with client_of(hub, cache):
        assert content(fetch_dump(TINY).folder) == content(local)
    assert not any(WRITER.encode() in data for data in content(cache).values())


def test_a_gated_dataset_says_where_to_ask(hub: HubServer, local: Path, cache: Path) -> None:
    upload(hub, local)
    hub.store.repos[REPO].gated = True
    with client_of(hub, cache, STRANGER), pytest.raises(HubError, match="is gated; ask for access"):
        fetch_dump(TINY)
