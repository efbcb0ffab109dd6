"""Every architecture, with real forwards: what the tap sees is what attention uses."""

import json
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers.modeling_utils import AttentionInterface

import qk_sniffer
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.source import open_dump
from qk_sniffer.engines.hf.layout import decoder_of
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.verify.comparison import verify_model
from rotary_records import assert_records
from tiny_models import ARCHITECTURES, PLAIN_PROJECTIONS, RARE, VOCABULARY, needs_rare

LENGTH = 24
OTHERS_AFTER_ROPE = ("ministral3", "llama4_text")  # a scale or a norm


def tokens():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)


def run(model, **options):
    with torch.inference_mode():
        return model(input_ids=tokens(), use_cache=False, **options)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_a_tap_is_faithful(architecture):
    model = architecture.model("eager")
    before, _ = tapped(model, pre_rope=True)
    after, weights = tapped(model, pre_rope=False)
    assert_layout(before, architecture)
    assert_layout(after, architecture)
    assert_records(architecture.model_type, model, after.layout)
    for facts in after.layout.layers:
        assert_rotation(before, after, facts, architecture.model_type)
    if architecture.model_type in PLAIN_PROJECTIONS:
        assert_recomputed(model, before, after)
    weights = [layer for layer in weights if layer is not None and layer.shape[-1] == LENGTH]
    assert len(weights) == len(architecture.layers)
    for facts, told in zip(after.layout.layers, weights, strict=True):
        assert_weights(after, facts, told)
    verified = verify_model(architecture.model(architecture.attention[0]), tokens()[0].tolist())
    assert tuple(layer.facts.layer for layer in verified.layers) == architecture.layers
    assert not verified.failed
    assert verified.worst.difference < 1e-6
    assert all(layer.attention is not None and layer.attention < 1e-5 for layer in verified.layers)


def tapped(model, *, pre_rope):
    """A tap, and the attention weights of the model; outputs are equal to the last bit."""
    plain = run(model, output_attentions=True).logits  # transformers adds hooks of its own
    functions, hooks = rotary_functions(model), hooks_of(model)
    original = AttentionInterface.get_interface
    with qk_sniffer.tap(model, sampler="all", pre_rope=pre_rope) as tap:
        heard = run(model, output_attentions=True)
        assert AttentionInterface.get_interface is not original
    for logits in (heard.logits, run(model).logits):
        assert torch.equal(plain, logits)
    assert AttentionInterface.get_interface is original
    assert rotary_functions(model) == functions
    assert hooks_of(model) == hooks
    assert tap.lengths == [LENGTH, LENGTH]
    return tap, heard.attentions


def hooks_of(model):
    return [[*m._forward_pre_hooks, *m._forward_hooks] for m in model.modules()]


def rotary_functions(model):
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    return {
        (file.__name__, name): value
        for file in files
        for name, value in vars(file).items()
        if "rotary" in name or "rope" in name
    }


def assert_layout(tap, architecture):
    layout, found = tap.layout, tap.layout.layers
    assert tuple(facts.layer for facts in found) == architecture.layers
    assert {facts.q_heads for facts in found} == {architecture.q_heads}
    assert {facts.k_heads for facts in found} == {architecture.k_heads}
    assert {facts.width for facts in found} == {architecture.width}
    assert tuple(facts.window for facts in found) == architecture.windows
    assert tuple(facts.rope for facts in found) == architecture.rope
    assert {place.call for place in layout.places.values()} == {0}
    assert layout.num_layers == 4
    others = [layer for layer in range(4) if layer not in architecture.layers]
    assert layout.layers_without_attention == others
    assert all(facts.pre_rope_known for facts in found)


def assert_rotation(before, after, facts, model_type):
    """A rotation is between the vectors before and after RoPE, with the factor of YaRN."""
    pre = before.queries(facts.layer, 1).vectors
    post = after.queries(facts.layer, 1).vectors
    if not facts.rope:
        np.testing.assert_array_equal(pre, post)
        return
    assert not np.allclose(pre, post)
    if model_type in OTHERS_AFTER_ROPE:
        return
    ratio = np.linalg.norm(post, axis=1) / np.linalg.norm(pre, axis=1)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    np.testing.assert_allclose(  # position 0 is not turned; deepseek reorders dimensions
        np.sort(post[0]), np.sort(pre[0] * ratio[0]), rtol=1e-4, atol=1e-5
    )


