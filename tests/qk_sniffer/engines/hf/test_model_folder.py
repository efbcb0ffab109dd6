"""The folder of a local model is read and never written."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_plasticity.cli import main
from qk_sniffer.config import ModelSettings
from qk_sniffer.engines.hf.loading import load_model
from sniffing import sniff
from tiny_models import ARCHITECTURES
from tiny_texts import save_gguf, save_texts, save_tiny_model


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
    rotary = ["--model.name", str(model), "--output", str(place / "rotary.json")]
    assert main(["add-rotary", str(dump), *rotary]) == 0


def test_no_command_writes_into_the_folder_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = save_tiny_model(tmp_path / "model")
    before = listing(model)
    use(model, tmp_path)
    assert listing(model) == before


def test_a_gguf_file_is_converted_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_gguf(ARCHITECTURES["llama"].model(), tmp_path / "model" / "tiny.gguf")
    before = listing(tmp_path / "model")
    load_model(ModelSettings(name=str(tmp_path / "model"), gguf_file="tiny.gguf"), "cpu")
    assert listing(tmp_path / "model") == before
