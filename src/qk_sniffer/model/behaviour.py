"""What a decoder does with small windows, and with one hidden state at all positions.

Whether a layer's mask hides keys, and whether its queries and keys depend on position, is seen here
and not taken from its config or from the functions it calls.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qk_sniffer.model.probe_forward import HeardCall, probe_forward, probing
from qk_sniffer.model.reach import FULL, Reach, limits_of, reach_of, shrunken

_LENGTH = 13
_COMPARED = 3  # last positions, which a short convolution reaches without the text's beginning
_ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""How far apart, relative to the largest value, equal vectors may be computed."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Behaviour:
    """What was seen of one attention call."""

    reach: Reach | None  # None when a query sees later keys
    uses_position: bool  # queries or keys differ by position though the hidden states do not


def behaviour_of(decoder: nn.Module) -> list[Behaviour]:
    """The behaviour of every attention call of a forward, in their order."""
    twin = _twin(decoder)
    with probing(twin):
        limits = limits_of(twin)
        with shrunken(twin, limits):
            limited = probe_forward(twin, max(limits.length, _LENGTH), masks=True).calls
        with _equal_states(limited) as replaced:
            equal = probe_forward(twin, _LENGTH).calls
    equal_call = {(call.place.module, call.place.number): call for call in equal}
    found = []
    for call in limited:
        same = equal_call.get((call.place.module, call.place.number))
        known = same is not None and call.place.module in replaced
        found.append(
            Behaviour(
                reach=FULL if call.visible is None else reach_of(call.visible, limits),
                uses_position=same is None or not known or _differs_by_position(same),
            )
        )
    return found


def _twin(decoder: nn.Module) -> nn.Module:
    """A copy with the same weights, so that another thread can run the model meanwhile.

    Where accelerate has put hooks into the modules, it is the decoder itself: copies of the hooks
    would hold copies of weights.
    """
    modules = list(decoder.modules())
    if any(hasattr(module, "_hf_hook") for module in modules):
        return decoder
    shared = [*decoder.parameters(), *decoder.buffers()]
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for hooks in (vars(module)[name] for module in modules for name in _HOOKS):
        memo[id(hooks)] = type(hooks)()
    try:
        return copy.deepcopy(decoder, memo)
    except (TypeError, RuntimeError, AttributeError):  # holds something that cannot be copied
        return decoder


@contextmanager
def _equal_states(calls: Sequence[HeardCall]) -> Iterator[set[nn.Module]]:
    """Give attention modules one hidden state at all positions; yields those that took it."""
    replaced: set[nn.Module] = set()

    def replace(
        module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        states = options.get("hidden_states", arguments[0] if arguments else None)
        if not isinstance(states, Tensor) or states.dim() != 3:
            return None
        replaced.add(module)
        largest = int(states[0].float().norm(dim=1).argmax())  # a padding token's may be zero
        equal = states[:, largest : largest + 1].expand_as(states).contiguous()  # (1, s, hidden)
        return (
            tuple(equal if value is states else value for value in arguments),
            {name: equal if value is states else value for name, value in options.items()},
        )

    with ExitStack() as stack:
        for module in {call.place.module for call in calls}:
            hook = module.register_forward_pre_hook(replace, with_kwargs=True)
            stack.callback(hook.remove)
        yield replaced


def _differs_by_position(call: HeardCall) -> bool:
    rounding = _ROUNDING.get(call.query.dtype, max(_ROUNDING.values()))
    for tensor in (call.query, call.key):
        last = tensor[0, :, -_COMPARED:].float()  # (heads, 3, d)
        spread = last.amax(dim=1) - last.amin(dim=1)  # (heads, d)
        if spread.max() > rounding * last.abs().max():
            return True
    return False
