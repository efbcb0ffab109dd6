"""From sums over the keys of a query to its attention columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qk_dump.attention_columns import MASS_BINS, AttentionRows

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


def attention_rows(
    columns: npt.NDArray[np.float32],
    sequence: npt.NDArray[np.int64],
    ids: npt.NDArray[np.integer[Any]] | None,
) -> AttentionRows:
    """The attention of queries (n, heads) from their columns (n, heads, COLUMNS).

    `sequence` (n,) is the text of every query, `ids` (b, s) are the tokens of the texts. Without
    them, there are no columns by token.
    """
    lse, largest, entropy, sinks = np.moveaxis(columns[..., :4], -1, 0)  # (n, heads) each
    first, duplicate, induction = np.moveaxis(columns[..., MASSES_END:-3], -1, 0)
    place, duplicates, inductions = np.moveaxis(columns[..., -3:].view(np.int32), -1, 0)
    rows = AttentionRows(lse, largest, entropy, sinks, columns[..., 4:MASSES_END], first, place)
    if ids is None:
        return rows
    return replace(
        rows,
        argmax_token=ids[sequence[:, None], place].astype(np.int32),
        duplicate_mass=duplicate,
        duplicate_keys=duplicates,
        induction_mass=induction,
        induction_keys=inductions,
    )
