"""Files at URLs through the real client: a real S3 server with faults, and copies of folders."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from qk_toolkit.cache import folder_of_url
from qk_toolkit.errors import ConfigError, OutputError, StoreError
from qk_toolkit.store import DamagedFileError, Store
from qk_toolkit.sync import fetch_changed, fetch_missing, send_files
from qk_toolkit.urls import reason_of
from s3_server import S3, Fault, damaged, error, expired, reset, slow, truncated
from waiting import PATIENCE

SECRET = "secret-of-the-test"  # as the fixture sets it


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
    assert store.read_parts("b/c.bin", [(2, 5), (7, 8)]) == [b"234", b"7"]
    assert store.read("b/c.bin") == b"0123456789"
    assert store.read("none") is store.read_parts("none", [(0, 2)]) is None
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
def test_a_fault_that_passes_does_not_matter(
    s3: S3, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    s3.put("dump/a", b"0123456789")
    store = Store(s3.url("dump"))
    for path in ("", "list-type"):
        plan = s3.fail("GET", fault, path=path, times=1)
        assert store.read_parts("a", [(1, 9)]) == [b"12345678"]
        assert list(store.files()) == ["a"]
        assert plan.hits == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (error(500), "a planned fault; check the URL and the credentials, then run the same"),
        (truncated, "run the same command again"),
        (expired, "token has expired.*check the URL and the credentials"),
        (error(403, "AccessDenied", "Access Denied"), "Access Denied; check the URL and the cred"),
        (error(400, "InvalidRequest", "what?"), "what.; check the URL and the credentials"),
    ],
)
def test_a_lasting_fault_is_an_error_of_one_line(s3: S3, fault: Fault, message: str) -> None:
    s3.put("dump/a", b"0123456789")
    s3.fail("GET", fault)
    store = Store(s3.url("dump"))
    actions: list[Callable[[], object]] = [store.files, lambda: store.read_parts("a", [(0, 10)])]
    for action in actions:
        with pytest.raises(StoreError, match=message) as raised:
            action()
        assert str(raised.value).startswith(s3.url("dump"))
        assert SECRET not in str(raised.value)


def test_a_server_that_does_not_answer(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3.put("dump/a", b"0")
    s3.fail("GET", slow(PATIENCE), times=1)
    monkeypatch.setattr("qk_toolkit.urls._S3_TIMEOUTS", {"read_timeout": 2.0})
    assert Store(s3.url("dump")).read_parts("a", [(0, 1)]) == [b"0"]  # by one of five requests
    s3.fail("GET", slow(PATIENCE))
    monkeypatch.setattr("qk_toolkit.urls._S3_TIMEOUTS", {"read_timeout": 0.1})
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match=r"Read timeout.*run the same command again"):
        Store(s3.url("dump")).files()


def test_wrong_places(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import s3fs

    with pytest.raises(StoreError, match="bucket does not exist; check the URL"):
        Store("s3://no-such-bucket/dump").files()
    with pytest.raises(StoreError, match="bucket does not exist"):
        Store("s3://no-such-bucket/dump").read_parts("a", [(0, 1)])
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match=r"Unable to locate credentials; check the URL"):
        Store(s3.url("dump")).files()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match=r"Could not connect.*run the same command again"):
        Store(s3.url("dump")).files()


def test_reasons_have_no_passwords() -> None:
    url = "https://me:hidden@host/a?list-type=2&X-Amz-Signature=hidden&X-Amz-Security-Token=hidden"
    assert reason_of(OSError(f"no answer\nfrom {url}")) == (
        "no answer from https://…@host/a?list-type=2&…&…"
    )
    assert reason_of(OSError(f"{'long ' * 38}s3://me:hid/hidden@bucket/a")).endswith("s3://…@buc")
    kept = "http://127.0.0.1:80/name@branch and hf://datasets/me/qk@main: kept"
    assert reason_of(OSError(kept)) == kept


class ChecksumError(Exception):
    """As those of botocore and gcsfs are named."""


def test_damage_bugs_and_other_errors_are_told_apart(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("dump/a", b"0123456789")
    store = Store(s3.url("dump"))

    def failing(error: Exception) -> None:
        def call(*_: object, **__: object) -> None:
            raise error

        for name in ("rm_file", "get_file"):
            monkeypatch.setattr(store._system, name, call)

    failing(ChecksumError("not that of the content"))
    with pytest.raises(DamagedFileError, match=r"dump/a: is damaged .not that of the content."):
        store.remove(["a"])
    failing(RuntimeError("of the client"))
    with pytest.raises(StoreError, match="removing failed: of the client; check the URL"):
        store.remove(["a"])
    failing(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OutputError, match=f"{tmp_path}/a: .*No space left.*free some space"):
        store.download("a", tmp_path / "a")
    monkeypatch.setattr(store._system, "cat_ranges", lambda *_, **__: None)
    with pytest.raises(TypeError):  # raised by `Store.read_parts`
        store.read_parts("a", [(1, 2)])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://key:hidden@bucket/dump", "s3://…@bucket: a URL with a password cannot be used"),
        ("s3://key:hid/hidden@bucket/dump", "s3://…@bucket: a URL with a password cannot be used"),
        ("https://key:hidden@host:80/dump", "https://…@host:80: a URL with a password"),
        ("s3://bucket/dump?token=hidden", "s3://bucket/dump: a URL with '[?]' cannot be used"),
        ("https://host/dump", "folders cannot be listed"),
        ("s3://", "expected a URL such as s3://bucket/folder"),
        ("nothing://bucket", "Protocol not known: nothing"),
    ],
)
def test_refused_urls(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        Store(url).files()
    assert "hidden" not in str(raised.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "inner").mkdir(parents=True)
    return made


def puts(s3: S3) -> list[str]:
    return [one.path.rpartition("/")[2] for one in s3.requests if one.method == "PUT"]


def test_files_that_have_their_size_at_the_url_are_not_sent_unless_asked(
    s3: S3, folder: Path
) -> None:
    for name in ("a", "inner/b"):
        (folder / name).write_text("new")
    s3.put("run/a", b"old")
    seen: list[tuple[int, int]] = []
    send_files(s3.url("run"), folder, ["a", "inner/b"], lambda *sizes: seen.append(sizes))
    assert (puts(s3), seen, s3.get("run/a")) == (["b"], [(3, 3)], b"old")
    send_files(s3.url("run"), folder, ["a"], always=True)
    assert s3.get("run/a") == b"new"


@pytest.mark.parametrize("times", [1, None])
def test_a_file_with_another_size_is_sent_again_or_named(
    s3: S3, folder: Path, times: int | None
) -> None:
    (folder / "last").write_text("the end")
    s3.fail("PUT", damaged, path="last", times=times)
    if times is None:
        kept = rf"run/last: has another size after it was sent; all files are kept in {folder}"
        with pytest.raises(StoreError, match=kept):
            send_files(s3.url("run"), folder, ["last"])
    else:
        send_files(s3.url("run"), folder, ["last"])
        assert s3.get("run/last") == b"the end"


def test_missing_files_are_fetched(s3: S3, folder: Path) -> None:
    for name in ("inner/one", "inner/two", "inner/deep/three", "other/four"):
        s3.put(f"run/{name}", b"content")
    (folder / "inner" / "one").write_text("content")
    s3.put("run/inner/one", b"damaged, as it has another size")
    assert fetch_missing(s3.url("run"), folder, "inner") == 1
    assert (folder / "inner" / "one").read_text() == "content"
    assert (folder / "inner" / "two").read_text() == "content"
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["one", "two"]
    assert fetch_missing(s3.url("nothing"), folder, "inner") == 0
    s3.put("out/inner/../../outside", b"x")  # a name that leads out of the folder
    assert fetch_missing(s3.url("out"), folder, "inner") == 0
    assert not (folder.parent / "outside").exists()
    s3.put("part/inner/four", b"content" * 1000)
    s3.fail("GET", truncated, path="inner/four")
    with pytest.raises(StoreError):
        fetch_missing(s3.url("part"), folder, "inner")
    assert sorted(path.name for path in (folder / "inner").iterdir()) == ["one", "two"]


def test_only_changed_files_are_fetched_and_no_others_stay(s3: S3, folder: Path) -> None:
    store = Store(s3.url("run"))
    for name in "abc":
        s3.put(f"run/{name}", b"old")

    def fetched() -> list[str]:
        s3.requests.clear()
        fetch_changed(store, folder, store.files())
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        assert {n: v for n, v in found.items() if n[0] != "."} == {
            name.removeprefix("run/"): s3.get(name) for name in s3.names("run/")
        }
        return [one.path[-1] for one in s3.requests if "list-type" not in one.path]

    assert sorted(fetched()) == ["a", "b", "c"]
    assert fetched() == []
    s3.put("run/a", b"new")
    s3.delete("run/b")
    (folder / "c").unlink()  # by a program that empties caches
    assert sorted(fetched()) == ["a", "c"]
    s3.fail("GET", truncated, path="run/a")
    s3.put("run/a", b"newer")
    with pytest.raises(StoreError):
        fetch_changed(store, folder, store.files())
    s3.heal()
    assert fetched() == ["a"]


def test_urls_with_one_last_name_have_folders_of_their_own() -> None:
    one, other = (folder_of_url(f"s3://{bucket}/run/", "runs") for bucket in "ab")
    assert one != other
    assert folder_of_url("s3://a/run", "runs") == one
