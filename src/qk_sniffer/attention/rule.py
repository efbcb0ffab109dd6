"""Which keys a query of a layer sees, and how its logits are computed.

The sampled queries of one attention call. The tokens of a batch on a device, for the attention of
its queries to tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from qk_sniffer.model.attention_hooks import AttentionCall
from qk_sniffer.model.layout import LayerFacts
from qk_sniffer.model.logits import HIDDEN_BELOW, mask_of, sinks_of, sum_of_biases
from qk_sniffer.sampling.heads import KindRows


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


class SampledQueries(NamedTuple):
    """Vectors of sampled queries, their places in the batch, and their heads."""

    vectors: Tensor  # (heads, n, d)
    rows: KindRows  # n places
    heads: tuple[int, ...]  # numbers of the query heads
    group: int  # query heads that share a key head
    tokens: TextTokens | None = None  # of the batch; None if they are not known


class TextTokens:
    """Token ids (b, s) of the texts of a batch; what follows a text (padding) is never used."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids.to(torch.int32).contiguous()  # (b, s)

    def counts(self, sequence: Tensor, position: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) number of duplicate keys and of induction keys of every query, int32.

        `sequence`, `position` and `low` (n,) are the text of a query, its position, and the first
        key that it sees. It sees all keys from there to its own. An induction key comes directly
        after a token like that of the query.
        """
        first = sequence.long() * self.ids.shape[1]  # (n,) place of the first token of the text
        place = first + position
        before = first + (low - 1).clamp(min=0)  # (n,) the key before the first one
        kind = self.ids.flatten()[place].long() * self.ids.numel()  # (n,)
        up_to, from_low, from_before = (
            torch.searchsorted(self._ordered, kind + end) for end in (place, first + low, before)
        )
        return (up_to - from_low).int(), (up_to - from_before).int()

    @cached_property
    def _ordered(self) -> Tensor:
        """(b · s,) token · b · s + place of all tokens of the batch, sorted.

        Places of one token in one text are neighbours.
        """
        places = torch.arange(self.ids.numel(), device=self.ids.device)
        return (self.ids.flatten().long() * self.ids.numel() + places).sort().values


def matching_keys(tokens: Tensor, position: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """(r, keys) whether keys from `begin` on are duplicate keys, and induction keys.

    `tokens` (s,) are those of the text, `position` (r,) the queries. Keys after the query are not
    left out of the second one.
    """
    place = torch.arange(begin, end, device=tokens.device)  # (keys,)
    own = tokens[position][:, None]  # (r, 1)
    duplicate = (tokens[begin:end] == own) & (place < position[:, None])
    previous = tokens[(place - 1).clamp(min=0)]  # (keys,)
    return duplicate, (previous == own) & (place > 0)
