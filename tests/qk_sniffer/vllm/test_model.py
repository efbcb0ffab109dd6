"""Models that the engine vllm refuses from their config, before vLLM is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import AutoConfig

from qk_sniffer.capture.opening import open_model
from qk_sniffer.config import CaptureConfig, make_config
from qk_sniffer.vllm.model import open_vllm
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES


def saved(folder: Path, model_type: str, **changes: object) -> CaptureConfig:
    config = AutoConfig.for_model(model_type, **ARCHITECTURES[model_type].config | changes)
    config.save_pretrained(folder)
    return make_config(
        model={"name": str(folder)},
        dataset={"path": "texts"},
        output={"data_root": "dump"},
        engine="vllm",
    )


def refused(config: CaptureConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_vllm(config, lambda text: None, None)
    assert "vllm.entrypoints" not in sys.modules


def test_attention_that_vllm_does_not_show(tmp_path: Path) -> None:
    refused(saved(tmp_path / "compressed", "deepseek_v3"), "compressed .MLA.")
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = saved(tmp_path / "dynamic", "llama", rope_parameters=rope)
    refused(config, "rotary angles depend on the length of a text")
    later = AutoConfig.for_model("bert", hidden_size=64, num_attention_heads=4)
    later.save_pretrained(tmp_path / "bert")
    model = config.model.model_copy(update={"name": str(tmp_path / "bert")})
    refused(config.model_copy(update={"model": model}), "not causal")


def test_processes_of_a_launcher(tmp_path: Path) -> None:
    config = saved(tmp_path, "llama")
    with pytest.raises(ConfigError, match="engine: vllm starts its own processes"):
        open_model(config, "cpu", lambda text: None, processes=2, most_tokens=None)
