"""What `export --to kvpress-budget` prints."""

from __future__ import annotations

import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.export.order import UNIFORM, OrderedHeads
from qk_toolkit.formatting import count, index_ranges

_EXTREMES = 4  # heads with the largest values, and with the smallest
_HALF_INTERVAL = 1.96  # of 95 %, in standard errors


def print_budget(
    heads: OrderedHeads, rule: str, table: pd.DataFrame, evidence: str, console: Console
) -> None:
    """Print the extremes of budget.csv, how sure the order is, and what was measured with it."""
    run, counted = heads.run, table[table["counted"] == 1]
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
        console.print(_extremes(counted.sort_values("rank", kind="stable")))
        console.print(Text(_about_ranks(counted[counted["filled"] == 0], heads.errors_from)))
    console.print(Text(evidence))


def print_use(file: Path, console: Console) -> None:
    """Print how the file is used."""
    console.print(Text("from kvpress import SnapKVPress"))
    console.print(Text("from attention_plasticity.kvpress import BudgetPress"))
    console.print(Text(f'press = BudgetPress(SnapKVPress(), "{file}", compression_ratio=0.5)'))


def _extremes(table: pd.DataFrame) -> Table:
    """The first and the last heads of a table in the order of ranks."""
    shown = Table(box=box.SIMPLE, pad_edge=False)
    names = ("layer", "key head", "value", "± (95 %)", "rank", "rank (95 %)", "kept at 50 %")
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)
    rows: list[dict[Hashable, Any]] = table.to_dict("records")
    for place, row in enumerate(rows):
        if _EXTREMES <= place < len(table) - _EXTREMES:
            if place == _EXTREMES:
                shown.add_row("…")
            continue
        error = _HALF_INTERVAL * row["value_se"]
        shown.add_row(
            f"{row['layer']}",
            f"{row['k_head']}",
            f"{'mean ' if row['filled'] else ''}{row['value']:.4f}",
            "–" if math.isnan(error) else f"{error:.4f}",
            f"{row['rank']:g}",
            "–" if math.isnan(row["rank_low"]) else f"{row['rank_low']:g} to {row['rank_high']:g}",
            f"{row['kept_at_50']:.4f}",
        )
    return shown


def _about_ranks(table: pd.DataFrame, errors_from: str) -> str:
    """How sure the ranks are."""
    width = table["rank_high"] - table["rank_low"]
    if width.isna().any():
        return "How sure the ranks are is not known: some heads have no standard error."
    return (
        f"The 95 % interval of a rank spans {width.median() + 1:.3g} of {len(table)} ranks in the "
        f"median, from {errors_from}."
    )
