"""Files of a local model are known again, any change is noticed, and none is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from qk_sniffer.config import ModelSettings
from qk_sniffer.engines.hf.loading import load_model
from qk_toolkit.model_files import files_hash, hashes_file
from sniffing import sniff
from tiny_models import ARCHITECTURES
from tiny_texts import save_gguf, save_texts, save_tiny_model

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
    notes: list[str] = []
    monkeypatch.setattr("qk_toolkit.model_files._LARGE_BYTES", 1 << 20)
    expected = files_hash(folder, note=notes.append)
    assert ["hashing 0.0 GB of model files" in note for note in notes] == [True]
    monkeypatch.setattr("qk_toolkit.model_files._sha256", lambda path: "read again")
    assert files_hash(folder, note=notes.append) == expected
    assert len(notes) == 1
    hashes_file(folder).write_text("{")  # hashes that cannot be read count as none
    assert files_hash(folder) != expected


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file and folder."""
    states = {path: path.stat() for path in (folder, *folder.rglob("*"))}
    return {str(path): (state.st_size, state.st_mtime_ns) for path, state in states.items()}


def use(model: Path, place: Path) -> None:
    """Run every command that loads a model."""
    texts, dump = save_texts(place / "texts", [80, 60]), place / "dump"
    assert sniff(model, texts, dump, dry_run="true") == 0
    assert sniff(model, texts, dump) == 0
    assert main(["verify", str(model)]) == 0
    assert main(["add-rotary", str(dump), str(model), str(place / "rotary.json")]) == 0


def test_no_command_writes_into_the_folder_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = save_tiny_model(tmp_path / "model")
    before = listing(model)
    use(model, tmp_path)
    assert listing(model) == before


def test_nothing_is_written_beside_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_gguf(ARCHITECTURES["llama"].model(), tmp_path / "model" / "tiny.gguf")
    before = listing(tmp_path / "model")
    load_model(ModelSettings(name=str(tmp_path / "model"), gguf_file="tiny.gguf"), "cpu")
    assert listing(tmp_path / "model") == before
