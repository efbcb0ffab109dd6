"""Files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qk_dump.errors import OutputError
from qk_dump.files import staged, write_text


def refusal(target: Path, text: str = "new") -> str:
    with pytest.raises(OutputError) as caught:
        write_text(target, text)
    message = str(caught.value)
    assert message.startswith(f"{target}: cannot be written")
    return message


def test_text_is_written_as_utf8_with_its_line_ends_kept(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "α\nβ\r\n")
    assert (tmp_path / "a.txt").read_bytes() == "α\nβ\r\n".encode()


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "x")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "x"


def test_an_earlier_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "a long old text")
    write_text(target, "new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_the_old_file_is_seen_until_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "old")
    with staged(target) as draft:
        draft.write_text("new")
        assert draft.parent == tmp_path
        assert draft.name.startswith(".")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_in_the_block_leaves_the_old_file_and_no_draft(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "old")

    def fail_halfway() -> None:
        with staged(target) as draft:
            draft.write_text("half")
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_of_the_system_in_the_block_names_the_target(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with pytest.raises(OutputError, match="Input/output error") as caught, staged(target):
        raise OSError(5, os.strerror(5))
    assert str(target) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_writes_nothing_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "old")
    with pytest.raises(OutputError), staged(target):
        pass
    assert target.read_text() == "old"


def test_a_folder_in_the_targets_place_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.mkdir()
    assert "directory" in refusal(target).lower()
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    refusal(tmp_path / "file" / "a.txt")
    assert (tmp_path / "file").read_text() == "x"


def test_too_long_a_name_is_refused(tmp_path: Path) -> None:
    assert "name too long" in refusal(tmp_path / ("x" * 300))


def test_a_closed_folder_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write anywhere")
    assert "ermission denied" in refusal(closed / "a.txt")


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
