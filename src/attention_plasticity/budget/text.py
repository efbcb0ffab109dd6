"""What the verb `budget` prints."""

from __future__ import annotations

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.budget.division import Division
from attention_plasticity.budget.evidence import EVIDENCE
from attention_plasticity.budget.orders import UNIFORM
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.formatting import count, index_ranges

_SHOWN = 5


def print_budget(run: FinishedRun, division: Division, console: Console) -> None:
    """Print the smallest and the largest budgets, and what is known about the order."""
    heads = division.heads
    counted = np.flatnonzero(~heads.bounded)
    budget = division.budget[counted]  # (counted,)
    texts = "" if np.isnan(run.context) else f", texts of up to {run.context:,.0f} tokens"
    console.print(
        f"{run.model_name}: {count(len(counted), 'key head')}{texts}, order {heads.order}; "
        f"mean budget {budget.mean():.4g}, from {budget.min():.3g} to {budget.max():.3g}"
    )
    if len(counted) < len(heads.layer):
        layers = index_ranges(set(heads.layer[heads.bounded].tolist()))
        number = count(len(heads.layer) - len(counted), "key head")
        console.print(
            f"not counted: {number} of layers {layers}: their window bounds their cache, and they "
            "keep all of it"
        )
    if heads.order != UNIFORM:
        console.print(_extremes(division, counted))
        console.print(Text(_about_ranks(division, counted)))
    console.print(Text(EVIDENCE[heads.order]))


def _extremes(division: Division, counted: np.ndarray) -> Table:
    """The heads with the largest and the smallest budgets."""
    heads = division.heads
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("key head")
    for name in ("budget", heads.column or "value", "±", "rank", "95 % interval"):
        table.add_column(name, justify="right")
    places = counted[np.argsort(division.rank[counted], kind="stable")]
    shown = places.tolist()
    if len(shown) > 2 * _SHOWN:
        shown = [*shown[:_SHOWN], None, *shown[-_SHOWN:]]
    for place in shown:
        if place is None:
            table.add_row("…")
            continue
        error = heads.standard_error[place]
        low, high = division.rank_low[place], division.rank_high[place]
        table.add_row(
            f"layer {heads.layer[place]} key head {heads.k_head[place]}",
            f"{division.budget[place]:.4f}",
            f"{heads.value[place]:.4f}",
            "–" if np.isnan(error) else f"{error:.4f}",
            f"{division.rank[place]:g}",
            "–" if np.isnan(low) else f"{low:g} to {high:g}",
        )
    return table


def _about_ranks(division: Division, counted: np.ndarray) -> str:
    """How sure the ranks are."""
    width = (division.rank_high - division.rank_low)[counted]
    if np.isnan(width).any():
        return "How sure the ranks are is not known: some heads have no standard error."
    return (
        f"The 95 % interval of a rank spans {np.median(width) + 1:.3g} of {len(counted)} ranks in "
        f"the median, from {division.heads.errors_from}."
    )
