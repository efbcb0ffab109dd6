"""A model or a dataset whose name is wrong, while the Hub does not answer."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from qk_sniffer.config import ModelSettings, TokenizerSettings
from qk_sniffer.engines.hf.loading import load_model_config, load_tokenizer
from qk_sniffer.reachable import require_reachable
from qk_sniffer.text_settings import DatasetSettings
from qk_sniffer.texts.sources import open_texts
from qk_toolkit.errors import ConfigError

MODEL = ModelSettings(name="nobody/nothing")


@pytest.fixture(autouse=True)
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hub at a port that refuses connections."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (lambda: load_model_config(MODEL), "model.name: nobody/nothing"),
        (lambda: load_tokenizer(TokenizerSettings(), MODEL), "model.name: nobody/nothing"),
        (lambda: load_tokenizer(TokenizerSettings(name="a/other"), MODEL), "tokenizer.name: a/o"),
        (lambda: open_texts(DatasetSettings(path="texs")), "dataset.path: texs"),
    ],
)
def test_a_wrong_name_is_told_at_once(load: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{told}.*: is no local path, and the Hub cannot be"):
        load()


def test_a_cached_name_needs_no_answer(tmp_path: Path) -> None:
    """Also without config.json, as in a repository of GGUF files or of a tokenizer."""
    (tmp_path / "models--nobody--nothing" / "snapshots" / "0123").mkdir(parents=True)
    require_reachable("model.name", MODEL.name)
