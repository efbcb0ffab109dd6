"""New files of a folder are copied to a URL at intervals, and all of them at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qk_toolkit.cache import folder_of_url
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.store import Store
from qk_toolkit.sync import Sync, fetch_changed, fetch_missing
from qk_toolkit.uploads import output_file, output_folder
from s3_server import S3, damaged, error, truncated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "inner").mkdir(parents=True)
    return made


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def copied(s3: S3, folder: Path, notes: list[str]) -> Iterator[Sync]:
    """Copies the files of the inner folder."""

    def names() -> list[str]:
        return [f"inner/{path.name}" for path in sorted((folder / "inner").iterdir())]

    made = Sync(s3.url("run"), folder, names, notes.append, seconds=0.02)
    yield made
    made.stop()


def wait_for(s3: S3, name: str) -> None:
    for _ in range(1000):
        if name in s3.names():
            return
        time.sleep(0.01)
    raise AssertionError(f"{name} is not sent")


def puts(s3: S3) -> list[str]:
    return [one.path.rpartition("/")[2] for one in s3.requests if one.method == "PUT"]


def test_files_are_sent_when_they_are_there_and_only_once(
    s3: S3, folder: Path, copied: Sync
) -> None:
    (folder / "inner" / "one").write_text("1")
    copied.begin()
    assert s3.get("run/inner/one") == b"1"
    (folder / "inner" / "two").write_text("22")
    wait_for(s3, "run/inner/two")
    (folder / "last").write_text("end")
    copied.finish([["last"]])
    assert puts(s3) == ["one", "two", "last"]


def test_last_files_are_always_sent_in_their_order(s3: S3, folder: Path, copied: Sync) -> None:
    """They change under their names, so a file of the same size may be another one."""
    for name in ("a", "b", "run.json"):
        s3.put(f"run/{name}", b"old")
        (folder / name).write_text("old")
    copied.begin()
    for name in ("a", "b", "run.json"):
        (folder / name).write_text("new")
    copied.finish([["a", "b"], ["run.json"]])
    assert sorted(puts(s3)[:2]) == ["a", "b"]
    assert puts(s3)[2:] == ["run.json"]
    assert s3.get("run/run.json") == b"new"


def test_a_failure_meanwhile_is_noted_once_and_repaired(
    s3: S3, folder: Path, copied: Sync, notes: list[str]
) -> None:
    copied.begin()
    plan = s3.fail("PUT", error(500), times=8)
    (folder / "inner" / "one").write_text("1")
    wait_for(s3, "run/inner/one")
    assert plan.hits == 8
    assert len(notes) == 1
    assert notes[0].startswith("sending failed and is tried again: s3://")
    copied.finish([])


@pytest.mark.parametrize("times", [1, None])
def test_a_file_with_another_size_is_sent_again_or_named(
    s3: S3, folder: Path, copied: Sync, times: int | None
) -> None:
    (folder / "last").write_text("the end")
    s3.fail("PUT", damaged, path="last", times=times)
    copied.begin()
    if times is None:
        kept = rf"run/last: has another size after it was sent; all files are kept in {folder}"
        with pytest.raises(StoreError, match=kept):
            copied.finish([["last"]])
    else:
        copied.finish([["last"]])
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


def test_output_goes_to_a_folder_or_a_url(s3: S3, tmp_path: Path) -> None:
    for place in (str(tmp_path / "out"), s3.url("out/")):
        with output_folder(place) as output:
            (output.folder / "sub").mkdir(parents=True)
            (output.folder / "sub" / "a.txt").write_text("1")
            assert output.shown(output.folder / "a.txt") == f"{place.rstrip('/')}/a.txt"
        with output_file(f"{place.rstrip('/')}/b.png") as (path, output):
            path.write_text("2")
            path.with_suffix(".txt").write_text("3")
            assert output.shown(path) == f"{place.rstrip('/')}/b.png"
    assert s3.names() == ["out/b.png", "out/b.txt", "out/sub/a.txt"]
    with pytest.raises(ConfigError, match="cannot be written to the Hub"), output_folder("hf://x"):
        pass
