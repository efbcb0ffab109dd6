"""What is decided by behaviour: position inside attention, masks, and the place of a layer."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers.models.llama import modeling_llama

import qk_sniffer
from qk_sniffer.engines.hf.layer_numbers import CallSite, LayerRun, number_layers
from qk_sniffer.engines.hf.logits import allowed
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.engines.hf.reach import FULL, Limits, Reach, reach_of
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES


def with_renamed_rotary_function():
    """A llama whose rotary function has a name that nobody listens for, as remote code may."""
    source = inspect.getsource(modeling_llama.LlamaAttention)
    scope = {**vars(modeling_llama), "turn": modeling_llama.apply_rotary_pos_emb}
    exec(source.replace("apply_rotary_pos_emb", "turn").replace("@use_kernelized", "#"), scope)
    model = ARCHITECTURES["llama"].model()
    for layer in model.model.layers:
        layer.self_attn.__class__ = scope["LlamaAttention"]
    return model


def test_a_rotary_function_that_is_not_heard_is_noticed():
    model = with_renamed_rotary_function()
    layers = probe(model).layers
    assert [facts.rope for facts in layers] == [True] * 4
    assert not any(facts.pre_rope_known for facts in layers)
    with pytest.raises(ConfigError, match=r"capture\.capture_pre_rope.*layers 0-3"):
        qk_sniffer.tap(model, sampler="all", pre_rope=True)
    ids = torch.arange(3, 27)[None]
    plain = ARCHITECTURES["llama"].model()
    with (
        torch.inference_mode(),
        qk_sniffer.tap(model, sampler="all") as odd,
        qk_sniffer.tap(plain, sampler="all") as usual,
    ):
        model(input_ids=ids)
        plain(input_ids=ids)
    assert (odd.queries(2, 1).vectors == usual.queries(2, 1).vectors).all()  # after RoPE


@pytest.mark.parametrize("length", [12, 13])
def test_patterns_of_masks(length):
    limits = Limits({4096: 3, 8192: 6})
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    causal = key <= query

    def reach(seen):
        return reach_of(seen.expand(2, -1, -1), limits)

    def sliding(window):
        return causal & (query - key < window)

    assert reach(causal) == FULL
    assert reach(torch.ones(length, length, dtype=torch.bool)) is None
    assert reach(sliding(3)) == Reach("sliding_attention", 4096)
    assert reach(sliding(7)) == Reach("sliding_attention", 8193)  # the query itself is not counted
    assert reach(causal & (query // 6 == key // 6)) == Reach("chunked_attention", 8192)
    holes = causal.clone()
    holes[-1, 2] = False
    assert reach(holes) == Reach("full_attention", None, selective=True)
    heads = torch.stack([sliding(3), sliding(6)])
    assert reach_of(heads, limits) == Reach("full_attention", None, selective=True)


def calls(*runs, modules=1):
    shared = [nn.Identity() for _ in range(modules)]
    return [CallSite(shared[at % modules], at // modules, run) for at, run in enumerate(runs)]


@pytest.mark.parametrize("runs", [(0, 0), (None, 1)], ids=["two in a layer", "outside"])
def test_a_call_that_has_no_layer_is_refused_by_name(runs):
    layers = [LayerRun(0, 0), LayerRun(0, 1)]
    with pytest.raises(ConfigError, match="Odd: the attention module Identity has no layer number"):
        number_layers("Odd", layers, calls(*runs, modules=2))
    numbered = calls(*runs, modules=2)
    for number, call in enumerate(numbered):
        call.module.layer_idx = number + 5
    assert number_layers("Odd", layers, numbered) == ([5, 6], 7)


def test_a_bug_in_a_hook_is_not_a_failure_of_the_model(monkeypatch):
    monkeypatch.setattr("qk_sniffer.engines.hf.probe_forward.logits_of", allowed)  # fewer arguments
    with pytest.raises(TypeError, match="allowed"):
        probe(ARCHITECTURES["llama"].model())


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_model_whose_heads_are_spread_over_processes_is_refused():
    declared = ARCHITECTURES["llama"].model()
    declared._tp_size = 2
    spread = ARCHITECTURES["llama"].model()
    projection = spread.model.layers[0].self_attn.q_proj
    mesh = init_device_mesh("cpu", (1,))
    projection.weight = nn.Parameter(distribute_tensor(projection.weight, mesh, [Shard(0)]))
    for model in (declared, spread):
        with pytest.raises(ConfigError, match="tensor parallel: this process has only some"):
            qk_sniffer.tap(model, sampler="all")
