"""Means over the layers of one kind: full attention or windows, with RoPE or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import mean_difference, mean_numbers, mean_of_heads
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.names import clean
from qk_toolkit.formatting import index_ranges

BY_ATTENTION, BY_ROPE = "attention", "rope"
"""The two ways to divide the layers of a model."""
WITH_ROPE, WITHOUT_ROPE = "RoPE", "NoPE"
KIND_COLUMNS = (
    *("run", "divided", "kind", "metric"),
    *("mean", "standard_error", "low", "high", "degrees_of_freedom"),
    *("heads", "layers"),
)


def kinds_of_layers(run: FinishedRun, divided: str) -> dict[int, str]:
    """The kind of every layer of the run; without layers of which it is not known."""
    if divided == BY_ATTENTION:
        return {layer: clean(type_words(name)) for layer, name in run.layer_types.items()}
    words = {True: WITH_ROPE, False: WITHOUT_ROPE}
    entries = run.dump.get("layers") or []
    found = {one.get("layer"): words.get(one.get("rope")) for one in entries}
    return {layer: kind for layer in run.layer_types if (kind := found.get(layer)) is not None}


def kind_table(runs: Sequence[ComparedRun], metrics: Sequence[str]) -> pd.DataFrame:
    """One row per run, division, kind of layers and metric, and the difference of two kinds.

    The difference is that of the means over other heads on the same texts: the influences of each
    group of texts are subtracted. A model with three kinds or more has no row of differences.
    """
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        for divided in (BY_ATTENTION, BY_ROPE):
            kinds = kinds_of_layers(run.run, divided)
            names = list(dict.fromkeys(kinds[layer] for layer in sorted(kinds)))
            for metric in metrics:
                if metric in run.run.head_metrics:
                    where = (run.label, divided, metric)
                    rows += _rows(where, run.run, kinds, sorted(names))
    return pd.DataFrame(rows, columns=list(KIND_COLUMNS))


def _rows(
    where: tuple[str, str, str], run: FinishedRun, kinds: Mapping[int, str], names: Sequence[str]
) -> list[tuple[Any, ...]]:
    label, divided, metric = where
    heads, rows, means = run.head_metrics, [], {}
    for name in names:
        own = heads[heads["layer"].map(kinds) == name]
        mean = mean_of_heads(own, run.influences, metric)
        if not mean.heads:
            continue
        means[name] = mean
        numbers, layers = mean_numbers(mean), index_ranges(set(own["layer"].tolist()))
        counts = (mean.freedom, mean.heads, layers)
        rows.append((label, divided, name, metric, *numbers, *counts))
    if len(means) == 2:
        (first, one), (second, other) = means.items()
        change = mean_difference(one, other, paired=True)
        counts = (change.freedom, one.heads + other.heads, "")
        name = f"{first} minus {second}"
        rows.append((label, divided, name, metric, *mean_numbers(change), *counts))
    return rows


def has_two_kinds(table: pd.DataFrame, divided: str) -> bool:
    """Whether one model has layers of two kinds."""
    own = table[table["divided"] == divided]
    return bool((own.groupby(["run", "metric"])["kind"].nunique() > 1).any())
