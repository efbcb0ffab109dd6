"""Which keys a query of a layer sees, and how its logits are computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qk_sniffer.model.attention_hooks import AttentionCall
from qk_sniffer.model.layout import LayerFacts
from qk_sniffer.model.logits import HIDDEN_BELOW, mask_of, sinks_of, sum_of_biases


@dataclass(frozen=True)
class AttentionRule:
    """The logits of one attention call: `softcap · tanh(scale · q·k / softcap) + extra`."""

    scale: float
    softcap: float | None
    window: int | None  # tokens of the window or chunk; None for full attention
    chunked: bool
    sinks: Tensor | None = None  # (query heads,) learned logits
    extra: Tensor | None = None  # (b or 1, heads or 1, s, s) is added; -inf hides a key

    def first_visible(self, position: Tensor) -> Tensor:
        """(n,) the first key that each query sees, by window or chunk."""
        if self.window is None:
            return torch.zeros_like(position)
        if self.chunked:
            return position - position % self.window
        return (position - self.window + 1).clamp(min=0)


def rule_of(facts: LayerFacts, call: AttentionCall) -> AttentionRule | None:
    """The rule of a layer's call; None if its logits are not known."""
    logits = facts.logits
    if logits is None:
        return None
    sinks = sinks_of(call) if logits.sinks else None
    if logits.sinks and sinks is None:
        return None
    extra = None
    if facts.selective or logits.biased:
        extra = _extra(call)
        if extra is None:
            return None
    return AttentionRule(
        scale=facts.scale,
        softcap=facts.softcap,
        window=facts.window,
        chunked=facts.type == "chunked_attention",
        sinks=sinks,
        extra=extra,
    )


def _extra(call: AttentionCall) -> Tensor | None:
    """What the mask and the bias of a call add to the logits; None if they are no tensors."""
    mask, added = mask_of(call), sum_of_biases(call)
    if mask is not None and mask.dtype == torch.bool:
        hidden = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
        return hidden if added is None else hidden + added
    return None if added is None else added.masked_fill(added <= HIDDEN_BELOW, -torch.inf)
