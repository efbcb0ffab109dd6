"""The budgets of all key heads of a model: a total share of keys, divided by an order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.budget.orders import UNIFORM, OrderedHeads
from attention_plasticity.budget.rule import budgets, rank_intervals, ranks
from attention_plasticity.export.gates import gates
from qk_toolkit.arrays import Array


@dataclass(frozen=True)
class Division:
    """Budgets and ranks of key heads. Heads of layers with a window are not counted."""

    heads: OrderedHeads
    keep: float
    spread: float
    budget: Array  # (n,) share of the keys that a head keeps; 1 in layers with a window
    rank: Array  # (n,) from 1 for the largest value; NaN in layers with a window
    rank_low: Array  # (n,) 95 % interval of the rank; NaN if errors are not known
    rank_high: Array  # (n,)

    @property
    def gates(self) -> Array | None:
        """(layers, key heads) 1 for the share `keep` of counted heads with the largest values.

        Heads of layers with a window have 1: they stay as they are. None without values.
        """
        if self.heads.order == UNIFORM:
            return None
        counted = ~self.heads.bounded
        found = np.ones(len(self.budget))
        found[counted] = gates(self.heads.value[counted], None, self.keep)
        return found.reshape(self.heads.shape)


def divide(heads: OrderedHeads, keep: float, spread: float) -> Division:
    """Divide the share `keep` of all keys among the heads of layers without a window."""
    counted = ~heads.bounded
    n = np.count_nonzero(counted)
    rank, low, high = np.full((3, len(heads.value)), np.nan)
    values = np.zeros(n) if heads.order == UNIFORM else heads.value[counted]  # (counted,)
    rank[counted] = ranks(values)
    if heads.deviations is not None:
        low[counted], high[counted] = rank_intervals(values, heads.deviations[counted])
    budget = np.ones(len(rank))
    budget[counted] = budgets(rank[counted], keep, spread)
    return Division(heads, keep, spread, budget, rank, low, high)
