"""Means over the heads of every model, of every metric that has a mean, with intervals."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from attention_plasticity.comparison.tables import Cell, Line, WrittenTable
from attention_plasticity.family.written import (
    HALF_NOTE,
    INTERVAL_NOTE,
    half_cell,
    interval_cell,
)
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, ATTENDED, HEAD_METRICS, PHASE
from attention_plasticity.tables.intervals import mean_numbers, mean_over_heads
from attention_plasticity.tables.main_plasticity import OVER_BUCKETS
from attention_plasticity.tables.names import clean
from qk_study.study.results import StudyResults

_COLUMNS = (
    *("model", "metric", "meaning", "mean", "standard_error", "low", "high"),
    *("degrees_of_freedom", "heads", "text_groups"),
)
_SHOWN = (
    *(ALIGNED, ALIGNED_DROP, PHASE, ATTENDED, "attn_sink_mass", "attn_far_mass"),
    "attn_entropy",
)
"""The metrics of the table for readers, if a model has them. The CSV file has all."""
_WITHOUT_POSITION = "ap_overall"  # shown if a model has no plasticity at one position
_MOST_INTERVALS = 5  # metrics; more columns with `[low, high]` are wider than a page
_MORE = "The CSV file has more metrics."


def means_frame(results: StudyResults) -> pd.DataFrame:
    """One row per model and metric."""
    labels = {metric.column: metric.label for metric in HEAD_METRICS.columns}
    rows: list[tuple[Any, ...]] = []
    for plan, run in results.finished:
        for name in HEAD_METRICS.averaged:
            if name not in run.head_metrics:
                continue
            mean = mean_over_heads(run, name)
            if not mean.heads:
                continue
            counts = (mean.freedom, mean.heads, mean.groups or math.nan)
            rows.append((plan.label, name, labels[name], *mean_numbers(mean), *counts))
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def written_means(means: pd.DataFrame, results: StudyResults) -> WrittenTable:
    """A line per model with the first metrics."""
    known = set(means["metric"])
    names = [name for name in _SHOWN if name in known]
    if results.shown is OVER_BUCKETS:
        names = [_WITHOUT_POSITION, *names]
    labels = {metric.column: metric.label for metric in HEAD_METRICS.columns}
    many = len(names) > _MOST_INTERVALS
    cell, note = (half_cell, HALF_NOTE) if many else (interval_cell, INTERVAL_NOTE)
    cells = {(row["model"], row["metric"]): cell(row) for row in means.to_dict("records")}
    lines = tuple(
        Line(clean(label), "", tuple(cells.get((label, name), Cell("–")) for name in names))
        for label in results.labels
    )
    headings = ("model", *(labels[name] for name in names))
    return WrittenTable("study", results.shown, headings, lines, f"{note} {_MORE}")
