"""The layout of a transformers model, its text decoder, and how the decoder is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from qk_dump.heads import Kind
from qk_sniffer.engines.engine import ModelLayout
from qk_sniffer.engines.hf.rotary_tables import RotaryTables


@dataclass(frozen=True)
class RotaryPart:
    """Which rotary call of a layer takes the queries or keys, and which dimensions it rotates."""

    call: int  # index among the layer's rotary calls
    tensor: int  # index among the tensors of that call
    heads_last: bool  # (b, s, heads, d) instead of (b, heads, s, d)
    start: int
    width: int


@dataclass(frozen=True)
class CallPlace:
    """Where the attention call of a layer is made, and where its queries and keys are rotated."""

    module: nn.Module
    call: int  # index among the module's attention calls of a forward; layers may share a module
    q_rotary: RotaryPart | None  # None if there is none, or if the rotary input was not identified
    k_rotary: RotaryPart | None

    def rotary(self, kind: Kind) -> RotaryPart | None:
        """`q_rotary` or `k_rotary`."""
        return self.q_rotary if kind == "q" else self.k_rotary


@dataclass(frozen=True)
class HfLayout(ModelLayout):
    """The layout of a transformers model, and where its attention calls are made."""

    places: Mapping[int, CallPlace] = field(default_factory=dict, repr=False, compare=False)
    rotary_tables: RotaryTables = field(default=RotaryTables(), repr=False, compare=False)


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
