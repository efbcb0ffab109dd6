"""From sums over the keys of a query to its attention columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qk_dump.columns import (
    ARGMAX_POSITION,
    DUPLICATE_KEYS,
    DUPLICATE_MASS,
    ENTROPY,
    FIRST_MASS,
    INDUCTION_KEYS,
    INDUCTION_MASS,
    LSE,
    MASS_BINS,
    MASSES,
    MAX_LOGIT,
    SINK_MASS,
)

MASSES_END = 4 + MASS_BINS
ARGMAX_PLACE = MASSES_END + 3
COLUMNS = MASSES_END + 6
"""lse, max_logit, entropy, sink_mass; the masses by distance; first_mass, duplicate_mass,
induction_mass; argmax_position, duplicate_keys, induction_keys as the bits of an int32."""


@dataclass(frozen=True)
class Totals:
    """Sums over the keys that each query sees, of p = exp(logit − largest)."""

    largest: Tensor  # (…) largest logit
    total: Tensor  # (…) Σ p
    slope: Tensor  # (…) Σ p · (logit − largest)
    sink_share: Tensor  # (…) part of `total` on the first tokens
    shares: Tensor  # (…, bins) parts of `total` by distance
    first_share: Tensor  # (…) part of `total` on token 0
    place: Tensor  # (…) position of the key with the largest logit
    by_token: ByToken | None  # None if the tokens are not known

    def columns(self, sinks: Tensor | None) -> Tensor:
        """(…, COLUMNS) float32; `sinks` (…) are learned logits that take part in the softmax."""
        lse = self.largest + self.total.log()
        if sinks is not None:
            lse = torch.logaddexp(lse, sinks.to(lse).expand_as(lse))
        unit = torch.exp(self.largest - lse)  # weight of the key with the largest logit
        # −Σ w ln w with ln w = (logit − largest) + (largest − lse)
        entropy = unit * (self.total * (lse - self.largest) - self.slope)
        numbers = [lse, self.largest, entropy.clamp(min=0), unit * self.sink_share]
        masses = unit[..., None] * self.shares
        shares, keys = [self.first_share], [self.place]
        if self.by_token is not None:
            shares += [self.by_token.duplicate_share, self.by_token.induction_share]
            keys += [self.by_token.duplicate_keys, self.by_token.induction_keys]
        else:
            shares += [torch.full_like(unit, torch.nan)] * 2
            keys += [torch.full_like(self.place, -1)] * 2
        found = [*numbers, *masses.unbind(-1), *(unit * share for share in shares)]
        bits = [as_bits(number.expand_as(unit)) for number in keys]
        return torch.stack([*(values.float() for values in found), *bits], dim=-1)


@dataclass(frozen=True)
class ByToken:
    """Parts of `total` on duplicate and induction keys, and the number of these keys."""

    duplicate_share: Tensor  # (…)
    induction_share: Tensor  # (…)
    duplicate_keys: Tensor  # (…)
    induction_keys: Tensor  # (…)


def as_bits(numbers: Tensor) -> Tensor:
    """int32 numbers in the bits of float32, which has no room for all of them as values."""
    return numbers.int().contiguous().view(torch.float32)


def attention_columns(columns: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    """The attention columns of the queries of a head, from numbers (n, COLUMNS).

    Without tokens, the columns by token are not known. The token of the key with the largest weight
    is not among them.
    """
    places = columns[:, ARGMAX_PLACE:].view(np.int32)  # (n, 3)
    return {
        LSE: columns[:, 0],
        MAX_LOGIT: columns[:, 1],
        ENTROPY: columns[:, 2],
        SINK_MASS: columns[:, 3],
        MASSES: columns[:, 4:MASSES_END],
        FIRST_MASS: columns[:, MASSES_END],
        DUPLICATE_MASS: columns[:, MASSES_END + 1],
        INDUCTION_MASS: columns[:, MASSES_END + 2],
        ARGMAX_POSITION: places[:, 0],
        DUPLICATE_KEYS: places[:, 1],
        INDUCTION_KEYS: places[:, 2],
    }