def assert_recomputed(model, before, after):
    """Vectors of the first text are the projections of its layers, with and without rotation."""
    given = {}

    def remember(module, arguments, options):
        hidden = options.get("hidden_states", arguments[0] if arguments else None)
        given[module.layer_idx] = (hidden, options.get("position_embeddings"))

    modules = [layer.self_attn for layer in decoder_of(model).layers]
    hooks = [one.register_forward_pre_hook(remember, with_kwargs=True) for one in modules]
    run(model)
    for hook in hooks:
        hook.remove()
    for attention in modules:
        layer = attention.layer_idx
        hidden, angles = given[layer]
        with torch.inference_mode():
            q, k = projected(attention, hidden)
            turn = sys.modules[type(attention).__module__].apply_rotary_pos_emb
            turned = turn(q, k, *angles) if getattr(attention, "use_rope", True) else (q, k)
        for tap, (query, key) in ((before, (q, k)), (after, turned)):
            for head in range(4):
                got = tap.queries(layer, head).vectors[:LENGTH]
                np.testing.assert_array_equal(got, query[0, head].numpy())
                got = tap.keys(layer, head // 2).vectors[:LENGTH]
                np.testing.assert_array_equal(got, key[0, head // 2].numpy())


def projected(attention, hidden):
    """Queries and keys (2, heads, s, d) of a layer before the rotary embedding."""
    tensors = []
    for name in ("q", "k"):
        tensor = getattr(attention, f"{name}_proj")(hidden)
        norm = getattr(attention, f"{name}_norm", None)
        over_heads = norm is not None and norm.weight.shape[0] != attention.head_dim
        if over_heads:  # olmo2 normalises all heads together
            tensor = norm(tensor)
        tensor = tensor.view(2, LENGTH, -1, attention.head_dim)
        if norm is not None and not over_heads:
            tensor = norm(tensor)
        tensors.append(tensor.transpose(1, 2))
    return tensors[0], tensors[1]


def assert_weights(tap, facts, told):
    """Softmax of captured q·k of the first text is the model's own weights (2, heads, s, s)."""
    seen = visible(facts)
    for head in range(facts.q_heads):
        q = tap.queries(facts.layer, head).vectors[:LENGTH].astype(np.float64)
        k = tap.keys(facts.layer, head // facts.group).vectors[:LENGTH].astype(np.float64)
        scores = q @ k.T * facts.scale
        if facts.softcap:
            scores = facts.softcap * np.tanh(scores / facts.softcap)
        scores = np.where(seen, scores, -np.inf)
        ours = np.exp(scores - scores.max(axis=1, keepdims=True))
        ours /= ours.sum(axis=1, keepdims=True)
        theirs = told[0, head].double().numpy()
        theirs = theirs / theirs.sum(axis=1, keepdims=True)  # a sink takes its share first
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
        assert ours[seen].std() > 1e-3  # a flat pattern would prove nothing


def visible(facts):
    """Which key (column) a query (row) sees, by the flags of the layer."""
    query, key = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    seen = key <= query
    if facts.type == "sliding_attention":
        seen &= query - key < facts.window
    elif facts.type == "chunked_attention":
        seen &= query // facts.window == key // facts.window
    return np.broadcast_to(seen, (LENGTH, LENGTH))


@pytest.mark.long
def test_the_docs_hold_the_table_that_the_tests_make():
    from tools.architecture_table import DOCS, written

    assert DOCS.read_text() == written(DOCS.read_text()), "run: make architectures"


EVERY = [pytest.param(architecture, id=name) for name, architecture in RARE.items()]


def one_text(length=40):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (1, length), generator=generator)


def model_of(architecture, implementation):
    needs_rare(architecture.model_type)
    model = architecture.model(implementation)
    for weight in model.parameters():
        if not torch.isfinite(weight).all():  # some are left uninitialised
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("architecture", EVERY)
def test_layout_and_weights(architecture):
    model = model_of(architecture, "eager")
    layout = probe(model)
    found = layout.layers
    assert tuple(facts.layer for facts in found) == architecture.layers
    assert layout.num_layers == architecture.num_layers
    assert layout.compressed_layers == architecture.compressed
    assert not {*architecture.compressed} & {*layout.layers_without_attention}
    assert {facts.q_heads for facts in found} == {architecture.q_heads}
    assert {facts.k_heads for facts in found} == {architecture.k_heads}
    assert {facts.width for facts in found} == {architecture.width}
    assert tuple(facts.window for facts in found) == architecture.windows
    assert tuple(facts.selective for facts in found) == architecture.selective
    assert tuple(facts.rope for facts in found) == architecture.rope
    assert_records(architecture.model_type, model, layout)
    other = model_of(architecture, architecture.attention[0])
    verified = verify_model(other, one_text()[0].tolist())
    assert tuple(layer.facts.layer for layer in verified.layers) == architecture.layers
    assert not verified.failed
    assert verified.worst.difference < 1e-6


@pytest.mark.parametrize("model_type", ["zamba2", "hrm_text"])
def test_uses_of_one_module_are_separate_layers(model_type, tmp_path):
    model = model_of(RARE[model_type], "sdpa")
    with torch.inference_mode():
        plain = model(input_ids=one_text(), use_cache=False).logits
        with qk_sniffer.tap(model, sampler="all") as tapped:
            assert torch.equal(model(input_ids=one_text(), use_cache=False).logits, plain)
    layers = RARE[model_type].layers
    modules = {place.module for place in tapped.layout.places.values()}
    assert len(modules) == {"zamba2": 2, "hrm_text": 4}[model_type]  # of 2 and of 6 layers
    queries = [tapped.queries(layer, 1).vectors for layer in layers]
    for earlier, later in pairwise(queries):
        assert not np.allclose(earlier, later, atol=1e-3)
    tapped.save(tmp_path)
    assert {layer for layer, _ in open_dump(tmp_path).query_heads} == {*layers}


def test_what_a_dump_tells_of_its_layers(tmp_path):
    told = {}
    for name in ("deepseek_v4", "minimax_m3_vl_text"):
        model = model_of(RARE[name], "eager")
        with qk_sniffer.tap(model, sampler="all") as tapped, torch.inference_mode():
            model(input_ids=one_text(), use_cache=False)
        told[name] = json.loads((tapped.save(tmp_path / name) / MANIFEST_NAME).read_text())
    compressed = ["compressed_attention"] * 2
    kinds = ["sliding_attention", *compressed, "sliding_attention"]
    assert told["deepseek_v4"]["layer_types"] == kinds
    layers = told["minimax_m3_vl_text"]["layers"]
    assert [layer.get("selective", False) for layer in layers] == [False, True] * 2
