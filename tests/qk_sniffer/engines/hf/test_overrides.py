"""`model.config_overrides`: merged into the config, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qk_sniffer.config import ModelSettings
from qk_sniffer.engines.hf.loading import load_model, load_model_config
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.unloaded import shape_of
from qk_toolkit.errors import ConfigError
from tiny_texts import save_tiny_model, vision_language_model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("llama"))


def loaded(folder: Path | str, **settings: Any) -> Any:
    return load_model(ModelSettings(name=str(folder), **settings), "cpu")


def config_of(folder: Path | str, overrides: dict[str, Any]) -> Any:
    return load_model_config(ModelSettings(name=str(folder), config_overrides=overrides))


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_rope_overrides_keep_what_they_do_not_mention(llama: Path, name: str) -> None:
    config = config_of(llama, {name: YARN})
    assert dict(config.rope_parameters) == {"rope_theta": 10_000.0, **YARN}
    found = loaded(llama, config_overrides={name: YARN})
    assert found.text_config.rope_parameters["rope_type"] == "yarn"
    plain = loaded(llama)
    assert not torch.equal(found.model.rotary_emb.inv_freq, plain.model.rotary_emb.inv_freq)


def test_overrides_reach_into_nested_configs(tmp_path: Path) -> None:
    vision_language_model("gemma3").save_pretrained(tmp_path / "model")
    config = config_of(tmp_path / "model", {"text_config": {"max_position_embeddings": 1024}})
    assert config.text_config.max_position_embeddings == 1024
    assert config.text_config.sliding_window == 8
    assert config.vision_config.hidden_size == 32
    message = refusal(
        lambda: config_of(tmp_path / "model", {"text_config": {"max_position_embedings": 1024}})
    )
    assert "did you mean" in message
    assert "max_position_embeddings?" in message


def test_a_rope_override_that_would_reach_no_layer_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", "gemma3_text")
    config = config_of(folder, {"rope_parameters": {"full_attention": LINEAR}})
    assert config.rope_parameters["full_attention"] == {"rope_theta": 1_000_000.0, **LINEAR}
    assert config.rope_parameters["sliding_attention"]["rope_type"] == "default"
    message = refusal(lambda: config_of(folder, {"rope_parameters": YARN}))
    assert message.startswith("model.config_overrides: ")
    assert "full_attention" in message


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"rope_paramters": YARN}, "has no such field; did you mean rope_parameters?"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor"),
        ({"rope_parameters": {"rope_type": "nonsense"}}, "rope_type"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings"),
        ({"rope_scaling": {**LONGROPE, "short_factor": 1.0}}, "short_factor"),
        ({"hidden_act": "nonsense"}, "nonsense"),
    ],
)
def test_overrides_that_cannot_be_are_refused(
    llama: Path, overrides: dict[str, Any], told: str
) -> None:
    settings = ModelSettings(name=str(llama), config_overrides=overrides)
    for load in (lambda: load_model(settings, "cpu"), lambda: shape_of(settings)):
        message = refusal(load)
        assert message.startswith("model.config_overrides: ")
        assert message.count("model.config_overrides") == 1
        assert told in message


def test_right_overrides_are_not_named_in_the_error_of_damaged_weights(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    assert probe(loaded(folder, config_overrides={"rope_parameters": LONGROPE}).model).layers
    (folder / "model.safetensors").write_bytes(b"damaged")
    message = refusal(lambda: loaded(folder, config_overrides={"rope_parameters": LONGROPE}))
    assert message.startswith(f"model.name: {folder}: ")
