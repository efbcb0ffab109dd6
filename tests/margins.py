"""Probabilities from the margins that the scorer computes."""

from __future__ import annotations

from scipy.special import ndtr

from attention_plasticity.plasticity import Array, standardised_margin
from attention_plasticity.query_model import Gaussian


def win_probability(W: Array, gaussian: Gaussian) -> Array:
    """P(first key wins) for every key difference in `W` (pairs, d)."""
    p: Array = ndtr(standardised_margin(W, gaussian))
    return p
