"""The text of the verb `power`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from attention_plasticity.power.prediction import (
    LEAST_PAIRS,
    LEAST_QUERIES,
    Change,
    Limits,
    RowCounts,
    cheapest_change,
    error_range,
    typical_error,
)
from attention_plasticity.tables.main_plasticity import PlasticityColumns
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
    Change(queries=4, keys=4),
    Change(queries=16, keys=16),
    Change(texts=2),
    Change(texts=4),
    Change(keys=2, pairs=4),
)
_WITHOUT_TEXTS = (Change(pairs=4), Change(keys=4), Change(queries=4), Change(queries=4, keys=4))


def print_power(
    heads: Sequence[VarianceParts],
    all_heads: int,
    rows: RowCounts,
    wanted: float | None,
    shown: PlasticityColumns,
    console: Console,
    drop_error: float | None = None,
) -> None:
    """Print the parts of the error, predicted errors and one sentence of advice.

    `drop_error` is the standard error of the drop of a head, if it is known.
    """
    now = typical_error(heads, Change())
    console.print(
        f"standard error of {shown.name} of a head ({shown.level}): {now:.4f} (root mean square, "
        f"{_measured(len(heads), all_heads)})"
    )
    if now == 0:
        console.print("The error is 0, so no change can reduce it.")
        return
    if not rows.few:
        console.print(_parts_table(heads))
        console.print(_changes_table(heads, rows.limits))
        console.print(Text(_how_to_get_more(heads)))
    console.print(Text(advice(heads, rows, wanted)))
    if drop_error is not None:
        console.print(Text(_about_drop(drop_error, shown)))


def _measured(heads: int, all_heads: int) -> str:
    """`23 heads of 270, evenly spaced to save time; --heads 270 takes all`."""
    if heads == all_heads:
        return f"all {count(heads, 'head')}"
    return (
        f"{count(heads, 'head')} of {all_heads:,}, evenly spaced to save time; --heads "
        f"{all_heads} takes all"
    )


def _how_to_get_more(heads: Sequence[VarianceParts]) -> str:
    """The option behind every change of the table."""
    pairs = round(2 * _mean([parts.pairs_per_bucket for parts in heads]))
    return (
        f"More key pairs: analyze again with --num_pairs_per_bucket {pairs} (twice); no new "
        "capture is needed. More queries or keys: capture again with a larger "
        "--capture.sampler.base_rate (keys: --capture.sampler.key_base_rate). More texts: capture "
        "more files."
    )


def _about_drop(error: float, shown: PlasticityColumns) -> str:
    """What is known about the error of the drop, which is not split into parts."""
    return (
        f"The standard error of the drop of a head ({shown.drop}) is {_short(error)} now (root "
        "mean square, all heads). It is not part of the tables above. More texts reduce it: four "
        "times the texts halve it at best."
    )


def advice(heads: Sequence[VarianceParts], rows: RowCounts, wanted: float | None) -> str:
    """One sentence: the cheapest change that reaches the wanted error, or the best single one."""
    now = typical_error(heads, Change())
    if rows.few:
        return (
            f"There are too few rows to predict other errors: {rows.bucket_queries:.3g} queries "
            f"per query bucket and {rows.bucket_pairs:.3g} key pairs per key bucket, where "
            f"{LEAST_QUERIES} and {LEAST_PAIRS} are needed. {rows.advice()}"
        )
    if wanted is None:
        return _best_single(heads, now, rows.limits)
    if now <= wanted:
        return f"The error is {_short(now)} already; {_short(wanted)} needs no change."
    change = cheapest_change(heads, wanted, rows.limits)
    if change is None:
        return (
            f"No change up to 16 times the texts and pairs and 256 times the rows of a text "
            f"reaches an error of {_short(wanted)}; the error is {_short(now)} now."
        )
    then = typical_error(heads, change)
    return (
        f"The cheapest change for an error of {_short(wanted)}: {change}. "
        f"It would change the error of a head from {_short(now)} to {_short(then)}."
        f"{_settings(change)}"
    )


def _best_single(heads: Sequence[VarianceParts], now: float, limits: Limits) -> str:
    """What four times of one thing would do, and what would change little."""
    errors = {
        change: typical_error(heads, change) for change in _WITHOUT_TEXTS if limits.allow(change)
    }
    more_texts = typical_error(heads, Change(texts=4))
    best = _best_of(errors)
    if errors[best] > 0.95 * now:
        return (
            f"Only more texts help: {Change(texts=4)} would cut the error of a head from "
            f"{_short(now)} to {_short(more_texts)}."
        )
    useless = [str(change) for change, error in errors.items() if error > 0.95 * now]
    text = (
        f"Without more texts, {best} would cut the error of a head most, "
        f"from {_short(now)} to {_short(errors[best])}"
    )
    if more_texts > 0.95 * now:
        useless.append(str(Change(texts=4)))
    else:
        text += f"; {Change(texts=4)} would cut it to {_short(more_texts)}"
    if useless:
        text += f"; {' and '.join(useless)} would change it by less than 5 %"
    return f"{text}.{_settings(best)}"


def _best_of(errors: dict[Change, float]) -> Change:
    """The change with the smallest error; more queries and keys only if both are needed."""
    best = min(errors, key=lambda change: errors[change])
    single = min(
        (change for change in errors if 1.0 in (change.queries, change.keys)),
        key=lambda change: errors[change],
    )
    return single if errors[single] < 1.1 * errors[best] else best


def _settings(change: Change) -> str:
    """The settings of a capture or an analysis that a change needs."""
    names = [
        name
        for name, factor in (
            ("capture.sampler.base_rate", change.queries),
            ("capture.sampler.key_base_rate", change.keys),
            ("num_pairs_per_bucket", change.pairs),
        )
        if factor != 1.0
    ]
    return f" The settings are {' and '.join(names)}." if names else ""


def _parts_table(heads: Sequence[VarianceParts]) -> Table:
    table = Table(box=box.SIMPLE, title="Where the squared error comes from", title_justify="left")
    for name in ("source", "share", "now"):
        table.add_column(name, justify="left" if name == "source" else "right")
    sums = {name: math.fsum(getattr(parts, name) for parts in heads) for name in _PARTS}
    sums |= {name: max(0.0, sums[name]) for name in ("texts", "keys")}
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


def _changes_table(heads: Sequence[VarianceParts], limits: Limits) -> Table:
    table = Table(box=box.SIMPLE, title="Error to expect", title_justify="left")
    table.add_column("sample")
    for name in ("standard error", "range", "of now"):
        table.add_column(name, justify="right")
    now = typical_error(heads, Change())
    for change in filter(limits.allow, _CHANGES):
        error = typical_error(heads, change)
        low, high = error_range(heads, change)
        table.add_row(
            str(change), f"{error:.4f}", f"{low:.4f} to {high:.4f}", f"{100 * error / now:.0f} %"
        )
    return table


def _short(error: float) -> str:
    return f"{error:.3g}" if error < 0.001 else f"{error:.4f}".rstrip("0")


def _mean(values: Sequence[int]) -> float:
    return math.fsum(values) / len(values)
