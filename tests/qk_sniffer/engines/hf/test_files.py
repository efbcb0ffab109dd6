"""A local model's files are known again, and any change of them is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qk_sniffer.engines.hf.files import files_hash, hashes_file, require_unchanged
from qk_toolkit.errors import ConfigError

YESTERDAY = 1_700_000_000


def folder_of(place: Path, **content: bytes) -> Path:
    place.mkdir(exist_ok=True)
    for name, data in content.items():
        path = place / name.replace("__", ".")
        path.write_bytes(data)
        os.utime(path, (YESTERDAY, YESTERDAY))
    return place


def some(place: Path) -> Path:
    return folder_of(
        place, config__json=b"{}", a__safetensors=bytes(4 << 20), tokenizer__txt=b"a b", x__py=b"1"
    )


def test_the_hash_is_that_of_names_and_content(tmp_path: Path) -> None:
    first, second = files_hash(some(tmp_path / "a")), files_hash(some(tmp_path / "b"))
    assert first == second
    assert files_hash(tmp_path / "a") == first
    assert files_hash(tmp_path / "nothing") is None
    for name in ("config.json", "a.safetensors", "tokenizer.txt", "x.py"):
        other = some(tmp_path / f"other {name}")
        data = bytearray((other / name).read_bytes())
        data[len(data) // 2] ^= 1  # in the middle of the weights, of the same size
        (other / name).write_bytes(data)
        os.utime(other / name, (YESTERDAY, YESTERDAY))
        assert files_hash(other) != first
    (tmp_path / "b" / "new.json").write_text("{}")
    assert files_hash(tmp_path / "b") != first


def test_other_weights_under_the_same_times_and_size_are_noticed(tmp_path: Path) -> None:
    """Only the inode's change time shows it, and programs cannot set that time."""
    folder = some(tmp_path / "model")
    for path in folder.iterdir():
        path.touch()
    before = files_hash(folder)
    times = (folder / "a.safetensors").stat()
    (folder / "a.safetensors").write_bytes(bytes([1]) + bytes((4 << 20) - 1))
    os.utime(folder / "a.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files_hash(folder) != before
    with pytest.raises(ConfigError, match="its files changed while the model was loaded"):
        require_unchanged(folder, None, before)


def test_files_that_are_not_loaded_are_not_read(tmp_path: Path) -> None:
    folder = some(tmp_path / "model")
    before = files_hash(folder)
    folder_of(folder, pytorch_model__bin=b"old", other__gguf=b"gguf", README__md=b"# text")
    (folder / ".hidden.json").write_text("{}")
    (folder / "sub").mkdir()
    assert files_hash(folder) == before
    assert files_hash(folder, "other.gguf") != before


def test_hashes_of_files_at_rest_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = some(tmp_path / "model")
    monkeypatch.setattr("qk_sniffer.engines.hf.files._SETTLE_SECONDS", -1000.0)  # as if long ago
    notes: list[str] = []
    monkeypatch.setattr("qk_sniffer.engines.hf.files._LARGE_BYTES", 1 << 20)
    expected = files_hash(folder, note=notes.append)
    assert ["hashing 0.0 GB of model files" in note for note in notes] == [True]
    monkeypatch.setattr("qk_sniffer.engines.hf.files._sha256", lambda path: "read again")
    assert files_hash(folder, note=notes.append) == expected
    assert len(notes) == 1
    hashes_file(folder).write_text("{")  # hashes that cannot be read count as none
    assert files_hash(folder) != expected
