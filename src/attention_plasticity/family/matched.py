"""Differences of the same heads in two models of one architecture, such as two checkpoints.

On the same texts the influences of each group of texts are subtracted, so what the texts change in
both models cancels. Otherwise the models are independent samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from attention_plasticity.comparison.cautions import same_texts
from attention_plasticity.comparison.runs import ComparedRun, same_architecture
from attention_plasticity.tables.intervals import (
    at_common_heads,
    benjamini_hochberg,
    half_width,
    head_column,
    two_sided,
)
from attention_plasticity.tables.profiles import HEAD

MATCHED_COLUMNS = (
    *("run", "minus", "metric", *HEAD, "value", "minus_value", "difference", "standard_error"),
    *("low", "high", "degrees_of_freedom", "p_value", "changed", "paired"),
)
SUMMARY_COLUMNS = (
    *("run", "minus", "metric", "heads", "tested", "changed", "risen", "fallen"),
    *("mean_difference", "paired"),
)
RATE = 0.05  # expected share of heads without a change among those that are called changed


@dataclass(frozen=True)
class Pair:
    """A model and the earlier model that is subtracted."""

    run: ComparedRun
    minus: ComparedRun

    @property
    def name(self) -> str:
        """`tuned minus base`."""
        return f"{self.run.label} minus {self.minus.label}"

    @cached_property
    def paired(self) -> bool:
        """Whether both have the same texts."""
        return same_texts(self.run, self.minus)


def can_match(run: ComparedRun, other: ComparedRun) -> bool:
    """Whether both models have the same known numbers of layers and heads."""
    layouts = run.run.layout, other.run.layout
    return all(layouts) and layouts[0] == layouts[1] and same_architecture(run, other)


def matched_heads(pairs: Sequence[Pair], metrics: Sequence[str]) -> pd.DataFrame:
    """One row per pair, metric and head with a value in both models.

    `changed` is a two-sided test of no difference with Student's t, corrected for the number of
    heads of the pair and the metric by Benjamini and Hochberg, at a false discovery rate of 5 %.
    """
    tables = [
        _differences(pair, metric)
        for pair in pairs
        for metric in metrics
        if all(metric in one.run.head_metrics for one in (pair.run, pair.minus))
    ]
    known = [table for table in tables if len(table)]
    return (
        pd.concat(known, ignore_index=True) if known else pd.DataFrame(columns=[*MATCHED_COLUMNS])
    )


def _differences(pair: Pair, metric: str) -> pd.DataFrame:
    runs = pair.run.run, pair.minus.run
    one, other = at_common_heads(
        *(head_column(run.head_metrics, run.influences, metric, None) for run in runs)
    )
    change = one.difference(other, paired=pair.paired)
    heads = np.array(one.heads).reshape(-1, 2)  # (heads, 2)
    freedom = np.where(change.groups > 1, change.groups - 1.0, np.nan)
    difference, error = change.values, change.errors
    reach = half_width(error, freedom + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = two_sided(difference / error, freedom)
    columns = {
        "run": pair.run.label,
        "minus": pair.minus.label,
        "metric": metric,
        HEAD[0]: heads[:, 0],
        HEAD[1]: heads[:, 1],
        "value": one.values,
        "minus_value": other.values,
        "difference": difference,
        "standard_error": error,
        "low": difference - reach,
        "high": difference + reach,
        "degrees_of_freedom": freedom,
        "p_value": p_value,
        "changed": benjamini_hochberg(p_value, RATE),
        "paired": pair.paired,
    }
    return pd.DataFrame(columns, columns=[*MATCHED_COLUMNS])


def matched_summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per pair and metric: heads, tested heads, and how many rose or fell."""
    rows = []
    for (run, minus, metric), own in table.groupby(["run", "minus", "metric"], sort=False):
        changed = own[own["changed"].astype(bool)]
        risen = int((changed["difference"] > 0).sum())
        counts = (len(own), int(own["p_value"].notna().sum()), len(changed), risen)
        mean = float(own["difference"].mean())
        paired = bool(own["paired"].all())
        rows.append((run, minus, metric, *counts, len(changed) - risen, mean, paired))
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
