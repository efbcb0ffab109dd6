"""Measure what every attention call of a decoder does with masks and positions.

A forward with small windows shows which keys a mask hides. A forward with the same hidden state at
all positions shows whether queries and keys depend on position. The config is not used for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qk_sniffer.engines.engine import Logits
from qk_sniffer.engines.hf.probe_forward import (
    ProbedCall,
    probe_forward,
    probe_mode,
    probe_tokens,
)
from qk_sniffer.engines.hf.reach import FULL, Reach, limits_of, reach_of, small_limits

_LENGTH = 13
_COMPARED = 3  # last positions; a short convolution there does not include the start of the text
ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest rounding difference of two equal vectors, relative to their largest value."""


@dataclass(frozen=True)
class Behaviour:
    """The measured properties of one attention call."""

    reach: Reach | None  # None when a query sees later keys
    uses_position: bool  # queries or keys depend on position when hidden states are equal
    logits: Logits | None  # None if they are not known


def behaviour_of(decoder: nn.Module) -> list[Behaviour]:
    """The behaviour of every attention call of a forward, in the order of the calls."""
    with probe_mode(decoder):
        limits = limits_of(decoder)
        with small_limits(decoder, limits):
            tokens = probe_tokens(decoder, max(limits.length, _LENGTH))
            limited = probe_forward(decoder, tokens, masks=True).calls
        replaced: set[nn.Module] = set()

        def equal_states(module: nn.Module, states: Tensor) -> Tensor:
            replaced.add(module)
            largest = int(states[0].float().norm(dim=1).argmax())  # that of padding may be zero
            return states[:, largest : largest + 1].expand_as(states).contiguous()

        with replaced_states({call.site.module for call in limited}, equal_states):
            equal = probe_forward(decoder, probe_tokens(decoder, _LENGTH)).calls
    equal_call = {(call.site.module, call.site.number): call for call in equal}
    found = []
    for call in limited:
        same = equal_call.get((call.site.module, call.site.number))
        known = same is not None and call.site.module in replaced
        found.append(
            Behaviour(
                reach=FULL if call.visible is None else reach_of(call.visible, limits),
                uses_position=same is None or not known or _differs_by_position(same),
                logits=call.logits,
            )
        )
    return found


@contextmanager
def replaced_states(
    modules: Iterable[nn.Module], new: Callable[[nn.Module, Tensor], Tensor]
) -> Iterator[None]:
    """Give the modules other hidden states (1, s, hidden) than those they are called with."""

    def replace(
        module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        states = options.get("hidden_states", arguments[0] if arguments else None)
        if not isinstance(states, Tensor) or states.dim() != 3:
            return None
        given = new(module, states)
        return (
            tuple(given if value is states else value for value in arguments),
            {name: given if value is states else value for name, value in options.items()},
        )

    with ExitStack() as stack:
        for module in modules:
            hook = module.register_forward_pre_hook(replace, with_kwargs=True)
            stack.callback(hook.remove)
        yield


def _differs_by_position(call: ProbedCall) -> bool:
    rounding = ROUNDING.get(call.query.dtype, max(ROUNDING.values()))
    for tensor in (call.query, call.key):
        last = tensor[0, :, -_COMPARED:].float()  # (heads, 3, d)
        spread = last.amax(dim=1) - last.amin(dim=1)  # (heads, d)
        if spread.max() > rounding * last.abs().max():
            return True
    return False
