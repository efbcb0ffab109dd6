"""Measure a model's layout with forwards of a few tokens.

Heads, widths, windows and rotary embeddings are taken from the attention calls. Configs are not
reliable: head_dim may be the size of the rotary part, and a window may not hold for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from qk_sniffer.engines.engine import LayerFacts, Rotations
from qk_sniffer.engines.hf.behaviour import Behaviour, behaviour_of
from qk_sniffer.engines.hf.layer_numbers import number_layers
from qk_sniffer.engines.hf.layout import CallPlace, HfLayout, decoder_of, text_config
from qk_sniffer.engines.hf.probe_forward import (
    ProbedCall,
    ProbeForward,
    probe_forward,
    probe_mode,
    probe_tokens,
)
from qk_sniffer.engines.hf.reach import declared_reach, declared_type
from qk_sniffer.engines.hf.rotary import UNCHANGED, rotations_of
from qk_sniffer.engines.hf.rotary_tables import RotaryTables, recorded_modules
from qk_toolkit.errors import ConfigError

_LENGTHS = (5, 7, 11, 13)  # the length must differ from the head counts to identify the axes


def probe(model: nn.Module) -> HfLayout:
    """The layout of a model, measured by running a few tokens.

    Models that are not causal decoders are refused: plasticity compares the keys before a query.

    Examples:
        >>> from qk_sniffer import probe
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes))  # random weights
        >>> layout = probe(model)
        >>> layout.num_layers
        2
        >>> layout[1].q_heads, layout[1].k_heads, layout[1].width
        (4, 2, 8)
    """
    _refuse_encoder_decoder(model)
    _refuse_tensor_parallel(model)
    decoder = decoder_of(model)
    with probe_mode(decoder):
        for length in _LENGTHS:
            with recorded_modules(decoder) as rotary:
                forward = probe_forward(decoder, probe_tokens(decoder, length))
            _require_calls(model, forward)
            if not any(length in (call.q_heads, call.k_heads) for call in forward.calls):
                break
    behaviours = behaviour_of(decoder) if not _is_empty(forward) else None
    if behaviours is not None and len(behaviours) != len(forward.calls):
        raise ConfigError(
            f"{type(model).__name__}: the number of attention calls changes with the length of a "
            "text, so the model cannot be captured. Choose another model."
        )
    attention = [call.site.module for call in forward.calls]
    rotations = [] if behaviours is None else rotations_of(decoder, attention)
    return _layout(model, decoder, forward, behaviours, rotations, RotaryTables.of(rotary))


class WeightsNeededError(Exception):
    """The layout cannot be found without values of the weights."""


def _refuse_encoder_decoder(model: nn.Module) -> None:
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ConfigError(
            f"{type(model).__name__}: is an encoder-decoder: it needs a second text for its "
            "encoder, and a capture has one text. Choose a decoder-only model."
        )


def _refuse_tensor_parallel(model: nn.Module) -> None:
    """Refuse a model of which this process holds, and computes with, some heads only."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    split = any(
        isinstance(weight, DTensor) and any(place.is_shard() for place in weight.placements)
        for weight in model.parameters()
    )  # modules of FSDP gather their weights before they compute
    split = split and not any(isinstance(module, FSDPModule) for module in model.modules())
    if split or (getattr(model, "tp_size", None) or 1) > 1:
        raise ConfigError(
            "the model is tensor parallel: this process has only some of its heads, and their "
            "numbers would be wrong. Load it without tensor parallelism."
        )


def _require_calls(model: nn.Module, forward: ProbeForward) -> None:
    if not forward.calls:
        raise ConfigError(
            f"{type(model).__name__}: its attention does not go through transformers' attention "
            "registry, so queries and keys cannot be captured. This holds for bloom, codegen, "
            "falcon, gpt_neo, gptj, mpt, xglm, and models without attention. Choose another model."
        )


def _is_empty(forward: ProbeForward) -> bool:
    """Whether the model has no weights, so that only shapes are available."""
    empty = forward.calls[0].query.is_meta
    if empty and not all(getattr(call.site.module, "is_causal", True) for call in forward.calls):
        raise WeightsNeededError("a model without weights cannot be tested for causal attention")
    return empty


def _layout(
    model: nn.Module,
    decoder: nn.Module,
    forward: ProbeForward,
    behaviours: Sequence[Behaviour] | None,
    rotations: Sequence[Rotations],
    tables: RotaryTables,
) -> HfLayout:
    name, config = type(model).__name__, text_config(decoder)
    numbers, count = number_layers(name, forward.runs, [call.site for call in forward.calls])
    layers, compressed = [], []
    places: dict[int, CallPlace] = {}
    for index, (number, call) in enumerate(zip(numbers, forward.calls, strict=True)):
        if call.has_extra_keys or "compress" in (declared_type(number, config) or ""):
            compressed.append(number)
            continue
        places[number] = _place(call)
        if behaviours is None:
            declared = declared_reach(number, call.options, config)
            layers.append(_facts(name, number, call, Behaviour(declared, False, None)))
        else:
            facts = _facts(name, number, call, behaviours[index])
            layers.append(replace(facts, rotations=_checked(rotations, index, facts.rope)))
    if not layers:
        raise ConfigError(
            f"{name}: every layer attends to compressed keys, which are not tokens. Choose another "
            "model."
        )
    declared_layers = getattr(config, "num_hidden_layers", None) or 0
    return HfLayout(
        num_layers=max(declared_layers, count),
        layers=tuple(sorted(layers, key=lambda facts: facts.layer)),
        compressed_layers=tuple(sorted(compressed)),
        places=places,
        rotary_tables=tables,
    )


def _checked(rotations: Sequence[Rotations], index: int, rope: bool) -> Rotations:
    """The rotations of a call. A layer without a rotary embedding has no record and no problem."""
    found = rotations[index]
    if rope:
        return found
    if found.after.record is None and found.after.problem == UNCHANGED:
        return Rotations()
    return found


def _facts(name: str, number: int, call: ProbedCall, behaviour: Behaviour) -> LayerFacts:
    if behaviour.reach is None:
        raise ConfigError(
            f"{name}: attention is not causal: a token of layer {number} sees later tokens. "
            "Plasticity compares the keys before a query. Choose a causal model."
        )
    if call.q_heads % call.k_heads:
        raise ConfigError(
            f"{name}: layer {number} has {call.q_heads} query and {call.k_heads} key heads; the "
            "first must be a multiple of the second. Choose another model."
        )
    rope, place = bool(call.rotary) or behaviour.uses_position, _place(call)
    return LayerFacts(
        layer=number,
        q_heads=call.q_heads,
        k_heads=call.k_heads,
        width=call.query.shape[3],
        type=behaviour.reach.type,
        window=behaviour.reach.window,
        selective=behaviour.reach.selective,
        scale=call.scale,
        softcap=(call.softcap or None) if behaviour.logits is None else behaviour.logits.softcap,
        logits=behaviour.logits,
        rope=rope,
        pre_rope_known=not rope or None not in (place.q_rotary, place.k_rotary),
    )


def _place(call: ProbedCall) -> CallPlace:
    parts = (call.rotary_part("q"), call.rotary_part("k"))
    return CallPlace(call.site.module, call.site.number, *parts)
