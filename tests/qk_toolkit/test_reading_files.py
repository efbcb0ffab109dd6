"""Files that others wrote are read when they are regular, of bounded size, and what they claim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odd_files import NOT_REGULAR, Maker
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import UnusableFileError, open_regular, read_bounded, read_json, user_path


@pytest.mark.parametrize(("make", "said"), NOT_REGULAR.values(), ids=NOT_REGULAR)
def test_what_is_no_regular_file_is_refused_unopened(
    make: Maker, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "dump.json"
    make(path)
    for read in (open_regular, read_json, lambda path: read_bounded(path, 10)):
        with pytest.raises(UnusableFileError) as caught:
            read(path)
        assert caught.value.strerror == said
        assert str(caught.value) == f"{path}: {said}"


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


def test_what_we_write_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for value in ([], {}, 10**30, "\udce9", {"a": [[0.1, -0.0], {"b": None}]}, [[[1]] * 100] * 100):
        path.write_text(json.dumps(value))
        assert read_json(path) == value


@pytest.mark.parametrize(
    "text", ["a\0b", "\0", "a/\ud800", "~/\0", "a" * 300, "a/" * 3000], ids=range(6)
)
def test_a_path_that_no_file_can_have_is_refused(text: str) -> None:
    for path in (text, Path(text)):
        with pytest.raises(ConfigError, match="no file can have this name") as caught:
            user_path(path)
        assert "\0" not in str(caught.value)
