"""Queries of one attention call whose attention is computed, and the tokens of its texts."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from qk_sniffer.sampling.rows import KindRows
from qk_toolkit.arrays import Ints


class SampledQueries(NamedTuple):
    """Vectors of sampled queries, their places in the texts, and their heads."""

    vectors: Tensor  # (heads, n, d)
    rows: KindRows  # n places
    starts: Ints  # (texts,) where each text begins among the tokens of all texts
    heads: tuple[int, ...]  # numbers of the query heads
    group: int  # query heads that share a key head
    tokens: TextTokens | None = None  # of all texts; None if they are not known


class SpacedQueries(NamedTuple):
    """Queries of one text that measure the attention of its keys."""

    vectors: Tensor  # (k, group, n, d)
    position: Tensor  # (n,) ascending
    on_host: Tensor  # (n,) the same in host memory
    key_heads: tuple[int, ...]  # k places in the tensor of keys
    members: Tensor  # (k, group) numbers of the query heads


class TextTokens:
    """Token ids (tokens,) of all texts, one text after the other."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids.to(torch.int32).contiguous()  # (tokens,)

    def counts(self, start: Tensor, position: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) number of duplicate keys and of induction keys of every query, int32.

        `start`, `position` and `low` (n,) are the place of the first token of its text, the
        position of the query, and that of the first key that it sees. It sees all keys from there
        to its own. An induction key comes directly after a token like that of the query.
        """
        first = start.long()  # (n,)
        place = first + position
        before = first + (low - 1).clamp(min=0)  # (n,) the key before the first one
        kind = self.ids[place].long() * self.ids.numel()  # (n,)
        up_to, from_low, from_before = (
            torch.searchsorted(self._ordered, kind + end) for end in (place, first + low, before)
        )
        return (up_to - from_low).int(), (up_to - from_before).int()

    @cached_property
    def _ordered(self) -> Tensor:
        """(tokens,) id · tokens + place of all tokens, sorted.

        Places of one token in one text are neighbours.
        """
        places = torch.arange(self.ids.numel(), device=self.ids.device)
        return (self.ids.long() * self.ids.numel() + places).sort().values


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
