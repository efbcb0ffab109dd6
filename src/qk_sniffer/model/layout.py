"""The attention layout of a model: layers, heads, windows and rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from qk_dump.layout import Kind
from qk_sniffer.model.logits import Logits
from qk_sniffer.model.reach import LayerType
from qk_sniffer.model.rotary_tables import RotaryTables
from qk_sniffer.model.rotation import Rotation, Rotations


@dataclass(frozen=True)
class RotaryPart:
    """Which rotary call of a layer takes the queries or keys, and which dimensions it rotates."""

    call: int  # index among the layer's rotary calls
    tensor: int  # index among the tensors of that call
    heads_last: bool  # (b, s, heads, d) instead of (b, heads, s, d)
    start: int
    width: int


@dataclass(frozen=True)
class LayerFacts:
    """The attention of one layer."""

    layer: int
    module: nn.Module = field(repr=False, compare=False)
    call: int  # index among the module's attention calls of a forward; layers may share a module
    q_heads: int
    k_heads: int
    width: int
    type: LayerType
    window: int | None  # number of tokens that a query sees; None for all earlier tokens
    selective: bool  # the keys that a query sees depend on more than their distance
    scale: float
    softcap: float | None
    logits: Logits | None = field(compare=False)  # None if their computation is not known
    rope: bool  # False on NoPE layers and in models without rotary embedding
    q_rotary: RotaryPart | None  # None also if the rotary input was not identified
    k_rotary: RotaryPart | None
    rotations: Rotations = field(default=Rotations(), compare=False)

    @property
    def group(self) -> int:
        """The number of query heads that share a key head."""
        return self.q_heads // self.k_heads

    def rotary(self, kind: Kind) -> RotaryPart | None:
        """`q_rotary` or `k_rotary`."""
        return self.q_rotary if kind == "q" else self.k_rotary

    def rotation(self, pre_rope: bool) -> Rotation:
        """How RoPE turns the captured vectors."""
        return self.rotations.before if pre_rope else self.rotations.after

    @property
    def pre_rope_known(self) -> bool:
        """Whether vectors before the rotary embedding can be captured."""
        return not self.rope or (self.q_rotary is not None and self.k_rotary is not None)


@dataclass(frozen=True)
class ModelLayout:
    """All layers whose attention can be captured, in order."""

    num_layers: int
    layers: tuple[LayerFacts, ...]
    compressed_layers: tuple[int, ...] = ()  # layers whose keys are not tokens
    rotary_tables: RotaryTables = field(default=RotaryTables(), repr=False, compare=False)

    def __getitem__(self, layer: int) -> LayerFacts:
        return next(facts for facts in self.layers if facts.layer == layer)

    @property
    def layers_without_attention(self) -> list[int]:
        """Layers without self-attention, such as linear attention or cross-attention."""
        known = {facts.layer for facts in self.layers} | {*self.compressed_layers}
        return [layer for layer in range(self.num_layers) if layer not in known]


def decoder_of(model: nn.Module) -> nn.Module:
    """The text decoder of a model."""
    found = getattr(model, "get_decoder", lambda: None)()
    candidates = (found, getattr(model, "base_model", None))
    for part in candidates:  # in some models `get_decoder` returns the output projection
        if isinstance(part, nn.Module) and hasattr(part, "get_input_embeddings"):
            return part
    return model


def run_backbone(decoder: nn.Module, tokens: Tensor, first_position: int | None = None) -> None:
    """Run one forward without cache and logits; the tokens (b, s) may be on any device.

    With `first_position` the model is given `position_ids` that count from it.
    """
    options: dict[str, Any] = {"use_cache": False}
    if getattr(decoder, "lm_head", None) is not None:  # this decoder computes logits
        options["logits_to_keep"] = 1
    device = input_device(decoder)
    if first_position is not None:
        places = torch.arange(tokens.shape[1], device=device) + first_position  # (s,)
        options["position_ids"] = places.expand(tokens.shape)
    empty = device.type == "meta"
    if empty:  # with a ready mask the model reads no values
        length = tokens.shape[1]
        options["attention_mask"] = torch.zeros(1, 1, length, length, device=device)
    with torch.inference_mode(), _no_autocast_on_meta() if empty else nullcontext():
        decoder(input_ids=tokens.to(device, non_blocking=device.type == "cuda"), **options)


@contextmanager
def _no_autocast_on_meta() -> Iterator[None]:
    """Let `torch.is_autocast_enabled("meta")` return False instead of raising an error.

    Models of transformers before 5.4 call it.
    """
    original = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: device != ("meta",) and original(*device)
    try:
        yield
    finally:
        torch.is_autocast_enabled = original


def input_device(decoder: nn.Module) -> torch.device:
    """The device on which the decoder expects its tokens."""
    embeddings = getattr(decoder, "get_input_embeddings", lambda: None)()
    weights = (embeddings if embeddings is not None else decoder).parameters()
    device = next(weights).device
    hook = getattr(embeddings, "_hf_hook", None)  # accelerate may store the weights elsewhere
    execution = getattr(hook, "execution_device", None)
    return torch.device(execution) if execution is not None else device


def vocabulary_of(decoder: nn.Module) -> int:
    """The number of tokens that have an embedding."""
    embeddings: Any = cast(Any, decoder).get_input_embeddings()
    return int(embeddings.weight.shape[0])


def text_config(model: nn.Module) -> Any:
    """The decoder's part of a model's config."""
    return decoder_config(model.config)


def decoder_config(config: Any) -> Any:
    """The decoder's part of a config."""
    try:
        return config.get_text_config(decoder=True)
    except (AttributeError, ValueError):
        return config
