"""Names of dumps on the Hub, patience with it, and what is said when that ends."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hub_server import HubServer, status
from hub_server import hub as hub  # the fixture
from hubs import REPO, client_of
from qk_dump.hub import client as hub_client
from qk_dump.hub.client import (
    InvalidAnswerError,
    hub_api,
    hub_errors,
    is_conflict,
    is_transient,
    with_retries,
)
from qk_dump.hub.place import HubPlace, is_hub_path, parse_place
from qk_toolkit.errors import ConfigError, HubError

PLACE = HubPlace("me/qk", "tiny")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(hub_client.time, "sleep", waits.append)
    return waits


def answer(code: int, kind: type[HfHubHTTPError] = HfHubHTTPError, **headers: str) -> Exception:
    """The client's error for an answer of the server."""
    request: Any = SimpleNamespace(headers={"Authorization": "Bearer hf_secret"}, url="http://hub")
    response: Any = SimpleNamespace(
        status_code=code,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        request=request,
    )
    return kind(f"{code} for url http://hub\nRequest ID: 1", response=response)


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


class Step:
    """Fails with each of the errors in turn, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tries = 0

    def __call__(self) -> str:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("me/qk", HubPlace("me/qk")),
        ("me/qk@tiny", PLACE),
        ("me/qk@tiny/", PLACE),
        ("hf://datasets/me/qk@tiny", PLACE),
        ("hf://datasets/me/qk", HubPlace("me/qk")),
        ("hf://datasets/me/qk@tiny/model", HubPlace("me/qk", "tiny", "model")),
        ("me/qk/model", HubPlace("me/qk", "main", "model")),
        ("me/qk@team%2Fbig", HubPlace("me/qk", "team/big")),
        ("me/qk@team%2Fbig/model", HubPlace("me/qk", "team/big", "model")),
        ("my-org/qk.v1_2@v1.0-a_b", HubPlace("my-org/qk.v1_2", "v1.0-a_b")),
    ],
)
def test_names_of_dumps(text: str, place: HubPlace) -> None:
    assert parse_place(text) == place
    assert parse_place(str(place)) == place


@pytest.mark.parametrize(
    "text",
    ["", "qk", "me/", "/qk", "me/qk@", "me/q k", "me/qk@a@b", "me/qk@a/b/c", "hf://me/qk",
     "hf://models/me/qk", "hf://datasets/qk", "https://huggingface.co/datasets/me/qk"],
)  # fmt: skip
def test_what_names_no_dump(text: str) -> None:
    with pytest.raises(ConfigError, match="expected owner/name@branch, or hf://") as caught:
        parse_place(text)
    assert "\n" not in str(caught.value)


def test_paths_of_the_hub() -> None:
    assert is_hub_path("hf://datasets/me/qk")
    assert not is_hub_path("me/qk")


@pytest.mark.parametrize(
    "error",
    [
        *(answer(code) for code in (408, 429, 500, 502, 503, 504)),
        HTTPError("reset"),
        ConnectionResetError(),
        TimeoutError(),
        InvalidAnswerError("JSONDecodeError", is_cut=True),
        caused(RuntimeError("Error while uploading"), answer(500)),
        caused(LocalEntryNotFoundError("no file in the cache"), answer(503)),
        caused(LocalEntryNotFoundError("no file in the cache"), HTTPError("reset")),
        caused(HTTPError("reset"), caused(OSError("inner"), OSError("innermost"))),
        caused(RuntimeError("wrapped"), caused(ValueError("twice"), TimeoutError())),
    ],
)
def test_what_may_pass(error: Exception, waits: list[float]) -> None:
    assert is_transient(error)
    assert with_retries(Step(error)) == "done"
    assert waits == [1]


@pytest.mark.parametrize(
    "error",
    [
        *(answer(code) for code in (400, 401, 403, 404, 409, 412, 413)),
        answer(404, RevisionNotFoundError),
        caused(RuntimeError("Error while uploading"), answer(403)),
        caused(LocalEntryNotFoundError("no file in the cache"), answer(401)),
        caused(ConfigError("dump.json: is not JSON"), json.JSONDecodeError("no JSON", "x", 0)),
        OfflineModeIsEnabled("offline"),
        FileNotFoundError("a file here"),
        HFValidationError("a b"),
        InvalidAnswerError("KeyError"),
        json.JSONDecodeError("a file of ours", "<html>", 0),
        KeyError("a bug"),
        TypeError("a bug"),
        AttributeError("a bug"),
        caused(TypeError("a bug"), answer(500)),
    ],
)
def test_what_will_not_pass(error: Exception, waits: list[float]) -> None:
    assert not is_transient(error)
    step = Step(error)
    with pytest.raises(type(error)):
        with_retries(step)
    assert step.tries == 1
    assert not waits


CUT = {"half": b'{"id": "me/qk", "sha', "not UTF-8": b"\xff\xfe"}
OTHER = {"null": b"null", "an object": b"{}", "a number": b"5", "nested": b"[" * 100_000}


@pytest.mark.parametrize("body", CUT.values(), ids=CUT)
@pytest.mark.usefixtures("waits")
def test_a_cut_answer_is_asked_for_again(hub: HubServer, tmp_path: Path, body: bytes) -> None:
    hub.store.create_repo(REPO)
    plan = hub.fail("info", status(200, body=body))
    with client_of(hub, tmp_path):
        found: Any = with_retries(lambda: hub_api().dataset_info(REPO))
    assert plan.hits == 1
    assert found.id == REPO


@pytest.mark.parametrize("body", OTHER.values(), ids=OTHER)
def test_another_answer_is_asked_for_once(hub: HubServer, tmp_path: Path, body: bytes) -> None:
    plan = hub.fail("info", status(200, body=body), times=None)
    with client_of(hub, tmp_path), pytest.raises(InvalidAnswerError):
        with_retries(lambda: hub_api().dataset_info(REPO))
    assert plan.hits == 1


def test_a_wrong_call_of_the_client_is_a_bug(hub: HubServer, tmp_path: Path) -> None:
    hub.store.create_repo(REPO)
    with client_of(hub, tmp_path), hub_errors(PLACE, "fetching"):
        with pytest.raises(TypeError, match="unknown"):
            with_retries(lambda: hub_api().dataset_info(REPO, unknown=1))
        with pytest.raises(AttributeError, match="shaa"):
            with_retries(lambda: hub_api().dataset_info(REPO).shaa)
    assert len(hub.log) == 1


def test_patience_ends(waits: list[float]) -> None:
    step = Step(*(answer(500) for _ in range(9)))
    with pytest.raises(HfHubHTTPError):
        with_retries(step)
    assert step.tries == 5
    assert waits == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("asked", "waited"),
    [("7", 7), ("0", 1), ("0.5", 1), ("-3", 1), ("100000", 300), ("inf", 300), ("nan", 1),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 1), ("", 1)],
)  # fmt: skip
def test_the_server_may_ask_for_a_pause(asked: str, waited: float, waits: list[float]) -> None:
    assert with_retries(Step(answer(429, Retry_After=asked))) == "done"
    assert waits == [waited]


def test_a_pause_asked_for_in_a_wrapped_answer(waits: list[float]) -> None:
    wrapped = caused(RuntimeError("Error while uploading"), answer(429, Retry_After="9"))
    assert with_retries(Step(wrapped)) == "done"
    assert waits == [9]


@pytest.mark.parametrize("error", [answer(504), HTTPError("reset"), answer(412)])
def test_a_lost_reply_is_looked_up(error: Exception, waits: list[float]) -> None:
    step = Step(error)
    assert with_retries(step, find_result=lambda: "there already") == "there already"
    assert step.tries == 1
    assert not waits


def test_what_is_not_settled_is_done_again(waits: list[float]) -> None:
    step = Step(answer(504))
    assert with_retries(step, find_result=lambda: None) == "done"
    assert step.tries == 2


def test_a_conflict_is_not_tried_again(waits: list[float]) -> None:
    error = answer(412)
    assert is_conflict(error)
    assert not is_conflict(answer(500))
    step = Step(error)
    with pytest.raises(HfHubHTTPError):
        with_retries(step, find_result=lambda: None)
    assert step.tries == 1


def test_a_refusal_is_not_looked_up() -> None:
    def never() -> str:
        raise AssertionError("asked all the same")

    with pytest.raises(HfHubHTTPError):
        with_retries(Step(answer(403)), find_result=never)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (answer(401), "check the name, and HF_TOKEN or 'hf auth login'"),
        (answer(401, RepositoryNotFoundError), "check the name, and HF_TOKEN or 'hf auth login'"),
        (answer(404, RepositoryNotFoundError), "no such dataset; check the name"),
        (answer(404, RevisionNotFoundError), "no branch, tag or commit 'tiny'; see the card"),
        (answer(404, RemoteEntryNotFoundError), "a file of the commit was deleted"),
        (answer(403, GatedRepoError), "gated; ask for access"),
        (answer(403), "needs write access"),
        (answer(412), "another push changed the branch; run the same command again"),
        (answer(429), "too many requests; wait a while, then run the same command again"),
        (answer(500), "the Hub answered 500; run the same command again later"),
        (HTTPError("reset"), "no connection (HTTPError); run the same command again"),
        (InvalidAnswerError("JSONDecodeError"), "cannot be parsed; run the same command again"),
        (OfflineModeIsEnabled("off"), "HF_HUB_OFFLINE is set; unset it"),
        (LocalTokenNotFoundError("none"), "needs a token; set HF_TOKEN or run 'hf auth login'"),
        (caused(RuntimeError("Error while uploading"), answer(403)), "needs write access"),
    ],
)
def test_errors_in_words(error: Exception, words: str) -> None:
    with pytest.raises(HubError) as caught, hub_errors(PLACE, "publishing"):
        raise error
    message = str(caught.value)
    assert message.startswith("me/qk@tiny: publishing ")
    assert words in message
    assert "\n" not in message
    assert "hf_secret" not in message


@pytest.mark.parametrize("error", [ValueError("a bug"), ConfigError("ours"), HubError("ours")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, hub_errors(PLACE, "publishing"):
        raise error
    assert caught.value is error


def test_a_right_that_is_missing_is_the_one_needed() -> None:
    with (
        pytest.raises(HubError, match="it needs access to the dataset"),
        hub_errors(PLACE, "fetching"),
    ):
        raise answer(403)
