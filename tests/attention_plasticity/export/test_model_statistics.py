"""Exported statistics against those of all queries of a model, taken from its own modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands_here import run_here
from export_dumps import LENGTH, TEXTS, dump_of, provenance, queries_of, read_safetensors
from rope_types import model_of
from tiny_models import ARCHITECTURES

MODELS = {"qwen3": lambda: ARCHITECTURES["qwen3"].model(), "yarn": lambda: model_of("yarn")}


@pytest.fixture(scope="module", params=[(m, p) for m in MODELS for p in (False, True)], ids=str)
def model_and_dump(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """A model, and its dump before or after RoPE."""
    name, pre_rope = request.param
    model = MODELS[name]()
    scaling = model.model.rotary_emb.attention_scaling
    assert scaling > 1.1 if name == "yarn" else scaling == 1.0  # yarn has a factor to divide out
    return model, dump_of(model, tmp_path_factory.mktemp("dump") / name, pre_rope=pre_rope)


def exported(dump: Path, folder: Path, kind: str) -> Path:
    done = run_here("export", dump, folder, "--to", kind)
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    return folder


def test_triattention(model_and_dump: tuple[Any, Path], tmp_path: Path) -> None:
    model, dump = model_and_dump
    folder = exported(dump, tmp_path / "out", "triattention")
    content = torch.load(folder / "triattention.pt", weights_only=True)
    before, _ = queries_of(model)
    layers, heads, *_, width = before.shape
    metadata = content["metadata"]
    assert metadata["head_dim"] == width
    assert metadata["num_traces"] == TEXTS
    assert metadata["rope_style"] == "half"
    assert metadata["rope_type"] == model.config.rope_parameters["rope_type"]
    assert metadata["sampled_heads"] == [[i, j] for i in range(layers) for j in range(heads)]
    names = "num_traces head_dim dtype use_chat_template system_prompt attn_implementation"
    assert {*names.split(), "rope_style", "rope_type", "sampled_heads"} == {*metadata}
    assert len(content["stats"]) == layers * heads
    for layer, head in metadata["sampled_heads"]:
        rows = before[layer, head].reshape(-1, width)
        bands = rows[:, : width // 2] + 1j * rows[:, width // 2 :]
        stats = content["stats"][f"layer{layer:02d}_head{head:02d}"]
        expected = {
            "q_mean_real": bands.mean(axis=0).real,
            "q_mean_imag": bands.mean(axis=0).imag,
            "q_abs_mean": abs(bands).mean(axis=0),
        }
        assert {*stats} == {*expected}
        for name, values in expected.items():
            assert stats[name].dtype == torch.float32
            assert stats[name].untyped_storage().nbytes() == 2 * width  # no part of a larger array
            assert stats[name].numpy() == pytest.approx(values, rel=1e-3, abs=1e-4)


def test_expected_attention(model_and_dump: tuple[Any, Path], tmp_path: Path) -> None:
    model, dump = model_and_dump
    folder = exported(dump, tmp_path / "out", "expected-attention")
    before, _ = queries_of(model)
    rows = before[:, :, :, 4:]  # without the first four tokens of every text
    layers, heads, texts, length, width = rows.shape
    rows = rows.reshape(layers, heads, texts * length, width)
    mean = rows.mean(axis=2)
    centred = rows - mean[:, :, None]
    covariance = np.einsum("lhni,lhnj->lhij", centred, centred) / (texts * length - 1)
    tensors = read_safetensors(folder / "model.safetensors")
    assert {*tensors} == {"query_mean", "query_cov"}
    assert tensors["query_mean"] == pytest.approx(mean, rel=1e-3, abs=1e-4)
    assert tensors["query_cov"] == pytest.approx(covariance, rel=1e-3, abs=1e-4)
    assert json.loads((folder / "config.json").read_text()) == {
        "num_layers": layers,
        "num_heads": heads,
        "head_dim": width,
        "dataset_name": "unknown",
        "model_name": type(model).__name__,
        "num_samples": TEXTS,
        "sample_seq_len": LENGTH,
        "n_sink": 4,
    }
    assert {head["rows"] for head in provenance(folder)["heads"]} == {texts * length}


def test_q_filters(model_and_dump: tuple[Any, Path], tmp_path: Path) -> None:
    model, dump = model_and_dump
    folder = exported(dump, tmp_path / "out", "q-filters")
    _, after = queries_of(model)
    layers, heads, *_, width = after.shape
    key_heads = model.config.num_key_value_heads
    group = heads // key_heads
    expected = np.zeros((layers, key_heads, width))
    for layer in range(layers):
        for head in range(heads):
            rows = after[layer, head].reshape(-1, width)
            direction = np.linalg.svd(rows, full_matrices=False)[2][0]
            direction *= np.sign(direction @ rows.mean(axis=0))
            expected[layer, head // group] -= direction / group
    tensors = read_safetensors(folder / "model.safetensors")
    assert {*tensors} == {"q_filters"}
    assert tensors["q_filters"] == pytest.approx(expected, rel=1e-3, abs=1e-3)
    config = {"num_layers": layers, "num_kv_heads": key_heads, "kv_head_dim": width}
    assert json.loads((folder / "config.json").read_text()) == config
