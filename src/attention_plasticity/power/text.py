"""The text of the verb `power`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from attention_plasticity.power.prediction import Change, cheapest_change, typical_error
from qk_toolkit.formatting import count

_PARTS = {"texts": "texts", "queries": "queries", "keys": "keys", "pairs": "key pairs"}
_CHANGES = (
    Change(),
    Change(pairs=2),
    Change(pairs=4),
    Change(keys=2),
    Change(keys=4),
    Change(queries=2),
    Change(queries=4),
    Change(texts=2),
    Change(texts=4),
    Change(keys=2, pairs=4),
)


def print_power(
    heads: Sequence[VarianceParts], all_heads: int, wanted: float | None, console: Console
) -> None:
    """Print the parts of the error, predicted errors and one sentence of advice."""
    now = typical_error(heads, Change())
    measured = f"{count(len(heads), 'head')} of {all_heads:,}"
    console.print(
        f"standard error of ap_overall of a head: {now:.4f} (root mean square, {measured})"
    )
    if now == 0:
        console.print("The error is 0, so no change can reduce it.")
        return
    console.print(_parts_table(heads))
    console.print(_changes_table(heads))
    console.print(Text(advice(heads, wanted)))


def advice(heads: Sequence[VarianceParts], wanted: float | None) -> str:
    """One sentence: the cheapest change that reaches the wanted error, or the best single one."""
    now = typical_error(heads, Change())
    if wanted is None:
        return _best_single(heads, now)
    if now <= wanted:
        return f"The error is {_short(now)} already; {_short(wanted)} needs no change."
    change = cheapest_change(heads, wanted)
    if change is None:
        return (
            f"No change up to 16 times of everything reaches an error of {_short(wanted)}; "
            f"the error is {_short(now)} now."
        )
    then = typical_error(heads, change)
    return (
        f"The cheapest change for an error of {_short(wanted)}: {change}. "
        f"It would change the error of a head from {_short(now)} to {_short(then)}."
    )


def _best_single(heads: Sequence[VarianceParts], now: float) -> str:
    """What four times of one thing would do, and what would change little."""
    errors = {
        name: typical_error(heads, change)
        for name, change in (
            ("four times the key pairs", Change(pairs=4)),
            ("four times the keys of every text", Change(keys=4)),
            ("four times the queries of every text", Change(queries=4)),
            ("four times the texts", Change(texts=4)),
        )
    }
    more_texts = errors["four times the texts"]
    best = min(list(errors)[:3], key=lambda name: errors[name])
    if errors[best] > 0.95 * now:
        return (
            f"Only more texts help: four times the texts would cut the error of a head from "
            f"{_short(now)} to {_short(more_texts)}."
        )
    text = (
        f"Without more texts, {best} would cut the error of a head most, "
        f"from {_short(now)} to {_short(errors[best])}"
    )
    useless = [name for name, error in errors.items() if error > 0.95 * now]
    if useless:
        text += f"; {' and '.join(useless)} would change it by less than 5 %"
    return f"{text}."


def _parts_table(heads: Sequence[VarianceParts]) -> Table:
    table = Table(box=box.SIMPLE, title="Where the squared error comes from", title_justify="left")
    for name in ("source", "share", "now"):
        table.add_column(name, justify="left" if name == "source" else "right")
    sums = {name: math.fsum(getattr(parts, name) for parts in heads) for name in _PARTS}
    sums["texts"] = max(0.0, sums["texts"])
    total = math.fsum(sums.values())
    sizes = {
        "texts": f"{_mean([parts.n_texts for parts in heads]):,.0f}",
        "queries": f"{_mean([parts.n_queries for parts in heads]):,.0f}",
        "keys": f"{_mean([parts.n_keys for parts in heads]):,.0f}",
        "pairs": f"{_mean([parts.pairs_per_bucket for parts in heads]):,.0f} per key bucket",
    }
    for field, name in _PARTS.items():
        table.add_row(name, f"{100 * sums[field] / total:.0f} %", sizes[field])
    return table


def _changes_table(heads: Sequence[VarianceParts]) -> Table:
    table = Table(box=box.SIMPLE, title="Error to expect", title_justify="left")
    table.add_column("sample")
    table.add_column("standard error", justify="right")
    table.add_column("of now", justify="right")
    now = typical_error(heads, Change())
    for change in _CHANGES:
        error = typical_error(heads, change)
        table.add_row(str(change), f"{error:.4f}", f"{100 * error / now:.0f} %")
    return table


def _short(error: float) -> str:
    return f"{error:.3g}" if error < 0.001 else f"{error:.4f}".rstrip("0")


def _mean(values: Sequence[int]) -> float:
    return math.fsum(values) / len(values)
