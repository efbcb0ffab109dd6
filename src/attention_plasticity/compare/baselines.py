"""Runs, their baselines, and the runs minus their baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from attention_plasticity.compare.groups import ALL_HEADS
from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.compare.summary import SUMMARY_COLUMNS
from attention_plasticity.metrics import HEAD_METRICS
from attention_plasticity.tables.baselines import Level, level_difference, level_of
from attention_plasticity.tables.intervals import mean_over_heads


def baseline_summary(runs: Sequence[NamedRun]) -> pd.DataFrame:
    """Means over heads of runs that have baselines, of their baselines, and the differences.

    The columns are those of `summary`, and `draws`. The error of a baseline has that between draws.
    """
    rows: list[tuple[object, ...]] = []
    for one in runs:
        draws = {f"{one.label} ({words})": own for words, own in one.run.baselines.items()}
        named = {one.label: [one.run], **draws}
        for metric in HEAD_METRICS.averaged if draws else ():
            levels = {
                name: level_of([mean_over_heads(run, metric) for run in own])
                for name, own in named.items()
                if all(metric in run.head_metrics for run in own)
            }
            rows += _rows(one.label, metric, levels)
    return pd.DataFrame(rows, columns=[*SUMMARY_COLUMNS, "draws"])


def _rows(label: str, metric: str, levels: Mapping[str, Level]) -> Iterator[tuple[object, ...]]:
    known = {name: level for name, level in levels.items() if level.heads}
    if label not in known or len(known) < 2:
        return
    for name, level in known.items():
        yield _row(name, "", metric, level)
    for name, level in known.items():
        if name != label:
            yield _row(label, name, metric, level_difference(known[label], level))


def _row(run: str, minus: str, metric: str, level: Level) -> tuple[object, ...]:
    ends = (level.value - level.half, level.value + level.half)
    numbers = (level.value, level.standard_error, *ends, level.freedom, level.heads)
    return (run, minus, "", ALL_HEADS, metric, *numbers, len(level.draws) or math.nan)
