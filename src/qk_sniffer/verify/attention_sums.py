"""Compare the attention columns of captured queries with the weights of the attention function."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from qk_dump.columns import (
    DUPLICATE_MASS,
    ENTROPY,
    FIRST_MASS,
    INDUCTION_MASS,
    LSE,
    MASS_BINS,
    MASSES,
    MAX_LOGIT,
    SINK_MASS,
    SINK_TOKENS,
    first_distances,
)
from qk_dump.rows import Rows
from qk_toolkit.arrays import Array


def weight_sums(weights: Tensor, tokens: Sequence[int]) -> Array:
    """(heads, n, 6 + bins) of the weights (heads, n, n) that the function applies to values.

    Largest weight, entropy relative to its maximum, weight of the first tokens, weights by
    distance, weight of token 0, of duplicate keys and of induction keys. `tokens` (n,) is the text.
    """
    weights = weights.double()
    n = weights.shape[-1]
    entropy = -torch.xlogy(weights, weights).sum(dim=-1)  # (heads, n)
    place = torch.arange(n)
    starts = torch.tensor(first_distances())  # (bins,)
    number = torch.bucketize((place[:, None] - place).clamp(min=0), starts, right=True) - 1
    masses = weights.new_zeros((*weights.shape[:2], MASS_BINS))
    masses.scatter_add_(2, number.expand_as(weights), weights)
    sums = [weights.amax(dim=-1), entropy / _most(n), weights[..., :SINK_TOKENS].sum(dim=-1)]
    ids = torch.tensor(list(tokens))  # (n,)
    same = ids[:, None] == ids  # (n, n)
    duplicate = same & (place[:, None] > place)
    induction = torch.nn.functional.pad(same[:, :-1], (1, 0))
    others = [weights[..., 0], (weights * duplicate).sum(dim=-1), (weights * induction).sum(dim=-1)]
    parts = [torch.stack(sums, dim=-1), masses, torch.stack(others, dim=-1)]
    found: Array = torch.cat(parts, dim=-1).numpy()
    return found


def captured_sums(rows: Rows) -> Array:
    """(n, 6 + bins), the same sums from the attention columns of one head."""
    largest = np.exp(rows[MAX_LOGIT].astype(np.float64) - rows[LSE])  # (n,)
    relative = rows[ENTROPY] / _most(len(rows))
    sums = np.stack([largest, relative, rows[SINK_MASS]], axis=1)
    others = [rows[name] for name in (FIRST_MASS, DUPLICATE_MASS, INDUCTION_MASS)]
    return np.concatenate([sums, rows[MASSES], np.stack(others, axis=1)], axis=1)


def _most(n: int) -> float:
    """The largest entropy of n weights."""
    return math.log(max(n, 2))
