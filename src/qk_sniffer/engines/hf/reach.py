"""Find which earlier keys the queries of a layer see, from the mask of its attention call.

A probe of a few tokens is shorter than most windows. So windows, chunks and top-k limits are made
small for one forward. The keys that are hidden then show which limit a layer uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from qk_sniffer.engines.engine import LayerType

_LIMIT = re.compile(
    r"sliding_window|window_size|attention_window|attention_chunk|"
    r"index_\w*(topk|block)|topk_blocks|keep_window"
)
_NO_LIMIT = re.compile(r"pattern|layers")
_STEP = 3  # small limits are 3, 6, …; a mask may count one token more or less


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
