"""Files appear whole or not at all, and those of others are read when they are what they claim."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odd_files import NOT_REGULAR, Maker
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.files import (
    UnusableFileError,
    lack_of_room,
    open_regular,
    read_bounded,
    read_json,
    remove_folder,
    require_writable,
    staged,
    staged_folder,
    sync_folder,
    user_path,
    write_first,
    write_text,
)
from waiting import PATIENCE


def refusal(target: Path, text: str = "new") -> str:
    with pytest.raises(OutputError) as caught:
        write_text(target, text)
    message = str(caught.value)
    assert message.startswith(f"{target}: cannot be written")
    return message


def test_text_is_written_whole_and_replaces_the_earlier_file(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.txt"  # the folders are made
    write_text(target, "a long old text")
    write_text(target, "α\nβ\r\n")
    assert target.read_bytes() == "α\nβ\r\n".encode()
    assert list(target.parent.iterdir()) == [target]
    write_text(target, '{"caf\udce9": "é"}')  # what UTF-8 cannot hold is escaped
    assert target.read_bytes() == '{"caf\\udce9": "é"}'.encode()
    assert read_json(target) == {"caf\udce9": "é"}


@pytest.mark.parametrize("name", ["FIFO", "socket", "device"])
def test_what_is_no_regular_file_is_not_replaced(name: str, tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    NOT_REGULAR[name](target)
    kind = target.lstat().st_mode
    assert "is not a regular file" in refusal(target)
    assert target.lstat().st_mode == kind


def test_a_failure_in_the_block_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "old")

    def fail_halfway() -> None:
        with staged(target) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_halfway()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_cannot_be_written_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("old")
    assert "directory" in refusal(folder).lower()
    assert "name too long" in refusal(tmp_path / ("x" * 300))
    refusal(file / "a.txt")
    with pytest.raises(OutputError, match=f"{file}: .*Input/output error"), staged(file):
        raise OSError(5, os.strerror(5))
    with pytest.raises(OutputError), staged(file):
        pass  # writes nothing
    assert file.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [file, folder]


def test_a_file_in_place_of_a_folder_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file/x: cannot be written: Not a directory"):
        require_writable(tmp_path / "file" / "x", "Choose another.")
    with pytest.raises(OutputError, match="file/x: cannot be written"):
        write_text(tmp_path / "file" / "x", "text")


def test_a_lack_of_room_is_told_also_for_a_folder_that_is_not_there(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert lack_of_room(tmp_path / "new" / "dump", free / 2) == []
    [line] = lack_of_room(tmp_path / "new" / "dump", 3 * free + 1e9)
    assert line.startswith("warning: ")
    assert f" GB are needed, and {tmp_path} has " in line


def test_a_full_disk_leaves_the_old_file_and_says_so(small_disk: Path) -> None:
    target = small_disk / "a.txt"
    write_text(target, "old")

    message = refusal(target, "x" * 200_000)

    assert "No space left on device" in message
    assert "free some space" in message
    assert target.read_text() == "old"
    assert list(small_disk.iterdir()) == [target]
    write_text(target, "y" * 10_000)
    assert target.read_text() == "y" * 10_000


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "segment"
    with staged_folder(target) as draft:
        (draft / "a.txt").write_text("x")
        assert not target.exists()
        assert draft.name.startswith(".")
    assert (target / "a.txt").read_text() == "x"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_failure_leaves_nothing_of_a_folder(tmp_path: Path, error: type[BaseException]) -> None:
    def fail_halfway() -> None:
        with staged_folder(tmp_path / "segment") as draft:
            (draft / "a.txt").write_text("half")
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert list(tmp_path.iterdir()) == []


def test_processes_with_one_id_do_not_share_a_draft(tmp_path: Path) -> None:
    """As in two containers on one share; here the process is one and the same."""
    target = tmp_path / "a.txt"
    with staged(target) as first:
        first.write_text("first")
        with staged(target) as second:
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_synced_matters_only_when_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    if code == errno.EINVAL:
        sync_folder(tmp_path)
    else:
        with pytest.raises(OSError, match="Input/output"):
            sync_folder(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_of_several_writers_one_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", refused)
    target, together = tmp_path / "file", threading.Barrier(4)

    def write(number: int) -> str:
        together.wait(PATIENCE)
        write_first(target, str(number) * 1000)
        return target.read_text()

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(write, range(4))]
    assert [*tmp_path.iterdir()] == [target]
    assert target.read_text() in {str(number) * 1000 for number in range(4)}
    assert len({*found}) == 1 or not links  # without links the last of them may win
    write_first(target, "later")
    assert target.read_text() != "later"


def test_a_folder_is_removed_in_one_step_also_after_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / ".folder.part-77-ab").mkdir()  # its removal was killed
    remove_folder(folder)
    assert [*tmp_path.iterdir()] == []
    remove_folder(folder)


@pytest.mark.parametrize("make", NOT_REGULAR.values(), ids=NOT_REGULAR)
def test_what_is_no_regular_file_is_refused_unopened(make: Maker, tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    make(path)
    for read in (open_regular, read_json, lambda path: read_bounded(path, 10)):
        with pytest.raises(UnusableFileError) as caught:
            read(path)
        assert caught.value.strerror == "is not a regular file"
        assert str(caught.value) == f"{path}: is not a regular file"


def test_no_more_is_read_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"123")
    assert read_bounded(path, 3) == b"123"
    with pytest.raises(UnusableFileError, match="is larger than 2 bytes"):
        read_bounded(path, 2)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(UnusableFileError, match="is larger than 16,777,216 bytes"):
        read_json(path, most_bytes=16 << 20)


GARBLED = {
    "empty": (b"", "Expecting value"),
    "half": (b'{"a": ', "Expecting value"),
    "not UTF-8": (b'{"a": "\xe9"}', "utf-8"),
    "UTF-16": ("{}".encode("utf-16"), "utf-8"),
    "two values": (b"{} {}", "Extra data"),
    "a key twice": (b'{"b": {"a": 1, "a": 2}}', "'a' is given twice"),
    "an endless number": (b"9" * 5000, "5000 digits"),
    "100,000 deep": (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
}


@pytest.mark.parametrize(("content", "said"), GARBLED.values(), ids=GARBLED)
def test_garbled_json_is_a_value_error_that_says_why(
    content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read_json(path)


@pytest.mark.parametrize(
    "text", ["a\0b", "\0", "a/\ud800", "~/\0", "a" * 300, "a/" * 3000], ids=range(6)
)
def test_a_path_that_no_file_can_have_is_refused(text: str) -> None:
    for path in (text, Path(text)):
        with pytest.raises(ConfigError, match="no file can have this name") as caught:
            user_path(path)
        assert "\0" not in str(caught.value)
