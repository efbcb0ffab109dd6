"""Hearing attention calls and probing: what is heard, and that nothing stays behind."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama import modeling_llama

from qk_sniffer.model.hearing import hearing_attention, hearing_rotary
from qk_sniffer.model.layout import RotaryPart, decoder_of
from qk_sniffer.model.probing import probe
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


def run(model: Any, length: int = 6) -> Any:
    with torch.inference_mode():
        return model(input_ids=torch.arange(3, 3 + length)[None], use_cache=False).logits


class Ear:
    """A listener to attention that remembers which modules it heard."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.shapes: list[tuple[torch.Size, torch.Size]] = []

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, options: Mapping[str, Any]
    ) -> None:
        self.modules.append(module)
        self.shapes.append((query.shape, key.shape))


def attention_modules(model: Any) -> list[nn.Module]:
    return [layer.self_attn for layer in model.model.layers]


def test_every_attention_call_is_heard_once_with_its_module() -> None:
    model, ear = llama(), Ear()
    plain = run(model)
    with hearing_attention(ear):
        assert torch.equal(run(model), plain)
    assert ear.modules == attention_modules(model)
    assert ear.shapes == [((1, 4, 6, 16), (1, 2, 6, 16))] * 4
    run(model)
    assert len(ear.modules) == 4  # no more after the block


def test_every_rotary_call_is_heard_with_what_went_in_and_what_came_out() -> None:
    model, heard = llama(), []
    with hearing_rotary(attention_modules(model), lambda *both: heard.append(both)):
        run(model)
    assert len(heard) == 4
    for before, after in heard:
        assert [tensor.shape for tensor in before] == [tensor.shape for tensor in after]
        for turned, straight in zip(after, before, strict=True):
            assert torch.allclose(turned.norm(dim=-1), straight.norm(dim=-1), rtol=1e-4)
            assert torch.equal(turned[:, :, 0], straight[:, :, 0])  # position 0 is not turned
            assert not torch.allclose(turned[:, :, 1:], straight[:, :, 1:])


