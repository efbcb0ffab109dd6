"""Tiny random models of every architecture the tap is held to, made from configs on the spot."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    MllamaForCausalLM,
)

from qk_sniffer.engines.hf.probing import probe

VOCABULARY = 128
LAYERS = 4
_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HALF_SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
_MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


@dataclass(frozen=True)
class Architecture:
    """A tiny config and what a capture must find in it."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    q_heads: int = 4
    k_heads: int = 2
    width: int = 16
    windows: tuple[int | None, ...] = (None,) * LAYERS  # by captured layer
    rope: tuple[bool, ...] = (True,) * LAYERS
    layers: tuple[int, ...] = tuple(range(LAYERS))
    attention: tuple[str, ...] = ("sdpa", "eager")
    num_layers: int = LAYERS
    compressed: tuple[int, ...] = ()  # layers that are left out, as they attend to compressed keys
    selective: tuple[bool, ...] = (False,) * LAYERS

    def model(self, implementation="sdpa", dtype=torch.float32):
        """A random model, the same one for every implementation."""
        alone = self.model_type == "mllama_text_model"  # in no AutoModel's list
        if alone:
            config = MllamaForCausalLM.config_class(**self.config)
        else:
            config = AutoConfig.for_model(self.model_type, **self.config)
        config._attn_implementation = implementation
        config.dtype = dtype
        torch.manual_seed(0)
        make = MllamaForCausalLM._from_config if alone else AutoModelForCausalLM.from_config
        model = make(config)
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "norm" not in name:
                weight.data.mul_(4)  # scores that differ, so that a wrong pair of vectors shows
        return model.eval()


def needs(given, what):
    """Skip a test of what the installed transformers, older than the pinned one, does not do."""
    if not given:
        pytest.skip(f"transformers {transformers.__version__} does not {what}")


def needs_rare(model_type):
    """Skip a test of a rare model that the installed transformers lacks or runs wrongly."""
    needs(model_type in CONFIG_MAPPING, f"have {model_type}")
    needs(model_type not in _WRONG_BEFORE_5_21 or RECENT, "run it rightly")


RECENT = Version(transformers.__version__) >= Version("5.21")
_WRONG_BEFORE_5_21 = ("ctrl", "doge", "zamba", "zamba2")
"""No sdpa (ctrl, zamba), attention to later tokens (doge), no rotary embedding (zamba2)."""

