"""Attention calls of real models: hooks see all of them, and their vectors are the projections."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama import modeling_llama

from qk_sniffer.engines.engine import LayerCall, Logits
from qk_sniffer.engines.hf.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.engines.hf.calls import HfCalls
from qk_sniffer.engines.hf.layout import RotaryPart, decoder_of, run_backbone
from qk_sniffer.engines.hf.logits import logits_of
from qk_sniffer.engines.hf.probing import probe
from qk_toolkit.errors import ConfigError
from tiny_models import (
    ARCHITECTURES,
    ENCODER_DECODERS,
    LAYERS,
    LOOKING_AHEAD,
    VOCABULARY,
    needs,
    other_model,
)

ORIGINALS = (AttentionInterface.get_interface, modeling_llama.apply_rotary_pos_emb)


@pytest.fixture(autouse=True)
def _originals_are_back():
    yield
    assert originals_are_back()


def originals_are_back():
    return (AttentionInterface.get_interface, modeling_llama.apply_rotary_pos_emb) == ORIGINALS


def llama(**changes):
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
def test_a_model_that_bypasses_the_registry_is_refused_by_name(model_type, config):
    config = AutoConfig.for_model(model_type, vocab_size=VOCABULARY, **config)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError) as caught:
        probe(model)
    assert str(caught.value).startswith(f"{type(model).__name__}: its attention does not go")
    assert model_type in str(caught.value)
    assert "\n" not in str(caught.value)


def test_probing_leaves_flags_and_random_numbers_alone():
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


def test_flags_are_as_they_were_after_a_probe_that_failed():
    model = llama().train()
    model.model.layers[3].self_attn.o_proj = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="own forward failed"):
        probe(model)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("heads", [5, 7])
@pytest.mark.parametrize("model_type", ["llama", "llama4_text"])
def test_heads_are_found_when_their_number_equals_the_length_of_the_probe(model_type, heads):
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


def test_a_call_that_names_no_scale_has_the_usual_one(monkeypatch):
    registry = modeling_llama.ALL_ATTENTION_FUNCTIONS

    class Silent:
        def get_interface(self, *names):
            def attention(*given, scaling, **options):
                return registry.get_interface(*names)(*given, **options)

            return attention

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Silent())
    assert {facts.scale for facts in probe(llama()).layers} == {0.25}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", LOOKING_AHEAD)
def test_attention_that_is_not_causal_is_refused(model_type, implementation):
    model = other_model(model_type, LOOKING_AHEAD[model_type], implementation)
    refused = "attention (is not causal|does not go through)"  # modernbert's did not before
    with pytest.raises(ConfigError, match=refused):
        probe(model)


def test_an_encoder_used_as_a_decoder_is_causal():
    model = other_model("bert", {**LOOKING_AHEAD["bert"], "is_decoder": True})
    assert len(probe(model).layers) == 4


@pytest.mark.parametrize("model_type", ENCODER_DECODERS)
def test_encoder_decoders_are_refused(model_type):
    with pytest.raises(ConfigError, match="is an encoder-decoder"):
        probe(other_model(model_type, ENCODER_DECODERS[model_type], "eager"))


SINKS = torch.tensor([0.5, -1.0, 3.0, 2.0])
BIAS = torch.randn(1, 4, 13, 13, generator=torch.Generator().manual_seed(3))
Change = Callable[[Tensor], Tensor]


def function(change, *, sinks=False, scale=0.25):
    """Eager attention with changed logits."""

    def attention(module, query, key, value, mask, **options):
        logits = change(query @ key.repeat_interleave(2, 1).transpose(2, 3) * scale) + mask
        if sinks:
            extra = SINKS.to(logits)[None, :, None, None].expand(*logits.shape[:3], 1)
            logits = torch.cat([logits, extra], dim=-1)
        weights = logits.softmax(-1)[..., : key.shape[2]]
        return (weights @ value.repeat_interleave(2, 1)).transpose(1, 2), weights

    return attention


def capped(logits):
    return 30 * torch.tanh(logits / 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("attention", "options", "expected"),
    [
        (function(lambda x: x), {}, Logits()),
        (function(capped), {"softcap": 30.0}, Logits(softcap=30.0)),
        (function(lambda x: x), {"softcap": 30.0}, Logits()),  # the function ignores it
        (function(capped), {}, None),  # the call does not show it
        (function(lambda x: x, sinks=True), {"s_aux": SINKS}, Logits(sinks=True)),
        (function(lambda x: x), {"s_aux": SINKS}, Logits()),
        (function(lambda x: x, sinks=True), {}, None),
        (function(lambda x: x + BIAS), {"position_bias": BIAS}, Logits(biased=True)),
        (function(lambda x: x + BIAS), {}, None),
        (function(lambda x: x, scale=0.24), {}, None),
    ],
)
def test_what_a_function_does(attention, options, expected, dtype):
    query, key = torch.zeros(1, 4, 13, 16, dtype=dtype), torch.zeros(1, 2, 13, 16, dtype=dtype)
    visible = torch.ones(13, 13, dtype=torch.bool).tril().expand(4, -1, -1)
    mask = torch.full((1, 1, 13, 13), torch.finfo(dtype).min, dtype=dtype).triu(1)
    call = AttentionCall(nn.Identity(), query, key, key, (mask,), options, attention)
    assert logits_of(call, visible, 0.25, options.get("softcap")) == expected


LENGTHS = (9, 24, 1, 17)


class Kept(dict[int, LayerCall]):
    """A receiver that keeps the calls of a forward by layer."""

    def on_call(self, call):
        assert call.layer not in self
        self[call.layer] = LayerCall(*(t.clone() if isinstance(t, Tensor) else t for t in call))


def some_model(model_type="llama", dtype=torch.float32):
    architecture = ARCHITECTURES[model_type]
    return architecture.model(architecture.attention[0], dtype)


layout_of = cache(probe)


def text(length):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


def run(model, texts, **options):
    layout, kept = layout_of(model), Kept()
    layers = options.pop("layers", [facts.layer for facts in layout.layers])
    HfCalls(layout, layers, kept, **options).run(decoder_of(model), texts)
    return kept


def hooked(model, ids):
    """The first attention call of every layer, for one text."""
    seen = {}

    def remember(call):
        seen.setdefault(call.module.layer_idx, call)

    with attention_hook(remember):
        run_backbone(decoder_of(model), torch.tensor([list(ids)]))
    return seen


@pytest.mark.parametrize("pre_rope", [False, True])
@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt2", "llama4_text"])
def test_a_text_gives_the_same_vectors_in_a_padded_batch_as_alone(model_type, pre_rope):
    model, start = some_model(model_type), 0
    together = run(model, [text(length) for length in LENGTHS], pre_rope=pre_rope)
    for length in LENGTHS:
        for layer, alone in run(model, [text(length)], pre_rope=pre_rope).items():
            for one, many in zip(alone[1:6], together[layer][1:6], strict=True):
                assert many.shape[0] == sum(LENGTHS)
                part = many[start : start + length]
                torch.testing.assert_close(part, one, rtol=1e-5, atol=1e-5)
        start += length


def projections(model, ids, *names):
    """What projections of every layer's attention gave for one text, (s, heads · d), by layer."""
    seen = [{} for _ in range(LAYERS)]
    hooks = [
        getattr(layer.self_attn, name).register_forward_hook(
            lambda _, __, output, name=name, place=place: place.update({name: output[0].clone()})
        )
        for layer, place in zip(decoder_of(model).layers, seen, strict=True)
        for name in names
    ]
    run_backbone(decoder_of(model), torch.tensor([list(ids)]))
    for hook in hooks:
        hook.remove()
    return seen