def test_a_rotary_function_inside_another_counts_once() -> None:
    class Turning(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return apply_rotary(x)

    heard: list[Any] = []
    inside = globals()["apply_rotary_inside"]
    with hearing_rotary([Turning()], lambda *both: heard.append(both)):
        assert globals()["apply_rotary_inside"] is not inside
        assert Turning()(torch.ones(2)).tolist() == [4, 4]
    assert globals()["apply_rotary_inside"] is inside
    ((before, after),) = heard
    assert before[0].tolist() == [1, 1]
    assert after[0].tolist() == [4, 4]


def apply_rotary_inside(x: Tensor) -> Tensor:
    return 2 * x


def apply_rotary(x: Tensor) -> Tensor:
    return 2 * apply_rotary_inside(x)


@pytest.mark.parametrize("layer", [0, 2])
def test_originals_are_back_after_a_forward_that_failed(layer: int) -> None:
    model, ear = llama(), Ear()

    def fail(*_: object) -> None:
        raise ValueError("in the middle")

    hook = model.model.layers[layer].mlp.register_forward_pre_hook(fail)
    with (
        pytest.raises(ValueError, match="in the middle"),
        hearing_attention(ear),
        hearing_rotary(attention_modules(model), lambda *_: None),
    ):
        run(model)
    assert len(ear.modules) == layer + 1
    assert originals_are_back()
    hook.remove()
    run(model)


def test_an_attention_call_that_failed_is_not_hidden() -> None:
    model, ear = llama(), Ear()
    attention = model.model.layers[1].self_attn
    attention.v_proj = nn.Linear(64, 48)  # three value heads for two key heads
    with hearing_attention(ear):
        with pytest.raises(RuntimeError):
            run(model)
        attention.v_proj = nn.Linear(64, 32)
        run(model)
    assert ear.modules == attention_modules(model)[:2] + attention_modules(model)


@pytest.mark.parametrize("kind", ["attention", "rotary"])
def test_an_error_of_a_listener_ends_the_forward_and_leaves_nothing(kind: str) -> None:
    model = llama()
    before = run(model)

    def fail(*_: object) -> None:
        raise KeyError("mine")

    hearing = (
        hearing_attention(fail)
        if kind == "attention"
        else hearing_rotary(attention_modules(model), fail)
    )
    with pytest.raises(KeyError, match="mine"), hearing:
        run(model)
    assert originals_are_back()
    heard: list[Any] = []
    with hearing_rotary(attention_modules(model), lambda *both: heard.append(both)):
        assert torch.equal(run(model), before)
    assert len(heard) == 4


def test_an_error_of_the_rotary_function_does_not_deafen() -> None:
    model, heard = llama(), []
    hearing = hearing_rotary(attention_modules(model), lambda *both: heard.append(both))
    with hearing:
        with pytest.raises(AttributeError):
            modeling_llama.apply_rotary_pos_emb(None, None, None, None)
        run(model)
    assert len(heard) == 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first in, first out", "nested"])
def test_two_listeners_may_leave_in_any_order(order: tuple[int, int]) -> None:
    model, ears = llama(), (Ear(), Ear())
    rotary: tuple[list[Any], list[Any]] = ([], [])
    stacks = (ExitStack(), ExitStack())
    for stack, ear, heard in zip(stacks, ears, rotary, strict=True):
        stack.enter_context(hearing_attention(ear))
        note = lambda *both, heard=heard: heard.append(both)  # noqa: E731
        stack.enter_context(hearing_rotary(attention_modules(model), note))
    run(model)
    stacks[order[0]].close()
    assert not originals_are_back()
    run(model)
    stacks[order[1]].close()
    run(model)
    assert originals_are_back()
    assert len(ears[order[0]].modules) == len(rotary[order[0]]) == 4
    assert len(ears[order[1]].modules) == len(rotary[order[1]]) == 8


def test_the_same_listener_may_be_there_twice() -> None:
    model, ear = llama(), Ear()
    with hearing_attention(ear):
        with hearing_attention(ear):
            run(model)
        run(model)
    assert len(ear.modules) == 12


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
    with pytest.raises(RuntimeError):
        probe(model)
    assert all(module.training for module in model.modules())
    assert originals_are_back()


@pytest.mark.parametrize("heads", [5, 7])
@pytest.mark.parametrize("model_type", ["llama", "llama4_text"])
def test_a_number_of_heads_that_equals_the_probes_length_misleads_nobody(
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
        assert facts.q_rotary == RotaryPart(0, 0, heads_last, 0, 16)
        assert facts.k_rotary == RotaryPart(0, 1, heads_last, 0, 16)


def test_head_numbers_that_do_not_divide_are_refused() -> None:
    model = llama()

    class ThreeKeys(nn.Module):  # attention that takes three key heads of four
        layer_idx = 0

        def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
            batch, length = hidden_states.shape[:2]
            attend = AttentionInterface().get_interface("sdpa", None)
            q, k = torch.zeros(batch, 4, length, 8), torch.zeros(batch, 3, length, 8)
            with pytest.raises(RuntimeError):
                attend(self, q, k, k, None)
            return hidden_states, None

    model.model.layers[0].self_attn = ThreeKeys()
    with pytest.raises(ConfigError) as caught:
        probe(model)
    assert str(caught.value) == (
        "LlamaForCausalLM: layer 0 has 4 query and 3 key heads, which do not divide"
    )


def test_a_vision_language_model_is_heard_in_its_text_layers_alone() -> None:
    model = vision_language_model()
    layout = probe(model)
    assert decoder_of(model) is model.model.language_model
    assert layout.num_layers == 4
    assert [facts.window for facts in layout.layers] == [8, None, 8, None]
    owned = set(decoder_of(model).modules())
    assert all(facts.module in owned for facts in layout.layers)


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
