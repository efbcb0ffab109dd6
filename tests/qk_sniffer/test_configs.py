"""The capture configs that come with the toolkit, one per model."""

from __future__ import annotations

from pathlib import Path

import pytest

from qk_sniffer.config import load_config

FOLDER = Path(__file__).parents[2] / "configs" / "capture"
CHECKPOINTS = "smollm3-3b-checkpoints"
SHAPES = {  # layers with full attention, query heads, key heads, dimensions, context
    "gemma3-4b": (5, 8, 4, 256, 131_072),
    "llama3.1-8b": (32, 32, 8, 128, 131_072),
    "llama3.2-1b": (16, 32, 8, 64, 131_072),
    "llama3.2-3b": (28, 24, 8, 128, 131_072),
    "ministral3-14b": (40, 32, 8, 128, 262_144),
    "ministral3-3b": (26, 32, 8, 128, 262_144),
    "ministral3-8b": (34, 32, 8, 128, 262_144),
    "mistral-7b-v0.2": (32, 32, 8, 128, 32_768),
    "qwen3-0.6b": (28, 16, 8, 128, 131_072),
    "qwen3-1.7b": (28, 16, 8, 128, 131_072),
    "qwen3-14b": (40, 40, 8, 128, 131_072),
    "qwen3-4b": (36, 32, 8, 128, 131_072),
    "qwen3-8b": (36, 32, 8, 128, 131_072),
    "smollm2-135m": (30, 9, 3, 64, 8_192),
    "smollm3-3b": (36, 16, 4, 128, 65_536),
    CHECKPOINTS: (36, 16, 4, 128, 4_096),
}


def test_every_config_has_a_known_shape() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_config_loads_and_asks_for_what_its_model_has(name: str) -> None:
    config = load_config(FOLDER / f"{name}.yaml")
    layers, q_heads, _, _, context = SHAPES[name]
    assert config.data_root.startswith(f"data/attention-plasticity/{name.split('-checkpoints')[0]}")
    assert config.output.hf_repo_id is None
    assert config.hf_branch is None
    assert config.capture.full_attention_only
    assert config.tokenizer.max_length is not None
    assert config.tokenizer.max_length <= context
    assert config.tokenizer.max_length >= 4 * config.capture.min_bucket_size
    if config.capture.head_sampling is not None:
        assert config.capture.head_sampling.count <= layers * q_heads


@pytest.mark.parametrize("name", SHAPES)
def test_a_config_begins_with_the_shape_of_its_model(name: str) -> None:
    first = (FOLDER / f"{name}.yaml").read_text().partition("\n")[0]
    layers, q_heads, k_heads, dimensions, context = SHAPES[name]
    shape = f"{q_heads} query / {k_heads} key heads of {dimensions} dimensions, {context:,} tokens"
    assert shape in first
    if name != "gemma3-4b":  # where only some layers have full attention
        assert f": {layers} layers, " in first


def test_one_config_serves_every_checkpoint() -> None:
    path = FOLDER / f"{CHECKPOINTS}.yaml"
    branch = next(line for line in path.read_text().splitlines() if "# hf_branch: " in line)
    flags = {"model.revision": "stage1-step-40000", "output.hf_branch": branch.split()[-1]}
    config = load_config(path, flags)
    assert config.data_root == "data/attention-plasticity/smollm3-3b-stage1-step-40000"
    assert config.hf_branch == "smollm3-3b-stage1-step-40000-longbench-pro-128k-plus"


def test_the_context_of_qwen3_is_extended() -> None:
    overrides = load_config(FOLDER / "qwen3-8b.yaml").model.config_overrides
    assert overrides is not None
    assert overrides["max_position_embeddings"] == 131_072
    assert overrides["rope_parameters"]["rope_type"] == "yarn"
