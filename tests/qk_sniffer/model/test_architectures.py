"""Every architecture of the list, with real forwards: what the tap sees is what attention uses."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_utils import AttentionInterface

import qk_sniffer
from qk_sniffer.model.layout import LayerFacts, decoder_of
from qk_sniffer.model.probing import probe
from tiny_models import ARCHITECTURES, PLAIN_PROJECTIONS, VOCABULARY, Architecture

LENGTH = 24
EVERY = [
    pytest.param(architecture, implementation, id=f"{name}-{implementation}")
    for name, architecture in ARCHITECTURES.items()
    for implementation in architecture.attention
]
ALL_EAGER = [pytest.param(architecture, id=name) for name, architecture in ARCHITECTURES.items()]


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def run(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False, **options)


def rotary_functions(model: Any) -> dict[tuple[str, str], object]:
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    return {
        (file.__name__, name): value
        for file in files
        for name, value in vars(file).items()
        if "rotary" in name or "rope" in name
    }


@pytest.mark.parametrize(("architecture", "implementation"), EVERY)
def test_outputs_are_bit_identical_and_nothing_stays_behind(
    architecture: Architecture, implementation: str
) -> None:
    model = architecture.model(implementation)
    before = AttentionInterface.get_interface
    functions = rotary_functions(model)
    plain = run(model, tokens()).logits
    for pre_rope in (False, True):
        with qk_sniffer.tap(model, pre_rope=pre_rope) as tapped:
            heard = run(model, tokens()).logits
            assert AttentionInterface.get_interface is not before
        assert torch.equal(plain, heard), f"pre_rope={pre_rope}"
        assert torch.equal(plain, run(model, tokens()).logits), f"pre_rope={pre_rope}"
        assert AttentionInterface.get_interface is before
        assert rotary_functions(model) == functions, f"pre_rope={pre_rope}"
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
        assert tapped.lengths == [LENGTH, LENGTH]


@pytest.mark.parametrize("architecture", ALL_EAGER)
def test_layout(architecture: Architecture) -> None:
    layout = probe(architecture.model(architecture.attention[0]))
    found = layout.layers
    assert tuple(facts.layer for facts in found) == architecture.layers
    assert {facts.q_heads for facts in found} == {architecture.q_heads}
    assert {facts.k_heads for facts in found} == {architecture.k_heads}
    assert {facts.width for facts in found} == {architecture.width}
    assert tuple(facts.window for facts in found) == architecture.windows
    assert tuple(facts.rope for facts in found) == architecture.rope
    assert {facts.call for facts in found} == {0}
    assert layout.num_layers == 4
    others = [layer for layer in range(4) if layer not in architecture.layers]
    assert layout.layers_without_attention == others
    assert all(facts.pre_rope_known for facts in found)


def visible(facts: LayerFacts) -> np.ndarray[Any, Any]:
    """Which key (column) a query (row) sees, by the flags of the layer."""
    query, key = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    seen = key <= query
    if facts.type == "sliding_attention":
        seen &= query - key < facts.window
    elif facts.type == "chunked_attention":
        seen &= query // facts.window == key // facts.window
    return np.broadcast_to(seen, (LENGTH, LENGTH))


@pytest.mark.parametrize("architecture", ALL_EAGER)
def test_captured_pairs_reproduce_the_attention_weights(architecture: Architecture) -> None:
    model = architecture.model("eager")
    with qk_sniffer.tap(model) as tapped:
        weights = run(model, tokens(batch=1), output_attentions=True).attentions
    weights = [layer for layer in weights if layer is not None and layer.shape[-1] == LENGTH]
    assert len(weights) == len(architecture.layers)
    for facts, told in zip(tapped.layout.layers, weights, strict=True):
        for head in range(facts.q_heads):
            q = tapped.queries(facts.layer, head).vectors.astype(np.float64)
            k = tapped.keys(facts.layer, head // facts.group).vectors.astype(np.float64)
            scores = q @ k.T * facts.scale
            if facts.softcap:
                scores = facts.softcap * np.tanh(scores / facts.softcap)
            scores = np.where(visible(facts), scores, -np.inf)
            ours = np.exp(scores - scores.max(axis=1, keepdims=True))
            ours /= ours.sum(axis=1, keepdims=True)
            theirs = told[0, head].double().numpy()
            theirs = theirs / theirs.sum(axis=1, keepdims=True)  # a sink takes its share first
            np.testing.assert_allclose(ours, theirs, atol=2e-5)
            assert ours[visible(facts)].std() > 1e-3  # a flat pattern would prove nothing


@pytest.mark.parametrize("architecture", ALL_EAGER)
def test_rotation_is_what_lies_between_pre_and_post(architecture: Architecture) -> None:
    model = architecture.model(architecture.attention[0])
    captured = []
    for pre_rope in (True, False):
        with qk_sniffer.tap(model, pre_rope=pre_rope) as tapped:
            run(model, tokens(batch=1))
        captured.append(tapped)
    before, after = captured
    for facts in before.layout.layers:
        pre = before.queries(facts.layer, 1).vectors
        post = after.queries(facts.layer, 1).vectors
        if not facts.rope:
            np.testing.assert_array_equal(pre, post)
            continue
        assert not np.allclose(pre, post)
        ratio = np.linalg.norm(post, axis=1) / np.linalg.norm(pre, axis=1)
        if architecture.model_type in ("ministral3", "llama4_text"):  # scale or norm afterwards
            continue
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)  # a rotation, times YaRN's factor
        np.testing.assert_allclose(  # position 0 is not turned; deepseek reorders dimensions
            np.sort(post[0]), np.sort(pre[0] * ratio[0]), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("model_type", PLAIN_PROJECTIONS)
def test_vectors_equal_a_recomputation_from_the_layer(model_type: str) -> None:
    model = ARCHITECTURES[model_type].model(ARCHITECTURES[model_type].attention[0])
    given: dict[int, tuple[torch.Tensor, Any]] = {}

    def remember(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        hidden = options.get("hidden_states", arguments[0] if arguments else None)
        given[module.layer_idx] = (hidden, options.get("position_embeddings"))

    layers = decoder_of(model).layers
    hooks = [
        layer.self_attn.register_forward_pre_hook(remember, with_kwargs=True) for layer in layers
    ]
    taps = {}
    for pre_rope in (False, True):
        with qk_sniffer.tap(model, pre_rope=pre_rope) as taps[pre_rope]:
            run(model, tokens(batch=1))
    for hook in hooks:
        hook.remove()
    for layer in layers:
        attention = layer.self_attn
        hidden, angles = given[attention.layer_idx]
        with torch.inference_mode():
            q, k = projected(attention, hidden)
            turn = sys.modules[type(attention).__module__].apply_rotary_pos_emb
            turned = turn(q, k, *angles) if getattr(attention, "use_rope", True) else (q, k)
        for head in range(4):
            for tapped, (query, key) in ((taps[True], (q, k)), (taps[False], turned)):
                got = tapped.queries(attention.layer_idx, head).vectors
                np.testing.assert_array_equal(got, query[0, head].numpy())
                got = tapped.keys(attention.layer_idx, head // 2).vectors
                np.testing.assert_array_equal(got, key[0, head // 2].numpy())


def projected(attention: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys (1, heads, s, d) of a layer before the rotary embedding."""
    tensors = []
    for name in ("q", "k"):
        tensor = getattr(attention, f"{name}_proj")(hidden)
        norm = getattr(attention, f"{name}_norm", None)
        over_heads = norm is not None and norm.weight.shape[0] != attention.head_dim
        if over_heads:  # olmo2 normalises all heads together
            tensor = norm(tensor)
        tensor = tensor.view(1, LENGTH, -1, attention.head_dim)
        if norm is not None and not over_heads:
            tensor = norm(tensor)
        tensors.append(tensor.transpose(1, 2))
    return tensors[0], tensors[1]
