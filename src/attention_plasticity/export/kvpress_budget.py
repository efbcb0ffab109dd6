"""Budgets of key heads, in the format of `LUKVPress` of kvpress."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from attention_plasticity.export.budget_text import print_budget, print_use
from attention_plasticity.export.content import Content, array_file, csv_file, entries_of
from attention_plasticity.export.division import PERCENTS, RULES, default_rule, prune_curves
from attention_plasticity.export.order import UNIFORM, OrderedHeads
from qk_toolkit.arrays import Array

FILE, TABLE = "budget.npy", "budget.csv"
_WHERE = (
    "In kvpress 0.5.5 with SmolLM2-135M-Instruct (4-bit weights; contexts of 2,048 to 7,168 tokens "
    "of English prose; five scorers; 25 to 90 % compression; rule cube; "
    "docs/findings-compression.md) budgets in this order "
)
EVIDENCE = {
    "aligned_plasticity": (
        f"{_WHERE}changed the output less (KL divergence) than equal budgets in 55 of 60 settings. "
        "They did not with 90 % of 2,048 tokens pruned, for four of the scorers. Not tried: models "
        "above 0.5B, long generation, other languages."
    ),
    "static_error": f"{_WHERE}changed the output less than equal budgets in 55 of 60 settings.",
    "ap_aligned": f"{_WHERE}changed the output less than equal budgets in 60 of 60 settings.",
    "ap_overall": f"{_WHERE}changed the output less than equal budgets in 43 of 60 settings.",
    "far_mass": f"{_WHERE}changed the output more than equal budgets in 53 of 60 settings.",
    "ap_attended": (
        f"{_WHERE}were not tried. Those by attended plasticity of the queries as captured, without "
        "turning them to one position, changed the output more than equal budgets in all 60 "
        "settings."
    ),
    UNIFORM: "All key heads keep the same share, as without budgets.",
}
"""What was measured with an order."""
_OTHER = "Budgets in this order were not measured."
_OTHER_RULE = " This order was not measured with the rule {rule}."
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
    values = np.ones(len(heads.value)) if heads.order == UNIFORM else heads.value  # (n,)
    curves = prune_curves(values, heads.counted, rule)  # (99, n)
    rank, low, high = heads.ranks()  # (n,) each
    kept = {f"kept_at_{percent}": np.round(1.0 - curves[percent - 1], 12) for percent in _SHOWN}
    table = heads.table(rank=rank, rank_low=low, rank_high=high, **kept)
    rules = {**heads.rules(), "rule": f"{rule}: {RULES[rule]}", "budgets": _BUDGETS}
    if not heads.counted.all():
        rules["not_counted"] = _NOT_COUNTED
    evidence = EVIDENCE.get(heads.order, _OTHER)
    if heads.order in EVIDENCE and heads.order != UNIFORM and rule != "cube":
        evidence += _OTHER_RULE.format(rule=rule)
    by_layer = curves.reshape(len(PERCENTS), *heads.shape)  # (99, layers, key heads)

    def show(folder: Path, console: Console) -> None:
        print_budget(heads, rule, table, evidence, console)
        print_use(folder / FILE, console)

    files = {FILE: array_file(by_layer), TABLE: csv_file(table)}
    return Content(files, entries_of(table), rules, evidence, show)
