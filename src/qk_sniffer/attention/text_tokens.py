"""The tokens of a batch on a device, for the attention of its queries to tokens."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


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
