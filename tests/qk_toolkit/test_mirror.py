"""A folder and its copy at a URL: what is sent, fetched, removed and kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qk_toolkit import store
from qk_toolkit.errors import ConfigError, StoreError
from qk_toolkit.mirror import Mirror, mirror_folder
from qk_toolkit.uploads import output_file, output_folder
from s3_server import S3, damaged, error


def mirror(s3: S3, folder: Path, notes: list[str] | None = None) -> Mirror:
    note = notes.append if notes is not None else lambda text: None
    return Mirror(s3.url("copy/"), folder, last="last.json", hidden=(".kept",), note=note)


def everything(name: str) -> bool:
    return True


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_files_are_sent_once_and_removed_with_the_local_ones(s3: S3, tmp_path: Path) -> None:
    put(tmp_path, **{"a": "1", "sub/b": "2", ".kept/c": "3", "last.json": "4"})
    put(tmp_path, **{".lock": "", ".a.part-1": "", ".other/d": "", ".kept/.c.part-2": ""})
    ours = mirror(s3, tmp_path)
    sizes: list[tuple[int, int]] = []
    ours.push(lambda done, total: sizes.append((done, total)))
    assert s3.names() == ["copy/.kept/c", "copy/a", "copy/last.json", "copy/sub/b"]
    assert sizes[-1] == (4, 4)
    puts = [request.path for request in s3.requests if request.method == "PUT"]
    assert puts[-1].endswith("last.json")
    s3.requests.clear()
    ours.push()
    assert s3.requests == []
    put(tmp_path, a="new")
    (tmp_path / "sub" / "b").unlink()
    s3.put("copy/of-another", b"stays")
    ours.push()
    assert s3.names() == ["copy/.kept/c", "copy/a", "copy/last.json", "copy/of-another"]
    assert s3.get("copy/a") == b"new"
    ours.clear(keep=["last.json"])
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        *(".a.part-1", ".c.part-2", ".lock"),
        *("d", "last.json"),
    ]
    assert len(s3.names()) == 4


def test_the_newer_file_is_kept(s3: S3, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, a="1", b="1", c="1", d="1")
    mirror(s3, here).push()
    mirror(s3, there).pull(everything)
    assert {path.name for path in there.iterdir()} == {"a", "b", "c", "d", ".mirror.json"}
    put(there, a="changed there")
    put(here, b="changed here", e="not sent")
    ours = mirror(s3, there)
    ours.push()
    s3.delete("copy/c")
    (here / "d").unlink()  # by a program that empties caches
    ours = mirror(s3, here)
    ours.pull(everything)
    found = {path.name: path.read_text() for path in here.iterdir() if path.name[0] != "."}
    assert found == {"a": "changed there", "b": "changed here", "d": "1", "e": "not sent"}
    ours.push()
    assert s3.names() == [f"copy/{name}" for name in "abde"]
    assert s3.get("copy/b") == b"changed here"
    s3.delete("copy/d")
    mirror(s3, there).compare()
    assert (there / "d").exists()
    s3.delete("copy/e")
    mirror(s3, here).pull(lambda name: False)
    assert {path.name for path in here.iterdir()} == {"a", "b", ".mirror.json"}
    mirror(s3, there).pull_exactly(lambda name: name == "a")
    assert {path.name for path in there.iterdir()} == {"a", "b", ".mirror.json"}


def test_a_file_that_vanishes_while_files_are_sent(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, a="1", b="2")
    ours = mirror(s3, tmp_path)
    local = ours._local_files()
    monkeypatch.setattr(ours, "_local_files", lambda: local)
    (tmp_path / "a").unlink()
    ours.push()
    assert s3.names() == ["copy/b"]


def test_an_interrupted_copy_continues(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAITS", ())
    put(tmp_path, **{f"file-{number:02d}": str(number) for number in range(40)})
    s3.fail("PUT", error(500), path="file-30")
    with pytest.raises(StoreError, match=f"all files are kept in {tmp_path}"):
        mirror(s3, tmp_path).push()
    s3.heal()
    sent = s3.names()
    assert len(sent) >= 16
    s3.requests.clear()
    ours = mirror(s3, tmp_path)
    ours.pull(lambda name: False)
    ours.push()
    puts = [request.path for request in s3.requests if request.method == "PUT"]
    assert len(puts) <= 40 - 16
    assert len(s3.names()) == 40


def test_a_file_that_arrived_damaged_is_sent_again(s3: S3, tmp_path: Path) -> None:
    put(tmp_path, a="first", b="second")
    s3.fail("PUT", damaged, path="/copy/a", times=1)
    notes: list[str] = []
    mirror(s3, tmp_path, notes).push()
    assert s3.get("copy/a") == b"first"
    assert notes == [
        f"{s3.url('copy/a')}: has 2 bytes after it was sent with 5 bytes; it is sent again"
    ]


def test_names_never_leave_the_folder(s3: S3, tmp_path: Path) -> None:
    for name in ("copy/%2E%2E/out", "copy//absolute", "copy/.hidden", "copy/good"):
        s3.put(name, b"x")
    mirror(s3, tmp_path / "in").pull(everything)
    assert {path.name for path in tmp_path.rglob("*")} == {"in", "good", ".mirror.json"}


def test_folders_of_urls_differ(tmp_path: Path) -> None:
    one, other = (mirror_folder(f"s3://{bucket}/run/", "runs") for bucket in "ab")
    assert one != other
    assert one.name == other.name == "run"
    assert mirror_folder("s3://a/run", "runs") == one
    assert mirror_folder("s3://a/run", "runs", tmp_path).is_relative_to(tmp_path)


def test_output_goes_to_a_folder_or_a_url(s3: S3, tmp_path: Path) -> None:
    for place in (str(tmp_path / "out"), s3.url("out/")):
        with output_folder(place) as output:
            put(output.folder, **{"sub/a.txt": "1"})
            assert output.shown(output.folder / "a.txt") == f"{place.rstrip('/')}/a.txt"
        with output_file(f"{place.rstrip('/')}/b.png") as (path, output):
            put(path.parent, **{"b.png": "2", "b.txt": "3"})
            assert output.shown(path) == f"{place.rstrip('/')}/b.png"
    assert s3.names() == ["out/b.png", "out/b.txt", "out/sub/a.txt"]
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot be written to the Hub"), output_folder("hf://x"):
        pass
