"""Budgets of key heads, in the format of `LUKVPress` of kvpress."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from attention_plasticity.export.budget_text import print_budget, print_use
from attention_plasticity.export.content import Content, array_file, csv_file, entries_of
from attention_plasticity.export.division import PERCENTS, default_rule, prune_curves
from attention_plasticity.export.order import UNIFORM, OrderedHeads
from qk_toolkit.arrays import Array

FILE, TABLE = "budget.npy", "budget.csv"
EVIDENCE = {
    "aligned_plasticity": (
        "In kvpress 0.5.5 with SmolLM2-135M-Instruct (4-bit weights; contexts of 2,048 to 7,168 "
        "tokens of English prose; five scorers; 25 to 90 % compression; rule cube) the output "
        "changed less (KL divergence) than with equal budgets in 55 of 60 settings and than with "
        "AdaKV in 57. With 90 % of 2,048 tokens pruned it changed no less than with equal budgets "
        "for four of the scorers (docs/findings-compression.md). Not tried: larger models, long "
        "generation, other languages."
    ),
    UNIFORM: "All key heads keep the same share, as without budgets.",
}
"""What was measured with an order."""
_OTHER = (
    "Not measured as thoroughly as the order aligned_plasticity; docs/findings-compression.md has "
    "some comparisons."
)
_BUDGETS = (
    "share of its keys that a head loses, for every percent of total compression; the total is "
    "that of the counted heads, and a head with a larger value never loses more"
)
_NOT_COUNTED = "heads of layers with a window or chunks lose no keys: their cache is bounded"
_SHOWN = (25, 50, 75, 90)  # percent of total compression in the table


def kept_at(heads: OrderedHeads, percent: int) -> Array:
    """(n,) shares of their keys that heads keep by the default rule of their order."""
    rule = default_rule(heads.order)
    return np.asarray(1.0 - prune_curves(heads.value, heads.counted, rule)[percent - 1])


def kvpress_budget(heads: OrderedHeads, rule: str) -> Content:
    """`budget.npy` and `budget.csv`: the keys of the counted heads, divided by their values."""
    values = np.zeros(len(heads.value)) if heads.order == UNIFORM else heads.value  # (n,)
    curves = prune_curves(values, heads.counted, rule)  # (99, n)
    rank, low, high = heads.ranks()  # (n,) each
    kept = {f"kept_at_{percent}": np.round(1.0 - curves[percent - 1], 12) for percent in _SHOWN}
    table = heads.table(rank=rank, rank_low=low, rank_high=high, **kept)
    rules = {**heads.rules(), "rule": rule, "budgets": _BUDGETS}
    if not heads.counted.all():
        rules["not_counted"] = _NOT_COUNTED
    evidence = EVIDENCE.get(heads.order, _OTHER)
    by_layer = curves.reshape(len(PERCENTS), *heads.shape)  # (99, layers, key heads)

    def show(folder: Path, console: Console) -> None:
        print_budget(heads, rule, table, evidence, console)
        print_use(folder / FILE, console)

    files = {FILE: array_file(by_layer), TABLE: csv_file(table)}
    return Content(files, entries_of(table), rules, evidence, show)