def assert_projections(model, part):
    """Vectors before RoPE are the projections; RoPE turns the first dimensions only."""
    calls = run(model, [text(24)], pre_rope=True)
    for layer, seen in enumerate(projections(model, text(24), "q_proj", "k_proj")):
        call = calls[layer]
        assert torch.equal(call.stored_query, seen["q_proj"].unflatten(-1, (4, -1)))
        assert torch.equal(call.stored_key, seen["k_proj"].unflatten(-1, (2, -1)))
        for straight, turned in ((call.stored_query, call.query), (call.stored_key, call.key)):
            assert not torch.allclose(straight[..., :part], turned[..., :part])
            assert torch.equal(straight[..., part:], turned[..., part:])


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_vectors_before_the_rotary_embedding_are_the_projections(dtype):
    assert_projections(some_model("stablelm", dtype), 8)


def test_vectors_before_the_rotary_part_of_latent_attention():
    model = some_model("deepseek_v3")
    calls = run(model, [text(24)], pre_rope=True)
    names = ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    for layer, seen in enumerate(projections(model, text(24), *names)):
        queries = seen["q_b_proj"].unflatten(-1, (4, -1))  # (s, heads, 16 + 8 to be turned)
        content = seen["kv_b_proj"].reshape(24, 4, -1)[..., :16]  # keys, then values
        shared = seen["kv_a_proj_with_mqa"][:, None, -8:].expand(-1, 4, -1)  # one for all heads
        assert torch.equal(calls[layer].stored_query, queries)
        assert torch.equal(calls[layer].stored_key, torch.cat([content, shared], dim=-1))


def test_the_first_of_two_calls_of_a_layer_counts():
    config = AutoConfig.for_model("diffllama", **ARCHITECTURES["llama"].config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    needs(model._supports_attention_backend, "let diffllama's attention go through the registry")
    assert [place.call for place in layout_of(model).places.values()] == [0] * LAYERS
    seen = hooked(model, text(24))
    for layer, call in run(model, [text(24)]).items():
        assert torch.equal(call.query, seen[layer].query[0].transpose(0, 1))
    assert_projections(model, 16)


def test_turned_vectors_are_never_taken_for_straight_ones():
    model, kept = some_model("stablelm"), Kept()
    layout = layout_of(model)
    file = sys.modules[type(layout.places[0].module).__module__]
    original = file.apply_rotary_pos_emb
    with (
        HfCalls(layout, range(LAYERS), kept, pre_rope=True) as calls,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(file, "apply_rotary_pos_emb", original)  # not heard
        calls.expect([24])
        run_backbone(decoder_of(model), torch.tensor([text(24)]))
    assert not kept


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("pre_rope", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "stablelm", "deepseek_v3"])
def test_calls_on_a_gpu(model_type, pre_rope):
    model = ARCHITECTURES[model_type].model("sdpa")
    texts = [text(length) for length in LENGTHS]
    expected = run(model, texts, pre_rope=pre_rope)
    for layer, call in run(model.cuda(), texts, pre_rope=pre_rope).items():
        for mine, theirs in zip(call[1:6], expected[layer][1:6], strict=True):
            assert mine.is_cuda
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-3)
