"""Measure a model's layout with forwards of a few tokens.

Heads, widths, windows and rotary embeddings are taken from the attention calls. Configs are not
reliable: head_dim may be the size of the rotary part, and a window may not hold for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from qk_sniffer.model.behaviour import Behaviour, behaviour_of
from qk_sniffer.model.layer_numbers import number_layers
from qk_sniffer.model.layout import (
    LayerFacts,
    ModelLayout,
    declared_reach,
    declared_type,
    decoder_of,
    text_config,
)
from qk_sniffer.model.probe_forward import ProbedCall, ProbeForward, probe_forward, probe_mode
from qk_sniffer.model.rotary_parts import rotary_part
from qk_sniffer.model.rotary_tables import RotaryRecorder, RotaryTables
from qk_sniffer.model.rotation_fit import Rotations
from qk_sniffer.model.rotation_probe import UNCHANGED, rotations_of
from qk_toolkit.errors import ConfigError

_LENGTHS = (5, 7, 11, 13)  # the length must differ from the head counts to identify the axes


def probe(model: nn.Module) -> ModelLayout:
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
    decoder = decoder_of(model)
    with probe_mode(decoder):
        for length in _LENGTHS:
            rotary = RotaryRecorder(decoder)
            with rotary.recording():
                forward = probe_forward(decoder, length)
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
    return _layout(model, decoder, forward, behaviours, rotations, rotary.tables())


class WeightsNeededError(Exception):
    """The layout cannot be found without values of the weights."""


def _refuse_encoder_decoder(model: nn.Module) -> None:
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ConfigError(
            f"{type(model).__name__}: is an encoder-decoder: it needs a second text for its "
            "encoder, and a capture has one text. Choose a decoder-only model."
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
) -> ModelLayout:
    name, config = type(model).__name__, text_config(decoder)
    numbers, count = number_layers(name, forward.runs, [call.site for call in forward.calls])
    layers, compressed = [], []
    for index, (number, call) in enumerate(zip(numbers, forward.calls, strict=True)):
        if call.has_extra_keys or "compress" in (declared_type(number, config) or ""):
            compressed.append(number)
        elif behaviours is None:
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
    return ModelLayout(
        num_layers=max(declared_layers, count),
        layers=tuple(sorted(layers, key=lambda facts: facts.layer)),
        compressed_layers=tuple(sorted(compressed)),
        rotary_tables=tables,
    )


def _checked(rotations: Sequence[Rotations], index: int, rope: bool) -> Rotations:
    """The rotations of a call. A layer without a rotary embedding has no record and no problem."""
    found = rotations[index] if index < len(rotations) else rotations[-1]
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
    width = call.query.shape[3]
    return LayerFacts(
        layer=number,
        module=call.site.module,
        call=call.site.number,
        q_heads=call.q_heads,
        k_heads=call.k_heads,
        width=width,
        type=behaviour.reach.type,
        window=behaviour.reach.window,
        selective=behaviour.reach.selective,
        scale=call.scale,
        softcap=(call.softcap or None) if behaviour.logits is None else behaviour.logits.softcap,
        logits=behaviour.logits,
        rope=bool(call.rotary) or behaviour.uses_position,
        q_rotary=rotary_part(call, call.query, 0),
        k_rotary=rotary_part(call, call.key, 1),
    )
