"""Budgets of key heads, in the format of `LUKVPress` of kvpress."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.export.content import Content, array_file, csv_file, entries_of
from attention_plasticity.export.division import PERCENTS, prune_curves
from attention_plasticity.export.order import UNIFORM, OrderedHeads
from qk_toolkit.arrays import Array

FILE, TABLE = "budget.npy", "budget.csv"
EVIDENCE = {
    "aligned_plasticity": (
        "Measured with kvpress 0.5.5 in SmolLM2-135M-Instruct and in a Qwen2 of 0.5B (4-bit "
        "weights; 3,072 tokens of English prose; SnapKV, Expected Attention and KeyDiff; 50, 75 "
        "and 90 % compression): the output changed less (KL divergence) than with uniform budgets "
        "in 18 of 18 cases, and less than with AdaKV in 17. Not tried: larger models, longer "
        "contexts, tasks, other languages."
    ),
    UNIFORM: "All key heads keep the same share; this is the compression without budgets.",
}
"""What was measured with an order, in one sentence or two."""
_OTHER = (
    "How well budgets in the order of {order} keep the output of a model was not measured with "
    "kvpress; the order aligned_plasticity was."
)
_BUDGETS = (
    "share of its keys that a head loses, for every percent of total compression; the total is "
    "that of the counted heads, and a head with a larger value never loses more"
)
_NOT_COUNTED = "heads of layers with a window or chunks lose no keys: their cache is bounded"
_SHOWN = (25, 50, 75, 90)  # percent of total compression in the table


@dataclass(frozen=True)
class Budget:
    """The shares of keys that heads lose, and their ranks."""

    heads: OrderedHeads
    rule: str
    curves: Array  # (99, n) share to prune at 1, 2, …, 99 % of total compression
    rank: Array  # (n,) from 1 for the largest value; NaN in layers with a window or chunks
    rank_low: Array  # (n,) 95 % interval of the rank; NaN if errors are not known
    rank_high: Array  # (n,)

    @property
    def evidence(self) -> str:
        """What was measured with the order."""
        order = self.heads.order
        return EVIDENCE.get(order, _OTHER.format(order=order))

    def kept_at(self, percent: int) -> Array:
        """(n,) share of its keys that a head keeps at a percentage of total compression."""
        return np.asarray(np.round(1.0 - self.curves[percent - 1], 12))

    def content(self) -> Content:
        """`budget.npy` and `budget.csv`."""
        kept = {f"kept_at_{percent}": self.kept_at(percent) for percent in _SHOWN}
        place = {"rank": self.rank, "rank_low": self.rank_low, "rank_high": self.rank_high}
        table = self.heads.table(**place, **kept)
        curves = self.curves.reshape(len(PERCENTS), *self.heads.shape)  # (99, layers, key heads)
        rules = {**self.heads.rules(), "rule": self.rule, "budgets": _BUDGETS}
        if not self.heads.counted.all():
            rules["not_counted"] = _NOT_COUNTED
        files = {FILE: array_file(curves), TABLE: csv_file(table)}
        return Content(files, entries_of(table), rules, self.evidence)


def budget_of(heads: OrderedHeads, rule: str) -> Budget:
    """Divide the keys of the counted heads by their values."""
    values = np.zeros(len(heads.value)) if heads.order == UNIFORM else heads.value  # (n,)
    return Budget(heads, rule, prune_curves(values, heads.counted, rule), *heads.ranks())
