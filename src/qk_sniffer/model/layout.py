"""What a model's attention looks like: its layers, heads, windows and rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from qk_dump.layout import Kind
from qk_sniffer.model.reach import LayerType
from qk_sniffer.model.rotary_tables import RotaryTables


@dataclass(frozen=True)
class RotaryPart:
    """Where the rotary function sees a query or key, and which dimensions of it."""

    call: int  # of the layer's rotary calls
    tensor: int  # of that call's tensors
    heads_last: bool  # (b, s, heads, d) instead of (b, heads, s, d)
    start: int
    width: int


@dataclass(frozen=True)
class LayerFacts:
    """One layer's attention."""

    layer: int
    module: nn.Module = field(repr=False, compare=False)
    call: int  # among the module's attention calls of a forward; layers may share a module
    q_heads: int
    k_heads: int
    width: int
    type: LayerType
    window: int | None  # tokens a query can reach back; None for all
    selective: bool  # which earlier keys a query sees does not follow from their distance
    scale: float | None
    softcap: float | None
    rope: bool  # False on NoPE layers and in models without rotary embedding
    q_rotary: RotaryPart | None  # None also where the rotary input cannot be matched
    k_rotary: RotaryPart | None

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.q_heads // self.k_heads

    def rotary(self, kind: Kind) -> RotaryPart | None:
        """Where the rotary function sees queries or keys."""
        return self.q_rotary if kind == "q" else self.k_rotary

    @property
    def pre_rope_known(self) -> bool:
        """Whether vectors before the rotary embedding can be taken."""
        return not self.rope or (self.q_rotary is not None and self.k_rotary is not None)


@dataclass(frozen=True)
class ModelLayout:
    """All layers whose attention can be captured, by layer."""

    num_layers: int
    layers: tuple[LayerFacts, ...]
    compressed_layers: tuple[int, ...] = ()  # their queries see keys that are no tokens
    rotary_tables: RotaryTables = field(default=RotaryTables(), repr=False, compare=False)

    def __getitem__(self, layer: int) -> LayerFacts:
        return next(facts for facts in self.layers if facts.layer == layer)

    @property
    def silent_layers(self) -> list[int]:
        """Layers without a self-attention call: linear attention, cross-attention."""
        heard = {facts.layer for facts in self.layers} | {*self.compressed_layers}
        return [layer for layer in range(self.num_layers) if layer not in heard]


def decoder_of(model: nn.Module) -> nn.Module:
    """The part of a model that reads text."""
    found = getattr(model, "get_decoder", lambda: None)()
    candidates = (found, getattr(model, "base_model", None))
    for part in candidates:  # some models call their output projection a decoder
        if isinstance(part, nn.Module) and hasattr(part, "get_input_embeddings"):
            return part
    return model


def run_backbone(decoder: nn.Module, tokens: Tensor) -> None:
    """One forward without cache and without the logits; tokens (b, s) lie on any device."""
    options: dict[str, Any] = {"use_cache": False}
    if getattr(decoder, "lm_head", None) is not None:  # a decoder that keeps its head
        options["logits_to_keep"] = 1
    device = input_device(decoder)
    empty = device.type == "meta"
    if empty:  # a ready mask, so that nobody asks for values
        length = tokens.shape[1]
        options["attention_mask"] = torch.zeros(1, 1, length, length, device=device)
    with torch.inference_mode(), _no_autocast_on_meta() if empty else nullcontext():
        decoder(input_ids=tokens.to(device, non_blocking=device.type == "cuda"), **options)


@contextmanager
def _no_autocast_on_meta() -> Iterator[None]:
    """Answer models that ask whether autocast is on for the meta device.

    Those of transformers before 5.4 do, and torch raises instead of saying no.
    """
    torch_answers = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: device != ("meta",) and torch_answers(*device)
    try:
        yield
    finally:
        torch.is_autocast_enabled = torch_answers


def input_device(decoder: nn.Module) -> torch.device:
    """Where the decoder takes its tokens."""
    embeddings = getattr(decoder, "get_input_embeddings", lambda: None)()
    weights = (embeddings if embeddings is not None else decoder).parameters()
    device = next(weights).device
    hook = getattr(embeddings, "_hf_hook", None)  # a weight that accelerate keeps elsewhere
    execution = getattr(hook, "execution_device", None)
    return torch.device(execution) if execution is not None else device


def vocabulary_of(decoder: nn.Module) -> int:
    """Tokens the decoder has an embedding for."""
    embeddings: Any = cast(Any, decoder).get_input_embeddings()
    return int(embeddings.weight.shape[0])


def text_config(model: nn.Module) -> Any:
    """The part of a model's config that speaks of its decoder."""
    return decoder_config(model.config)


def decoder_config(config: Any) -> Any:
    """The part of a config that speaks of the decoder."""
    try:
        return config.get_text_config(decoder=True)
    except (AttributeError, ValueError):
        return config
