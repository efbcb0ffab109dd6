"""The attention layout of a model: layers, heads, windows and rotary embedding.

Find which earlier keys the queries of a layer see, from the mask of its attention call. A probe of
a few tokens is shorter than most windows. So windows, chunks and top-k limits are made small for
one forward. The keys that are hidden then show which limit a layer uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from qk_dump.layout import Kind
from qk_sniffer.model.logits import Logits
from qk_sniffer.model.rotary_tables import RotaryTables
from qk_sniffer.model.rotation_fit import Rotation, Rotations

LayerType = Literal["full_attention", "sliding_attention", "chunked_attention"]

_LIMIT = re.compile(
    r"sliding_window|window_size|attention_window|attention_chunk|"
    r"index_\w*(topk|block)|topk_blocks|keep_window"
)
_NO_LIMIT = re.compile(r"pattern|layers")
_STEP = 3  # small limits are 3, 6, …; a mask may count one token more or less


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


@dataclass(frozen=True)
class Reach:
    """Which earlier keys the queries of a layer see."""

    type: LayerType
    window: int | None  # tokens of the window or chunk; None for full attention
    selective: bool = False  # the hidden keys match neither a window nor chunks


FULL = Reach("full_attention", None)


@dataclass(frozen=True)
class Limits:
    """The limits of a model (windows, chunks, top-k), and a small number for each."""

    small: Mapping[int, int]  # limit → small number

    @property
    def length(self) -> int:
        """Enough tokens that every small limit, also a limit on blocks of tokens, hides keys."""
        small = sorted(self.small.values())
        return math.prod(small[-2:]) + _STEP

    def real_limit(self, measured: int) -> int:
        """The real limit for a measured small one, which may be off by one token."""
        for real, small in self.small.items():
            if abs(measured - small) <= 1:
                return real + measured - small
        return measured


def limits_of(decoder: nn.Module) -> Limits:
    """The limits in the configs and modules of a decoder."""
    real = sorted({value for _, _, value in _limit_attributes(decoder)})
    return Limits({value: _STEP * place for place, value in enumerate(real, 1)})


@contextmanager
def small_limits(decoder: nn.Module, limits: Limits) -> Iterator[None]:
    """Set the small limits in the decoder until the block ends."""
    found = list(_limit_attributes(decoder))
    try:
        for owner, name, value in found:
            owner[name] = limits.small[value]
        yield
    finally:
        for owner, name, value in found:
            owner[name] = value


def reach_of(visible: Tensor, limits: Limits) -> Reach | None:
    """The reach that fits the visible keys (heads, s, s); None if a query sees a later key."""
    seen = visible.cpu()
    length = seen.shape[-1]
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]  # (s, 1), (1, s)
    causal = key <= query  # (s, s)
    if (seen & ~causal).any():
        return None
    counts = seen[0].sum(dim=1)  # (s,) keys that each query sees
    window = int(counts.max())
    chunk = int((counts[1:] <= counts[:-1]).int().argmax()) + 1  # the first query that sees no more
    same_chunk = query // chunk == key // chunk  # (s, s)
    patterns = (
        (FULL, causal),
        (Reach("sliding_attention", limits.real_limit(window)), causal & (query - key < window)),
        (Reach("chunked_attention", limits.real_limit(chunk)), causal & same_chunk),
    )
    for reach, pattern in patterns:
        if (seen == pattern).all():
            return reach
    return Reach("full_attention", None, selective=True)


def declared_type(layer: int, config: Any) -> str | None:
    """The attention type of a layer in the decoder's config."""
    types = getattr(config, "layer_types", None) or ()
    return str(types[layer]) if layer < len(types) else None


def declared_reach(layer: int, options: Mapping[str, Any], config: Any) -> Reach:
    """The reach according to the call's options and the config, for models without weights."""
    declared = declared_type(layer, config)
    if declared == "chunked_attention" and getattr(config, "attention_chunk_size", None):
        return Reach("chunked_attention", int(config.attention_chunk_size))
    window = options.get("sliding_window")
    if not window and declared == "sliding_attention":
        window = getattr(config, "sliding_window", None)
    return Reach("sliding_attention", int(window)) if window else FULL


def _limit_attributes(decoder: nn.Module) -> Iterator[tuple[dict[str, Any], str, int]]:
    """(attributes, name, value) of every limit in the configs and modules of a decoder.

    A module may have a limit of its config under a shorter name, such as `block_size` for
    `index_block_size`.
    """
    configs = _configs(decoder)
    known = [(name, value) for config in configs for name, value in _limits(config)]
    for config in configs:
        yield from ((config, name, value) for name, value in _limits(config))
    for attributes in map(vars, decoder.modules()):
        named = {name for name, _ in _limits(attributes)}
        for name, value in attributes.items():
            short = any(long.endswith(name) and value == real for long, real in known)
            if name in named or (type(value) is int and short):
                yield attributes, name, value


def _limits(attributes: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in attributes.items():
        positive = type(value) is int and value > 0
        if positive and _LIMIT.search(name) and not _NO_LIMIT.search(name):
            yield name, value


def _configs(decoder: nn.Module) -> list[dict[str, Any]]:
    """The attributes of every config in the modules, including nested configs."""
    found: dict[int, dict[str, Any]] = {}
    waiting = [value for module in decoder.modules() for value in vars(module).values()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, PreTrainedConfig) and id(value) not in found:
            found[id(value)] = vars(value)
            for inner in vars(value).values():
                waiting.extend(inner.values() if isinstance(inner, Mapping) else _as_list(inner))
    return list(found.values())


def _as_list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)
