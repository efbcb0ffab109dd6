"""One forward of a few tokens, and every attention call that is heard of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qk_sniffer.model.hearing import AttentionCall, hearing_calls, hearing_rotary
from qk_sniffer.model.layer_numbers import LayerRun, LayerWatch, PlacedCall
from qk_sniffer.model.layout import run_backbone, vocabulary_of

RotaryCall = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""What a rotary function was given, and what it returned."""

_probed: set[tuple[nn.Module, int]] = set()  # a decoder, and the thread that probes it


def is_probed(decoder: nn.Module) -> bool:
    """Whether the forward that this thread runs is a probe's, which is nobody's text."""
    return (decoder, threading.get_ident()) in _probed


@contextmanager
def probing(decoder: nn.Module) -> Iterator[None]:
    """Mark this thread's forwards as a probe's, without dropout, which draws random numbers."""
    mine = (decoder, threading.get_ident())
    training = {module: module.training for module in decoder.modules()}
    _probed.add(mine)
    decoder.eval()
    try:
        yield
    finally:
        _probed.discard(mine)
        for module, flag in training.items():
            module.training = flag


@dataclass(frozen=True)
class HeardCall:
    """An attention call of a probe, and the rotary calls before it."""

    place: PlacedCall
    query: Tensor  # (1, heads, s, d)
    key: Tensor  # (1, key heads, s or more, d)
    options: Mapping[str, Any]  # without tensors
    rotary: Sequence[RotaryCall]
    visible: Tensor | None  # (heads, s, s), where it was asked for and keys are tokens

    @property
    def q_heads(self) -> int:
        """Query heads."""
        return self.query.shape[1]

    @property
    def k_heads(self) -> int:
        """Key heads."""
        return self.key.shape[1]

    @property
    def has_other_keys(self) -> bool:
        """Whether there are keys beside those of the tokens."""
        return self.key.shape[2] > self.query.shape[2]

    def repeats(self, other: HeardCall) -> bool:
        """Whether the same queries and keys are passed to attention again, with other values."""
        return (
            self.place.module is other.place.module
            and self.place.run == other.place.run
            and torch.equal(self.query, other.query)
            and torch.equal(self.key, other.key)
        )


@dataclass(frozen=True)
class ProbeForward:
    """The decoder layers that ran, and the attention calls they made."""

    runs: Sequence[LayerRun]
    calls: Sequence[HeardCall]


def probe_forward(decoder: nn.Module, length: int, *, masks: bool = False) -> ProbeForward:
    """Run `length` tokens inside `probing`; `masks` asks what each call lets a query see."""
    owned = set(decoder.modules())
    calls: list[HeardCall] = []
    numbers: Counter[nn.Module] = Counter()
    pending: list[tuple[int | None, RotaryCall]] = []  # with the layer run they belong to
    watch = LayerWatch(decoder)

    def on_rotary(before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> None:
        if is_probed(decoder):
            pending.append((watch.current, (before, after)))

    def on_attention(call: AttentionCall) -> None:
        if not is_probed(decoder):  # a forward of another thread
            return
        rotary = [given for run, given in pending if run == watch.current]
        pending.clear()
        module, query, key = call.module, call.query, call.key
        if module not in owned or not query.dim() == key.dim() == 4:
            return
        if not query.shape[2] == length <= key.shape[2]:
            return
        place = PlacedCall(module, numbers[module], watch.current)
        if call.is_self_attention:
            numbers[module] += 1
        options = {
            name: None if torch.is_tensor(value) else value for name, value in call.options.items()
        }
        visible = _visible(call) if masks else None
        heard = HeardCall(place, query, key, options, rotary, visible)
        if query.is_meta or not any(heard.repeats(other) for other in calls):
            calls.append(heard)

    tokens = torch.arange(length)[None] % vocabulary_of(decoder)  # (1, length)
    with watch, hearing_calls(on_attention), hearing_rotary(owned, on_rotary):
        run_backbone(decoder, tokens)
    return ProbeForward(watch.runs, calls)


def _visible(call: AttentionCall) -> Tensor | None:
    divides = call.query.shape[1] % call.key.shape[1] == 0  # else refused later, by these numbers
    return call.visible_keys() if divides and call.is_self_attention else None
