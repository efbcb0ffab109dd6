"""Means over key heads of the table of fidelity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.head_means import MeanEstimate, mean_estimate
from attention_plasticity.tables.intervals import recorded_mean
from attention_plasticity.tables.names import SCORE_WORDS

QUANTITIES = {"spearman": 0.0, "kept_50": 0.5, "kept_25": 0.25, "kept_10": 0.1}
"""Columns of the table, with the value of a random order of keys."""
LIMITS = ("best_static", "best_per_query")
"""Rows that know the queries of the text."""
Score = tuple[str, int]
"""Name of a score, and 1 if it is multiplied by the length of the value."""
Means = Mapping[Score, Mapping[str, MeanEstimate]]
"""By score, then by column of the table."""


def means_of_key_heads(contents: Iterable[Mapping[str, Any]]) -> Means:
    """The means of a run, in the order of the table; `contents` are those of `measure.fidelity`."""
    rows: dict[Score, list[Mapping[str, Any]]] = {}
    for content in contents:
        for row in content["rows"]:
            rows.setdefault((row["score"], row["value_norm"]), []).append(row)
    order = list(SCORE_WORDS)
    found: dict[Score, Mapping[str, MeanEstimate]] = {}
    for score in sorted(rows, key=lambda one: (order.index(one[0]), one[1])):
        means = {}
        for name in QUANTITIES:
            values, influences, groups = zip(*(row[name] for row in rows[score]), strict=True)
            means[name] = mean_estimate(values, influences, groups)
        found[score] = means
    return found


def recorded_means(records: Iterable[Mapping[str, Any]]) -> Means:
    """The means of run.json, with their errors."""
    return {
        (record["score"], record["value_norm"]): {
            name: recorded_mean(record, name) for name in QUANTITIES
        }
        for record in records
    }


def table_means(table: pd.DataFrame) -> Means:
    """Means of a part of the table, without errors: influences of texts are not in it."""
    found: dict[Score, Mapping[str, MeanEstimate]] = {}
    for score, times in table[["score", "value_norm"]].drop_duplicates().itertuples(index=False):
        rows = table[(table["score"] == score) & (table["value_norm"] == times)]
        unknown = [[math.nan] * len(GROUP_COLUMNS)] * len(rows)
        found[score, int(times)] = {
            name: mean_estimate(rows[name].tolist(), unknown, [math.nan] * len(rows))
            for name in QUANTITIES
        }
    return found
