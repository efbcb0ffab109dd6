"""Probabilities from the margins that the scorer computes."""

from __future__ import annotations

from scipy.special import ndtr

from attention_plasticity.numeric.query_model import Gaussian
from attention_plasticity.numeric.scores import margin_and_deviation, standardised
from qk_toolkit.arrays import Array


def win_probability(W: Array, gaussian: Gaussian) -> Array:
    """P(first key wins) for every key difference in `W` (pairs, d)."""
    p: Array = ndtr(standardised(*margin_and_deviation(W, gaussian)))
    return p
