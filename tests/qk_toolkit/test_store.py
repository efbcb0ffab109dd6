"""Files at URLs: a real S3 server with faults, through the real client."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from qk_toolkit.errors import OutputError, StoreError
from qk_toolkit.store import Store, StoredFile
from qk_toolkit.urls import is_transient, reason_of, remedy
from s3_server import S3, Fault, error, expired, reset, slow, truncated

SECRET = "secret-of-the-test"  # as the fixture sets it


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qk_toolkit.store._WAITS", (0.0,) * 4)


def test_files_are_listed_read_written_and_removed(s3: S3, tmp_path: Path) -> None:
    s3.put("dump/a.json", b"{}")
    s3.put("dumpling/other", b"not in the folder")
    store: Store = pickle.loads(pickle.dumps(Store(s3.url("dump/"))))
    store.write("b/c.bin", b"0123456789")
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * 50_000)
    store.upload(large, "large")
    s3.requests.clear()
    found = store.files()
    assert [request.method for request in s3.requests] == ["GET"]  # one listing, no file by file
    assert {name: file.size for name, file in found.items()} == {
        "a.json": 2,
        "b/c.bin": 10,
        "large": 12_800_000,
    }
    assert store.read("b/c.bin", 2, 5) == b"234"
    assert store.read("b/c.bin", 3, 3) == b""
    assert store.read("b/c.bin") == b"0123456789"
    assert store.read("none", 0, 2) is None
    assert store.file("b/c.bin") == found["b/c.bin"]
    assert store.file("none") is store.file("b") is None
    store.write("b/c.bin", b"9876543210")
    assert store.files()["b/c.bin"] != found["b/c.bin"]  # the version is another one
    store.download("large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    with pytest.raises(StoreError, match="dump/none: does not exist"):
        store.download("none", tmp_path / "none")
    store.remove(["large", "none"])
    assert s3.names() == ["dump/a.json", "dump/b/c.bin", "dumpling/other"]
    assert Store(s3.url("nothing")).files() == {}


@pytest.mark.parametrize(
    "fault", [error(500), error(503, "SlowDown"), truncated, reset], ids=lambda fault: fault.kind
)
def test_a_fault_that_passes_does_not_matter(s3: S3, fault: Fault) -> None:
    s3.put("dump/a", b"0123456789")
    store = Store(s3.url("dump"))
    plan = s3.fail("GET", fault, times=2)
    assert store.read("a", 1, 9) == b"12345678"
    assert plan.hits == 2
    s3.fail("GET", fault, path="list-type", times=2)
    assert list(store.files()) == ["a"]


@pytest.mark.parametrize(
    ("fault", "requests", "message"),
    [
        (error(500), 5, "a planned fault; run the same command again"),
        (truncated, 5, "run the same command again"),
        (expired, 1, "no access .*token has expired.*check the credentials"),
        (error(403, "AccessDenied", "Access Denied"), 1, "no access .Access Denied."),
        (error(403, "InvalidAccessKeyId", "no such key"), 1, "check the credentials"),
        (error(400, "InvalidRequest", "what?"), 1, "what.; check the URL, the credentials"),
    ],
)
def test_a_lasting_fault_is_an_error_of_one_line(
    s3: S3, fault: Fault, requests: int, message: str
) -> None:
    s3.put("dump/a", b"0123456789")
    s3.fail("GET", fault)
    store = Store(s3.url("dump"))
    actions: list[Callable[[], object]] = [store.files, lambda: store.read("a", 0, 10)]
    for action in actions:
        s3.requests.clear()
        with pytest.raises(StoreError, match=message) as raised:
            action()
        assert len(s3.requests) == requests
        assert str(raised.value).startswith(s3.url("dump"))
        assert SECRET not in str(raised.value)


def test_a_server_that_does_not_answer(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qk_toolkit.urls._S3_TIMEOUTS", {"read_timeout": 0.3})
    s3.put("dump/a", b"0")
    s3.fail("GET", slow(2.0), times=1)
    assert Store(s3.url("dump")).read("a", 0, 1) == b"0"
    s3.fail("GET", slow(2.0))
    with pytest.raises(StoreError, match=r"Read timeout.*run the same command again"):
        Store(s3.url("dump")).files()


def test_settings_of_users_are_kept(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    given = {"config_kwargs": {"read_timeout": 7}, "key": "another"}
    monkeypatch.setitem(fsspec.config.conf, "s3", given)
    system = Store(s3.url("dump"))._system
    assert system.config_kwargs["read_timeout"] == 7
    assert system.config_kwargs["connect_timeout"] == 10
    assert system.key == "another"


def test_wrong_places(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="bucket does not exist; check the names of the bucket"):
        Store("s3://no-such-bucket/dump").files()
    with pytest.raises(StoreError, match="bucket does not exist"):
        Store("s3://no-such-bucket/dump").read("a", 0, 1)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3_client_is_new()
    with pytest.raises(StoreError, match=r"no access .Unable to locate credentials."):
        Store(s3.url("dump")).files()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    s3_client_is_new()
    with pytest.raises(StoreError, match=r"Could not connect.*run the same command again"):
        Store(s3.url("dump")).files()


def s3_client_is_new() -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def test_reasons_have_no_passwords() -> None:
    url = "https://me:hidden@host/a?list-type=2&X-Amz-Signature=hidden&X-Amz-Security-Token=hidden"
    assert reason_of(OSError(f"no answer\nfrom {url}")) == (
        "no answer from https://…@host/a?list-type=2&…&…"
    )
    assert reason_of(OSError(f"{'long ' * 38}s3://me:hid/hidden@bucket/a")).endswith("s3://…@buc")
    kept = "http://127.0.0.1:80/name@branch and hf://datasets/me/qk@main: kept"
    assert reason_of(OSError(kept)) == kept


@pytest.mark.parametrize("problem", ["unclosed token", "not well-formed (invalid token)"])
def test_an_answer_whose_end_is_missing_is_not_a_matter_of_access(problem: str) -> None:
    from botocore.parsers import ResponseParserError

    error = ResponseParserError(f"Unable to parse response ({problem}: line 1, column 40)")
    assert is_transient(error)
    assert remedy(error).endswith("; run the same command again")
    assert not is_transient(ValueError("The security token is invalid"))


class UnknownError(Exception):
    """Of a client that we do not know."""


def test_only_named_errors_are_transient() -> None:
    import socket

    from aiohttp import ClientPayloadError, ServerDisconnectedError
    from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

    named = [
        ConnectionResetError(),
        TimeoutError(),
        socket.gaierror(-3, "Temporary failure in name resolution"),
        OSError(errno.EBUSY, "Please reduce your request rate"),
        OSError(errno.EIO, "a gateway"),
        ClientPayloadError("not enough data"),
        ServerDisconnectedError(),
        EndpointConnectionError(endpoint_url="http://host"),
        ReadTimeoutError(endpoint_url="http://host"),
    ]
    assert [error for error in named if not is_transient(error)] == []
    others = [
        UnknownError("unknown"),
        TypeError("a bug"),
        KeyError("a bug"),
        RuntimeError("unknown"),
        OSError("without a number"),
        OSError(errno.ENOTDIR, "Not a directory"),
        OSError(errno.ENOSPC, "No space left on device"),
    ]
    assert [error for error in others if is_transient(error)] == []


def test_an_unknown_error_of_a_client_is_not_tried_again(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, calls = Store(s3.url("dump")), []

    def failing(*names: str) -> None:
        calls.append(names)
        raise UnknownError("of the client")

    monkeypatch.setattr(store._system, "rm_file", failing)
    with pytest.raises(StoreError, match="removing failed: of the client; check the URL"):
        store.remove(["a"])
    assert len(calls) == 1


def test_a_bug_stays_a_bug(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("dump/a", b"0123456789")
    store = Store(s3.url("dump"))
    system = store._system
    with pytest.raises(TypeError, match="no_such_argument"):  # refused by the client
        store._try(partial(system.cat_file, "bucket/a", no_such_argument=1), "a", "reading")
    monkeypatch.setattr(system, "cat_file", lambda *_, **__: None)
    with pytest.raises(TypeError, match="NoneType"):  # raised by `Store.read`
        store.read("a", 1, 2)
    assert s3.requests == []


def test_a_full_disk_of_this_machine_is_named(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(s3.url("dump"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store._system, "get_file", full)
    with pytest.raises(OutputError, match=f"{tmp_path}/a: .*No space left.*free some space"):
        store.download("a", tmp_path / "a")


def test_other_protocols(tmp_path: Path) -> None:
    store = Store("memory://folder")
    store.write("a/b", b"12")
    assert store.read("a/b", 1, 2) == b"2"
    assert list(store.files()) == ["a/b"]
    local = Store(f"local://{tmp_path}")
    local.write("a", b"12")
    stored = local.files()["a"]
    assert stored == StoredFile(2, str((tmp_path / "a").stat().st_mtime))
    missing = Store(f"local://{tmp_path}/missing")
    with pytest.raises(StoreError, match="missing/a: writing failed: No such file"):
        missing.upload(tmp_path / "a", "a")
    with pytest.raises(StoreError, match="missing/a: writing failed: No such file"):
        missing.write("a", b"12")
    with pytest.raises(StoreError, match="connecting failed: Connection refused"):
        Store("ftp://127.0.0.1:1/dump").files()
