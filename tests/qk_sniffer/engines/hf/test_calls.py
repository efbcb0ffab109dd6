"""Attention calls of real models, packed, against what a hook and the projections give."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from qk_sniffer.engines.engine import LayerCall
from qk_sniffer.engines.hf.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.engines.hf.calls import HfCalls
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.engines.hf.probing import probe
from tiny_models import ARCHITECTURES, LAYERS, VOCABULARY, needs

LENGTHS = (9, 24, 1, 17)


class Kept(dict[int, LayerCall]):
    """A receiver that keeps the calls of a forward by layer."""

    def on_call(self, call: LayerCall) -> None:
        assert call.layer not in self
        self[call.layer] = LayerCall(*(t.clone() if isinstance(t, Tensor) else t for t in call))


def some_model(model_type: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    architecture = ARCHITECTURES[model_type]
    return architecture.model(architecture.attention[0], dtype)


layout_of = cache(probe)


def text(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


def run(model: Any, texts: Sequence[Sequence[int]], **options: Any) -> Kept:
    layout, kept = layout_of(model), Kept()
    layers = options.pop("layers", [facts.layer for facts in layout.layers])
    HfCalls(layout, layers, kept, **options).run(decoder_of(model), texts)
    return kept


def hooked(model: Any, ids: Sequence[int]) -> dict[int, AttentionCall]:
    """The first attention call of every layer, for one text."""
    seen: dict[int, AttentionCall] = {}

    def remember(call: AttentionCall) -> None:
        seen.setdefault(call.module.layer_idx, call)

    with attention_hook(remember):
        run_backbone(decoder_of(model), torch.tensor([list(ids)]))
    return seen


@pytest.mark.parametrize("pre_rope", [False, True])
@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt2", "llama4_text"])
def test_a_text_gives_the_same_vectors_in_a_padded_batch_as_alone(
    model_type: str, pre_rope: bool
) -> None:
    model, start = some_model(model_type), 0
    together = run(model, [text(length) for length in LENGTHS], pre_rope=pre_rope)
    for length in LENGTHS:
        for layer, alone in run(model, [text(length)], pre_rope=pre_rope).items():
            for one, many in zip(alone[1:6], together[layer][1:6], strict=True):
                assert many.shape[0] == sum(LENGTHS)
                part = many[start : start + length]
                torch.testing.assert_close(part, one, rtol=1e-5, atol=1e-5)
        start += length


def projections(model: Any, ids: Sequence[int], *names: str) -> list[dict[str, Tensor]]:
    """What projections of every layer's attention gave for one text, (s, heads · d), by layer."""
    seen: list[dict[str, Tensor]] = [{} for _ in range(LAYERS)]
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


def assert_projections(model: Any, part: int) -> None:
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
def test_vectors_before_the_rotary_embedding_are_the_projections(dtype: torch.dtype) -> None:
    assert_projections(some_model("stablelm", dtype), 8)


def test_vectors_before_the_rotary_part_of_latent_attention() -> None:
    model = some_model("deepseek_v3")
    calls = run(model, [text(24)], pre_rope=True)
    names = ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    for layer, seen in enumerate(projections(model, text(24), *names)):
        queries = seen["q_b_proj"].unflatten(-1, (4, -1))  # (s, heads, 16 + 8 to be turned)
        content = seen["kv_b_proj"].reshape(24, 4, -1)[..., :16]  # keys, then values
        shared = seen["kv_a_proj_with_mqa"][:, None, -8:].expand(-1, 4, -1)  # one for all heads
        assert torch.equal(calls[layer].stored_query, queries)
        assert torch.equal(calls[layer].stored_key, torch.cat([content, shared], dim=-1))


def test_the_first_of_two_calls_of_a_layer_counts() -> None:
    config = AutoConfig.for_model("diffllama", **ARCHITECTURES["llama"].config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    needs(model._supports_attention_backend, "let diffllama's attention go through the registry")
    assert [place.call for place in layout_of(model).places.values()] == [0] * LAYERS
    seen = hooked(model, text(24))
    for layer, call in run(model, [text(24)]).items():
        assert torch.equal(call.query, seen[layer].query[0].transpose(0, 1))
    assert_projections(model, 16)


def test_turned_vectors_are_never_taken_for_straight_ones() -> None:
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
def test_calls_on_a_gpu(model_type: str, pre_rope: bool) -> None:
    model = ARCHITECTURES[model_type].model("sdpa")
    texts = [text(length) for length in LENGTHS]
    expected = run(model, texts, pre_rope=pre_rope)
    for layer, call in run(model.cuda(), texts, pre_rope=pre_rope).items():
        for mine, theirs in zip(call[1:6], expected[layer][1:6], strict=True):
            assert mine.is_cuda
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-3)
