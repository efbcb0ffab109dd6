"""Budgets of key heads for kvpress, from a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from attention_plasticity.export.division import DEFAULT_RULE, PERCENTS, RULES, prune_curves
from attention_plasticity.export.folder import Content, array_file, text_file
from attention_plasticity.export.heads import entries
from attention_plasticity.export.order import UNIFORM, OrderedHeads
from attention_plasticity.export.settings import ExportSettings
from attention_plasticity.tables.intervals import half_width
from qk_toolkit.arrays import Array
from qk_toolkit.formatting import count, index_ranges

_CURVES, _TABLE = "budget.npy", "budget.csv"
_WHERE = (
    "In kvpress 0.5.5 with SmolLM2-135M and Qwen2.5-Coder-0.5B (4-bit weights; contexts of 2,048 "
    "to 7,168 tokens of English prose; three scorers; 25 to 90 % compression; "
    "docs/findings-compression.md) budgets in this order changed the output less (KL divergence) "
    "than equal budgets in 84 of 85 settings. Not tried: models above 0.5B, long generation."
)
EVIDENCE = {
    "aligned_plasticity": _WHERE,
    "static_error": _WHERE,
    UNIFORM: "All key heads keep the same share, as without budgets.",
}
"""What was measured with an order."""
_NOT_MEASURED = "Budgets in this order were not measured."
_BUDGETS = (
    "share of its keys that a head loses, for every percent of total compression; the total is "
    "that of the counted heads, and a head with a larger value never loses more"
)
_NOT_COUNTED = "heads of layers with a window or chunks lose no keys: their cache is bounded"
_SHOWN = (25, 50, 75, 90)  # percent of total compression in the table
_EXTREMES = 4  # heads with the largest values, and with the smallest
_HEADINGS = {
    **{"layer": "layer", "k_head": "key head", "value": "value", "half": "± (95 %)"},
    **{"rank": "rank", "rank_low": "from", "rank_high": "to", "kept_at_50": "kept at 50 %"},
}
"""Columns that are printed."""


def kept_at(heads: OrderedHeads, percent: int) -> Array:
    """(n,) shares of their keys that heads keep by the default rule."""
    return np.asarray(1.0 - prune_curves(heads.value, heads.counted)[percent - 1])


def kvpress_budget(heads: OrderedHeads, settings: ExportSettings) -> Content:
    """`budget.npy` and `budget.csv`: the keys of the counted heads, divided by their values."""
    rule = settings.rule
    values = np.ones(len(heads.value)) if heads.order == UNIFORM else heads.value  # (n,)
    curves = prune_curves(values, heads.counted, rule)  # (99, n)
    rank, low, high = heads.ranks()  # (n,) each
    kept = {f"kept_at_{percent}": np.round(1.0 - curves[percent - 1], 12) for percent in _SHOWN}
    table = heads.table(rank=rank, rank_low=low, rank_high=high, **kept)
    rules = {**heads.rules(), "rule": f"{rule}: {RULES[rule]}", "budgets": _BUDGETS}
    if not heads.counted.all():
        rules["not_counted"] = _NOT_COUNTED
    evidence = EVIDENCE.get(heads.order, _NOT_MEASURED)
    if heads.order in EVIDENCE and heads.order != UNIFORM and rule != DEFAULT_RULE:
        evidence += f" This order was not measured with the rule {rule}."
    csv = table.to_csv(index=False, na_rep="nan", lineterminator="\n")
    by_layer = curves.reshape(len(PERCENTS), *heads.shape)  # (99, layers, key heads)

    def show(folder: Path, console: Console) -> None:
        _print_budget(heads, rule, table, console)
        console.print(Text(evidence))
        console.print(Text("from kvpress import SnapKVPress"))
        console.print(Text("from attention_plasticity.kvpress import BudgetPress"))
        file = folder / _CURVES
        console.print(Text(f'press = BudgetPress(SnapKVPress(), "{file}", compression_ratio=0.5)'))

    files = {_CURVES: array_file(by_layer), _TABLE: text_file(csv)}
    return Content(files, entries(table.to_dict("records")), rules, evidence, show)


def _print_budget(heads: OrderedHeads, rule: str, table: pd.DataFrame, console: Console) -> None:
    """Print the extremes of budget.csv, and how sure the order is."""
    run = heads.run
    table = table.assign(half=half_width(heads.standard_error, heads.groups))
    counted = table[table["counted"] == 1]
    kept = counted["kept_at_50"]
    texts = "" if math.isnan(run.context) else f", texts of up to {run.context:,.0f} tokens"
    how = heads.order if heads.order == UNIFORM else f"{heads.order}, rule {rule}"
    console.print(
        f"{run.model_name}: {count(len(counted), 'key head')}{texts}; order {how}; kept at 50 % "
        f"compression: {kept.min():.3g} to {kept.max():.3g} of the keys"
    )
    others = table[table["counted"] == 0]
    if len(others):
        console.print(
            f"not counted: {count(len(others), 'key head')} of layers "
            f"{index_ranges(set(others['layer'].tolist()))}: a window or chunks bound their cache, "
            "and they keep all of it"
        )
    if heads.order != UNIFORM:
        console.print(Text(f"\n{_extremes(counted)}\n"))
        console.print(Text(_about_ranks(counted, heads.errors_from)))


def _extremes(table: pd.DataFrame) -> str:
    """The first and the last heads in the order of ranks, as text."""
    ordered = table.sort_values("rank", kind="stable")
    first = ordered.head(_EXTREMES)
    shown = pd.concat([first, ordered.drop(first.index).tail(_EXTREMES)])
    whole = dict.fromkeys(("rank", "from", "to"), "{:g}".format)
    return (
        shown[[*_HEADINGS]]
        .rename(columns=_HEADINGS)
        .to_string(index=False, na_rep="–", float_format="{:.4f}".format, formatters=whole)
    )


def _about_ranks(table: pd.DataFrame, errors_from: str) -> str:
    """How sure the ranks are."""
    own = table[table["filled"] == 0]
    width = own["rank_high"] - own["rank_low"]
    if width.isna().any():
        return "How sure the ranks are is not known: some heads have no standard error."
    return (
        f"The 95 % interval of a rank spans {width.median() + 1:.3g} of {len(table)} ranks in the "
        f"median, from {errors_from}."
    )
