"""From sums over the keys of a query to its attention columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qk_dump.attention_columns import MASS_BINS

COLUMNS = 4 + MASS_BINS  # lse, max_logit, entropy, sink_mass, then the masses by distance


@dataclass(frozen=True)
class Totals:
    """Sums over the keys that each query sees, of p = exp(logit − largest)."""

    largest: Tensor  # (…) largest logit
    total: Tensor  # (…) Σ p
    slope: Tensor  # (…) Σ p · (logit − largest)
    sink_share: Tensor  # (…) part of `total` on the first tokens
    shares: Tensor  # (…, bins) parts of `total` by distance

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
        return torch.cat([torch.stack(numbers, dim=-1), masses], dim=-1).float()
