"""Models made from a config alone, without the weights of a checkpoint.

The shape of a model needs no weights. Its rotary embedding needs some, but not many: a small model
with the same widths of heads and the same rope turns its queries and keys in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn

from qk_sniffer.config import ModelSettings
from qk_sniffer.engines.hf.layout import HfLayout, decoder_config, decoder_of
from qk_sniffer.engines.hf.loading import built_model, load_model_config, loading_errors
from qk_sniffer.engines.hf.probe_forward import ForwardFailedError
from qk_sniffer.engines.hf.probing import WeightsNeededError, probe
from qk_toolkit.errors import ConfigError
from qk_toolkit.raised_in import is_our_bug

_SEED = 0
_HEADS = 2  # of a small model
_TOKENS = 64  # of its vocabulary
_EXPERTS = 32  # a multiple of all numbers of groups, and at least as many as a token uses
_SMALL = 16
_SMALL_FIELDS = re.compile(
    r"intermediate_size|ffn|n_inner|_lora_rank|linear_\w*head_dim|shared_expert_\w*size"
)
_EXPERT_FIELDS = re.compile(r"num_(local_)?experts|n_routed_experts|moe_num_experts")


def shape_of(settings: ModelSettings, *, heads_only: bool = False) -> tuple[nn.Module, HfLayout]:
    """The model without values of weights, and its layout.

    With `heads_only`, other sizes than those of its heads are small.
    """

    def unloaded(dtype: torch.dtype, context: Any) -> nn.Module:
        with loading_errors("model.name", settings.name):
            config = load_model_config(settings)
            if heads_only:
                _make_others_small(decoder_config(config))
            with context:
                return built_model(settings, config, dtype).eval()

    try:
        model = unloaded(torch.bfloat16, torch.device("meta"))
        return model, probe(model)
    except (ForwardFailedError, WeightsNeededError, RuntimeError):  # its code looks at values
        model = unloaded(torch.float32, init_empty_weights(include_buffers=False))
        _fill(model, lambda weight: torch.zeros((), dtype=weight.dtype).expand(weight.shape))
        return model, probe(model)


def small_model(settings: ModelSettings) -> nn.Module:
    """A model with the layers, the widths of heads and the rope of the config.

    It has few heads and experts, and random weights. Norms have unequal weights, because such a
    norm after RoPE changes queries and keys by more than a factor. Raises a `ConfigError` if the
    model cannot be made small.
    """
    config = load_model_config(settings)
    try:
        _make_small(decoder_config(config))
        with init_empty_weights(include_buffers=False):
            model = built_model(settings, config, torch.float32).eval()
    except Exception as error:  # of any code of the model
        if is_our_bug(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.name: {settings.name}: rotary records cannot be measured: a small model of "
            f"this architecture ({config.model_type}) cannot be made ({reason}). Capture the dump "
            "again; a capture measures them."
        ) from error
    generator = torch.Generator().manual_seed(_SEED)

    def random(weight: Tensor) -> Tensor:
        if weight.dim() < 2:
            return torch.rand(weight.shape, generator=generator) + 0.5
        values: Tensor = torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5
        return values

    _fill(decoder_of(model), random)
    return model


def _make_small(config: Any) -> None:
    """Change the sizes in a decoder's config on which the rotary embedding does not depend."""
    _make_others_small(config)
    heads, keys = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    head_dim = config.attribute_map.get("head_dim", "head_dim")
    width = vars(config).get(head_dim) or config.hidden_size // heads
    config.num_attention_heads = _HEADS
    if type(keys) is int:
        config.num_key_value_heads = _HEADS if keys == heads else 1
    if head_dim in vars(config):
        setattr(config, head_dim, width)  # it no longer follows from the hidden size
    config.hidden_size = _HEADS * width


def _make_others_small(config: Any) -> None:
    """Change the sizes in a decoder's config that are not those of its heads."""
    for name, value in list(vars(config).items()):
        if _SMALL_FIELDS.search(name) and value:
            setattr(config, name, [_SMALL] * len(value) if isinstance(value, list) else _SMALL)
        elif type(value) is int and "vocab_size" in name:
            setattr(config, name, _TOKENS)
        elif type(value) is int and _EXPERT_FIELDS.fullmatch(name):
            setattr(config, name, min(value, _EXPERTS))
    config.pad_token_id = 0


def _fill(model: nn.Module, values: Callable[[Tensor], Tensor]) -> None:
    """Give values to the weights of a model that have none."""
    known: dict[int, nn.Parameter] = {}  # layers may share weights
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight.is_meta:
                if id(weight) not in known:
                    known[id(weight)] = nn.Parameter(values(weight), requires_grad=False)
                module._parameters[name] = known[id(weight)]
