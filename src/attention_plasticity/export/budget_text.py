"""What `export --to kvpress-budget` prints."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.export.kvpress_budget import FILE, Budget
from attention_plasticity.export.order import UNIFORM
from qk_toolkit.formatting import count, index_ranges

_EXTREMES = 4  # heads with the largest values, and with the smallest
_HALF_INTERVAL = 1.96  # of 95 %, in standard errors


def print_budget(budget: Budget, folder: Path, console: Console) -> None:
    """Print the extremes, how sure the order is, and how the file is used."""
    heads = budget.heads
    run, counted = heads.run, np.flatnonzero(heads.counted)
    kept = budget.kept_at(50)[counted]  # (counted,)
    texts = "" if math.isnan(run.context) else f", texts of up to {run.context:,.0f} tokens"
    console.print(
        f"{run.model_name}: {count(len(counted), 'key head')}{texts}; order {heads.order}, rule "
        f"{budget.rule}; kept at 50 % compression: {kept.min():.3g} to {kept.max():.3g} of the keys"
    )
    if len(counted) < len(heads.value):
        layers = index_ranges(set(heads.layer[~heads.counted].tolist()))
        number = count(len(heads.value) - len(counted), "key head")
        console.print(
            f"not counted: {number} of layers {layers}: a window or chunks bound their cache, and "
            "they keep all of it"
        )
    if heads.order != UNIFORM:
        console.print(_extremes(budget, counted[np.argsort(budget.rank[counted], kind="stable")]))
        console.print(Text(_about_ranks(budget)))
    console.print(Text(budget.evidence))
    console.print(Text("from attention_plasticity.kvpress import BudgetPress"))
    place = str(folder / FILE)
    console.print(Text(f'press = BudgetPress(SnapKVPress(), "{place}", compression_ratio=0.5)'))


def _extremes(budget: Budget, places: np.ndarray) -> Table:
    """The heads with the largest and the smallest values; `places` is in the order of ranks."""
    heads = budget.heads
    table = Table(box=box.SIMPLE, pad_edge=False)
    names = ("layer", "key head", "value", "± (95 %)", "rank", "rank (95 %)", "kept at 50 %")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    shown = places.tolist()
    if len(shown) > 2 * _EXTREMES:
        shown = [*shown[:_EXTREMES], None, *shown[-_EXTREMES:]]
    kept, error = budget.kept_at(50), _HALF_INTERVAL * heads.standard_error  # (n,)
    for place in shown:
        if place is None:
            table.add_row("…")
            continue
        low, high = budget.rank_low[place], budget.rank_high[place]
        table.add_row(
            f"{heads.layer[place]}",
            f"{heads.k_head[place]}",
            f"{'mean ' if heads.filled[place] else ''}{heads.value[place]:.4f}",
            "–" if math.isnan(error[place]) else f"{error[place]:.4f}",
            f"{budget.rank[place]:g}",
            "–" if math.isnan(low) else f"{low:g} to {high:g}",
            f"{kept[place]:.4f}",
        )
    return table


def _about_ranks(budget: Budget) -> str:
    """How sure the ranks are."""
    heads = budget.heads
    width = (budget.rank_high - budget.rank_low)[heads.counted & ~heads.filled]
    if np.isnan(width).any():
        return "How sure the ranks are is not known: some heads have no standard error."
    return (
        f"The 95 % interval of a rank spans {np.median(width) + 1:.3g} of {heads.counted.sum()} "
        f"ranks in the median, from {heads.errors_from}."
    )
