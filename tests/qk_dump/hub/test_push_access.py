"""Pushes that may not be, or that no Hub answers: names, tokens, networks."""

from __future__ import annotations

from pathlib import Path

import pytest

import hub_server
from hub_fault_table import files_of
from hub_server import READER, WRITER, HubServer, status
from pushes import REPO, on_branch, refusal
from pushes import dump as dump  # the fixtures
from pushes import waits as waits
from qk_dump.hub.push import push_dump
from qk_toolkit.errors import ConfigError, HubError

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
hub = hub_server.hub


@pytest.mark.parametrize("repo", ["qk", "me/my qk", "me/a/b", "", "me/qk@tiny", "/qk", "mé/qk"])
def test_names_that_are_no_dataset(hub: HubServer, dump: Path, repo: str) -> None:
    with pytest.raises(ConfigError, match=r"repo: expected owner/name, got [^\n]*$"):
        push_dump(dump, repo, "tiny")
    assert not hub.log


@pytest.mark.parametrize("repo", ["me/-qk-", "me/a--b", "me/" + "a" * 100, "me/qk.git"])
def test_names_that_the_client_refuses(hub: HubServer, dump: Path, repo: str) -> None:
    with pytest.raises(ConfigError, match=f"^{repo}@tiny: [^\n]*$"):
        push_dump(dump, repo, "tiny")
    assert not hub.log


@pytest.mark.parametrize(
    "branch", ["main", "", "a b", "a..b", "-a", "a/", "/a", "a@b", "a%2Fb", "refs/x", "a" * 40]
)
def test_names_that_are_no_branch(hub: HubServer, dump: Path, branch: str) -> None:
    with pytest.raises(ConfigError, match=r"branch: .*(use letters|choose another)"):
        push_dump(dump, REPO, branch)
    assert not hub.log


def test_private_never_means_public(hub: HubServer, dump: Path) -> None:
    hub.store.create_repo(REPO)
    assert "public; nothing was sent" in refusal(dump, private=True)
    assert set(hub.branches(REPO)) == {"main"}
    hub.store.repos[REPO].private = True
    assert push_dump(dump, REPO, "tiny").changed  # without asking for it: stays as it is
    assert hub.store.repos[REPO].private


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("token", "words"),
    [(READER, "needs write access"), ("hf_unknown", "HF_TOKEN or 'hf auth login'")],
)
def test_a_token_that_may_not(
    hub: HubServer,
    dump: Path,
    token: str,
    words: str,
    there: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("HF_TOKEN", token)
    if there:
        hub.store.write(REPO, {"notes.md": b"x"}, "tiny")
    assert words in refusal(dump)
    assert token not in caplog.text


def test_the_token_may_be_given(
    hub: HubServer, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "needs a token; set HF_TOKEN or run 'hf auth login'" in refusal(dump)
    assert not hub.log
    assert push_dump(dump, REPO, "tiny", token=WRITER).changed


@pytest.mark.parametrize("token", ["hf_ünïcode", "hf_two words", "hf_tab\there"])
def test_a_token_that_no_request_can_carry(
    hub: HubServer, dump: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    assert refusal(dump).startswith("HF_TOKEN: ")
    assert not hub.log


def test_no_network_by_choice(
    hub: HubServer, dump: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    assert "HF_HUB_OFFLINE is set; unset it" in refusal(dump)
    assert not waits


def test_a_server_that_is_not_there(
    hub: HubServer, dump: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "no connection" in refusal(dump)
    assert waits == [1, 2, 4, 8]


def test_a_list_that_cannot_be_fetched_undamaged(hub: HubServer, dump: Path) -> None:
    push_dump(dump, REPO, "tiny")
    hub.fail("resolve_get", hub_server.wrong_bytes, times=None)
    with pytest.raises(HubError, match=r"differs from commit .*; run the same command again"):
        push_dump(dump, REPO, "tiny")
    hub.heal()
    assert not push_dump(dump, REPO, "tiny").notes


def test_a_token_for_this_dataset_alone_is_enough(hub: HubServer, dump: Path) -> None:
    hub.store.create_repo(REPO)
    hub.fail("create_repo", status(403), times=None)
    assert push_dump(dump, REPO, "tiny").changed


def test_a_gateway_that_answers_in_html(hub: HubServer, dump: Path) -> None:
    for endpoint in ("yaml", "commit", "info", "tree"):
        hub.fail(endpoint, status(502, body=b"<html>Bad gateway</html>"))
    assert push_dump(dump, REPO, "tiny").changed
    assert on_branch(hub) == files_of(dump)
