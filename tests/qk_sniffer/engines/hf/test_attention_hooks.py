"""Hooks on attention and rotary calls: they see every call, and originals are restored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama import modeling_llama

from qk_sniffer.engines.hf.layout import RotaryPart, decoder_of
from qk_sniffer.engines.hf.probing import probe
from qk_toolkit.errors import ConfigError
from tiny_models import (
    ARCHITECTURES,
    ENCODER_DECODERS,
    LOOKING_AHEAD,
    VOCABULARY,
    other_model,
)
from tiny_texts import vision_language_model

ORIGINALS = (AttentionInterface.get_interface, modeling_llama.apply_rotary_pos_emb)


@pytest.fixture(autouse=True)
def _originals_are_back() -> Iterator[None]:
    yield
    assert originals_are_back()


def originals_are_back() -> bool:
    return (AttentionInterface.get_interface, modeling_llama.apply_rotary_pos_emb) == ORIGINALS


def llama(**changes: Any) -> Any:
    architecture = ARCHITECTURES["llama"]
    return replace(architecture, config={**architecture.config, **changes}).model()


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
        ("falcon", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
        ("gptj", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    ],
)
def test_a_model_that_bypasses_the_registry_is_refused_by_name(
    model_type: str, config: dict[str, Any]
) -> None:
    config = AutoConfig.for_model(model_type, vocab_size=VOCABULARY, **config)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError) as caught:
        probe(model)
    assert str(caught.value).startswith(f"{type(model).__name__}: its attention does not go")
    assert model_type in str(caught.value)
    assert "\n" not in str(caught.value)


def test_probing_leaves_flags_and_random_numbers_alone() -> None:
    model = llama(attention_dropout=0.5).train()
    model.model.layers[1].eval()
    model.model.layers[2].mlp.eval()
    flags = [module.training for module in model.modules()]
    assert len(set(flags)) == 2
    states = torch.get_rng_state(), random.getstate()
    probe(model)
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(weight.grad is None for weight in model.parameters())


def test_flags_are_as_they_were_after_a_probe_that_failed() -> None:
    model = llama().train()
    model.model.layers[3].self_attn.o_proj = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="own forward failed"):
        probe(model)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("heads", [5, 7])
@pytest.mark.parametrize("model_type", ["llama", "llama4_text"])
def test_heads_are_found_when_their_number_equals_the_length_of_the_probe(
    model_type: str, heads: int
) -> None:
    architecture = ARCHITECTURES[model_type]
    config = {
        **architecture.config,
        "hidden_size": 16 * heads,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    layout = probe(replace(architecture, config=config).model())
    heads_last = model_type == "llama4_text"  # its rotary function takes (b, s, h, d)
    for facts in layout.layers[:3]:
        assert (facts.q_heads, facts.k_heads, facts.width) == (heads, heads, 16)
        place = layout.places[facts.layer]
        assert place.q_rotary == RotaryPart(0, 0, heads_last, 0, 16)
        assert place.k_rotary == RotaryPart(0, 1, heads_last, 0, 16)


def test_only_the_text_layers_of_a_vision_language_model_are_probed() -> None:
    model = vision_language_model()
    layout = probe(model)
    assert decoder_of(model) is model.model.language_model
    assert [facts.window for facts in layout.layers] == [8, None, 8, None]


def test_a_bare_decoder_and_its_model_have_the_same_layout() -> None:
    model = llama()
    assert probe(model) == probe(model.model)
    assert decoder_of(model) is model.model
    assert decoder_of(model.model) is model.model


def test_a_call_that_names_no_scale_has_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = modeling_llama.ALL_ATTENTION_FUNCTIONS

    class Silent:
        def get_interface(self, *names: Any) -> Any:
            def attention(*given: Any, scaling: float, **options: Any) -> Any:
                return registry.get_interface(*names)(*given, **options)

            return attention

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Silent())
    assert {facts.scale for facts in probe(llama()).layers} == {0.25}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", LOOKING_AHEAD)
def test_attention_that_is_not_causal_is_refused(model_type: str, implementation: str) -> None:
    model = other_model(model_type, LOOKING_AHEAD[model_type], implementation)
    refused = "attention (is not causal|does not go through)"  # modernbert's did not before
    with pytest.raises(ConfigError, match=refused):
        probe(model)


def test_an_encoder_used_as_a_decoder_is_causal() -> None:
    model = other_model("bert", {**LOOKING_AHEAD["bert"], "is_decoder": True})
    assert len(probe(model).layers) == 4


@pytest.mark.parametrize("model_type", ENCODER_DECODERS)
def test_encoder_decoders_are_refused(model_type: str) -> None:
    with pytest.raises(ConfigError, match="is an encoder-decoder"):
        probe(other_model(model_type, ENCODER_DECODERS[model_type], "eager"))
