"""Means over key heads of the table of fidelity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

QUANTITIES = {"spearman": 0.0, "kept_50": 0.5, "kept_25": 0.25, "kept_10": 0.1}
"""Columns of the table, with the value of a random order of keys."""
LIMITS = ("best_static", "best_per_query")
"""Rows that know the queries of the text."""
Score = tuple[str, int]
"""Name of a score, and 1 if it is multiplied by the length of the value."""


class Mean(NamedTuple):
    """A mean over key heads."""

    value: float
    standard_error: float  # over texts; NaN if it is not known
    groups: float  # of texts behind it


Means = Mapping[Score, Mapping[str, Mean]]
"""By score, then by column of the table."""


def recorded_means(records: Iterable[Mapping[str, Any]]) -> Means:
    """The means of run.json, with their errors."""
    return {
        (record["score"], record["value_norm"]): {name: _mean(record[name]) for name in QUANTITIES}
        for record in records
    }


def table_means(table: pd.DataFrame) -> Means:
    """Means of a part of the table, without errors: influences of texts are not in it."""
    names = list(QUANTITIES)
    means = table.groupby(["score", "value_norm"], sort=False, as_index=False)[names].mean()
    return {
        (row["score"], int(row["value_norm"])): {
            name: Mean(row[name], math.nan, math.nan) for name in names
        }
        for row in means.to_dict("records")
    }


def _mean(record: Mapping[str, Any]) -> Mean:
    numbers = (record[name] for name in Mean._fields)
    return Mean(*(math.nan if number is None else float(number) for number in numbers))