_SLIDING = tuple(8 if kind == "sliding_attention" else None for kind in _HALF_SLIDING)
_HEAD_16 = {**_LLAMA, "head_dim": 16}
_HALF = {"sliding_window": 8, "layer_types": _HALF_SLIDING}
_GEMMA = {**_HEAD_16, **_HALF, "query_pre_attn_scalar": 16}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DEEPSEEK = {
    **{**_LLAMA, **_MLA, **_ROUTED, "num_key_value_heads": 4},
    **{"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
}
_INDEX = {"index_topk": 6, "index_head_dim": 16, "index_n_heads": 2}
_ENCODER = {**_LLAMA, "num_key_value_heads": 4, "cls_token_id": 1, "sep_token_id": 2}

ARCHITECTURES = {
    architecture.model_type: architecture
    for architecture in (
        Architecture("llama", _LLAMA),
        Architecture(
            "qwen2",
            {**_LLAMA, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
            windows=(None, None, 8, 8),
        ),
        Architecture("qwen3", _HEAD_16),
        Architecture(
            "qwen3_moe",
            {**_HEAD_16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        ),
        Architecture("gemma2", _GEMMA, windows=_SLIDING, attention=("eager",)),
        Architecture("gemma3_text", _GEMMA, windows=_SLIDING),
        Architecture("glm", _HEAD_16),
        Architecture("glm4", _HEAD_16),
        Architecture("mistral", {**_LLAMA, "sliding_window": 8}, windows=(8,) * LAYERS),
        Architecture("ministral3", _HEAD_16),
        Architecture(
            "mllama_text_model",
            {**_LLAMA, "cross_attention_layers": [1]},
            layers=(0, 2, 3),
            windows=(None,) * 3,
            rope=(True,) * 3,
        ),
        Architecture(
            "smollm3", {**_LLAMA, "no_rope_layers": [1, 1, 1, 0]}, rope=(True, True, True, False)
        ),
        Architecture("olmo2", _LLAMA),
        Architecture("phi3", _LLAMA),
        Architecture(
            "cohere2", {**_LLAMA, **_HALF}, windows=_SLIDING, rope=(True, False, True, False)
        ),
        Architecture(
            "gpt_oss", {**_HEAD_16, **_EXPERTS, **_HALF}, windows=_SLIDING, attention=("eager",)
        ),
        Architecture(
            "llama4_text",
            {
                **_HEAD_16,
                "intermediate_size_mlp": 96,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "attention_chunk_size": 8,
                "no_rope_layers": [1, 1, 1, 0],
            },
            windows=(8, 8, 8, None),
            rope=(True, True, True, False),
        ),
        Architecture(
            "gpt2",
            {
                "vocab_size": VOCABULARY,
                "n_embd": 64,
                "n_layer": LAYERS,
                "n_head": 4,
                "n_positions": 512,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
            k_heads=4,
            rope=(False,) * LAYERS,
        ),
        Architecture("gpt_neox", {**_LLAMA, "rotary_pct": 0.5}, k_heads=4),
        Architecture("starcoder2", {**_LLAMA, "sliding_window": 8}, windows=(8,) * LAYERS),
        Architecture("granite", {**_LLAMA, "attention_multiplier": 0.2}),
        Architecture("stablelm", {**_LLAMA, "partial_rotary_factor": 0.5}),
        Architecture("deepseek_v3", _DEEPSEEK, k_heads=4, width=24),
    )
}

_SHARED = {
    **_LLAMA,
    "num_key_value_heads": 4,
    "layers_block_type": ["mamba", "hybrid"] * 2,
    "layer_types": ["mamba", "hybrid"] * 2,
    "attention_hidden_size": 128,
    "attention_head_dim": 32,
    "mamba_d_state": 8,
}
_SHARED_FACTS = {
    "k_heads": 4,
    "width": 32,
    "layers": (1, 3),
    "windows": (None,) * 2,
    "rope": (False,) * 2,
    "selective": (False,) * 2,
}

RARE = {
    architecture.model_type: architecture
    for architecture in (
        Architecture(  # the attention of two layers has the same weights, and layer_idx -1
            "zamba2",
            {
                **_SHARED,
                "num_mem_blocks": 1,
                "n_mamba_heads": 4,
                "mamba_ngroups": 1,
                "chunk_size": 16,
                "adapter_rank": 4,
            },
            **_SHARED_FACTS,
        ),
        Architecture(  # attention modules without layer_idx
            "zamba", {**_SHARED, "n_mamba_heads": 2, "mamba_dt_rank": 4}, **_SHARED_FACTS
        ),
        Architecture(  # two stacks of two layers, run in turn: six runs
            "hrm_text",
            {**_HEAD_16, "num_hidden_layers": 2, "H_cycles": 1, "L_cycles": 2},
            k_heads=4,
            layers=tuple(range(6)),
            num_layers=6,
            windows=(None,) * 6,
            rope=(True,) * 6,
            selective=(False,) * 6,
        ),
        Architecture(  # two attention modules in a decoder layer
            "longcat_flash",
            {
                **_LLAMA,
                **_MLA,
                "num_key_value_heads": 4,
                "head_dim": 8,
                "num_layers": 2,
                "ffn_hidden_size": 96,
                "expert_ffn_hidden_size": 32,
                "n_routed_experts": 4,
                "zero_expert_num": 1,
                "moe_topk": 2,
            },
            k_heads=4,
            width=24,
        ),
        Architecture(  # the call names no window; the mask has one
            "phimoe", {**_LLAMA, **_EXPERTS, "sliding_window": 8}, windows=(8,) * LAYERS
        ),
        Architecture(
            "deepseek_v32",
            {**_DEEPSEEK, **_INDEX},
            k_heads=4,
            width=24,
            selective=(True,) * LAYERS,
        ),
        Architecture("doge", {**_LLAMA, "keep_window_size": 6}, selective=(True,) * LAYERS),
        Architecture(  # blocks of keys are chosen, in every second layer
            "minimax_m3_vl_text",
            {
                **_HEAD_16,
                **_EXPERTS,
                "rotary_dim": 8,
                "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
                "index_n_heads": 2,
                "index_head_dim": 16,
                "index_block_size": 4,
                "index_topk_blocks": 2,
                "dense_intermediate_size": 32,
                "shared_intermediate_size": 32,
            },
            selective=(False, True) * 2,
        ),
        Architecture(
            "deepseek_v4",
            {
                **_HEAD_16,
                **_ROUTED,
                **_INDEX,
                "q_lora_rank": 24,
                "num_key_value_heads": 1,
                "sliding_window": 8,
                "layer_types": [
                    "sliding_attention",
                    "compressed_sparse_attention",
                    "heavily_compressed_attention",
                    "sliding_attention",
                ],
                "o_groups": 2,
                "o_lora_rank": 16,
            },
            k_heads=1,
            layers=(0, 3),
            compressed=(1, 2),
            windows=(8, 8),
            rope=(True, True),
            selective=(False, False),
            attention=("eager",),
        ),
        Architecture(  # sinks that scale the output, which the weights do not show
            "granite_swa",
            {**_LLAMA, **_HALF, "layer_types": ["full_attention", *["sliding_attention"] * 3]},
            windows=(None, 8, 8, 8),
            attention=("eager",),
        ),
        Architecture(  # a learned bias by distance is added to the scores
            "inkling_text",
            {
                **_HEAD_16,
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 2,
                "swa_head_dim": 16,
                "layer_types": ["full_attention"] * LAYERS,
                "mlp_layer_types": ["dense"] * LAYERS,
                "d_rel": 8,
                "rel_extent": 64,
            },
            windows=(512,) * LAYERS,
            rope=(False,) * LAYERS,
            attention=("eager",),
        ),
        Architecture(  # its get_decoder() is the output projection
            "modernbert-decoder",
            {**_ENCODER, **_HALF, "layer_types": _HALF_SLIDING[::-1]},
            k_heads=4,
            windows=_SLIDING[::-1],
        ),
        Architecture(  # positions are added to embeddings; attention takes three inputs
            "ctrl",
            {"vocab_size": VOCABULARY, "n_embd": 64, "dff": 96, "n_layer": LAYERS, "n_head": 4},
            k_heads=4,
            rope=(False,) * LAYERS,
        ),
    )
}
"""Models whose layers, masks or rotary functions are not where one looks for them first."""

_TWO_STACKS = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
}

LOOKING_AHEAD = {
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "modernbert": _ENCODER,
    "gemma3_text": {**_GEMMA, "use_bidirectional_attention": True},
}
XMOD = {**_ENCODER, "is_decoder": True}
"""A causal model that runs only after a language was set."""
ENCODER_DECODERS = {
    "bart": _TWO_STACKS,
    "t5": {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2},
}


def shown_by(names, *kept):
    """Parameters of a test: those that are not `kept` are more cases of the same."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.long) for name in names]


@cache
def probed(name):
    """A model of an architecture, which no test may change, and its layout."""
    if name in RARE:
        needs_rare(name)
    architecture = {**ARCHITECTURES, **RARE}[name]
    model = architecture.model(architecture.attention[0])
    return model, probe(model)


def other_model(model_type, settings, implementation="sdpa"):
    """A random backbone of a kind that is not captured."""
    config = AutoConfig.for_model(model_type, **settings)
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return AutoModel.from_config(config).eval()


PLAIN_PROJECTIONS = (
    *("llama", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "glm", "mistral"),
    *("smollm3", "olmo2", "starcoder2", "granite"),
)
"""Queries and keys are a projection, perhaps a norm, and the rotary function, nothing more."""
