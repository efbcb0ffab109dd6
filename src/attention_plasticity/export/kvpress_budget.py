"""Budgets of key heads, in the format of `LUKVPress` of kvpress."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from attention_plasticity.export.budget_text import print_budget, print_use
from attention_plasticity.export.content import Content, array_file, csv_file, entries_of
from attention_plasticity.export.division import PERCENTS, prune_curves
from attention_plasticity.export.order import UNIFORM, OrderedHeads

FILE, TABLE = "budget.npy", "budget.csv"
_MEASURED = (
    "in kvpress 0.5.5 with SmolLM2-135M-Instruct and a Qwen2 of 0.5B (4-bit weights; contexts of "
    "3,072 tokens of English prose, 8 texts; SnapKV, Expected Attention and KeyDiff; 50, 75 and "
    "90 % compression) the output changed less (KL divergence) than with uniform budgets in 18 of "
    "18 cases, and less than with AdaKV in 17. Not tried: larger models, longer contexts, tasks, "
    "other languages."
)
EVIDENCE = {
    "ap_aligned": f"Measured with this order: {_MEASURED}",
    "aligned_plasticity": (
        "Measured with the order ap_aligned, the same quantity as a mean over the query heads of a "
        f"key head: {_MEASURED}"
    ),
    UNIFORM: "All key heads keep the same share, as without budgets.",
}
"""What was measured with an order."""
_OTHER = (
    "How well budgets in the order of {order} keep the output of a model was not measured with "
    "kvpress; see the order ap_aligned."
)
_BUDGETS = (
    "share of its keys that a head loses, for every percent of total compression; the total is "
    "that of the counted heads, and a head with a larger value never loses more"
)
_NOT_COUNTED = "heads of layers with a window or chunks lose no keys: their cache is bounded"
_SHOWN = (25, 50, 75, 90)  # percent of total compression in the table


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
    evidence = EVIDENCE.get(heads.order, _OTHER.format(order=heads.order))
    by_layer = curves.reshape(len(PERCENTS), *heads.shape)  # (99, layers, key heads)

    def show(folder: Path, console: Console) -> None:
        print_budget(heads, rule, table, evidence, console)
        print_use(folder / FILE, console)

    files = {FILE: array_file(by_layer), TABLE: csv_file(table)}
    return Content(files, entries_of(table), rules, evidence, show)
