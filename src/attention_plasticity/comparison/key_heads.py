"""Means over the key heads of compared runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.tables.intervals import recorded_mean

SHOWN = {
    "static_error": "static error",
    "attended_static_error": "attended",
    "plasticity": "plasticity",
    "aligned_plasticity": "at one position",
    "far_mass": "far",
    "received_gini": "Gini",
}
"""Columns of the table for readers, with their headings."""
NOTE = (
    "Static error: share of later queries of a group whose preferred key the majority of the "
    "others does not predict. attended: the same for keys in proportion to attention. far: far "
    "attention without the first tokens. Gini: concentration of received attention. ±: half of the "
    "95 % interval over texts."
)
_COLUMNS = tuple(metric.column for metric in KEY_HEADS.columns if metric.error)


def key_head_means(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """One row per run with a table of key heads: their number and means.

    Every mean has its standard error and the degrees of freedom of its interval. The errors of a
    part of the layers are not known.
    """
    rows = [_row(run) for run in runs if run.run.has("key_heads")]
    names = [f"{column}{ending}" for column in _COLUMNS for ending in ("", "_se", "_df")]
    return pd.DataFrame(rows, columns=["run", "key_heads", *names])


def _row(run: ComparedRun) -> dict[str, Any]:
    table = run.run.table("key_heads")
    known = run.run.info.get("key_head_means") or {} if run.run.layers is None else {}
    row: dict[str, Any] = {"run": run.label, "key_heads": len(table)}
    for name in _COLUMNS:
        mean = recorded_mean(known, name)
        row[name] = table[name].mean() if name in table else math.nan
        row[f"{name}_se"], row[f"{name}_df"] = mean.standard_error, mean.freedom
    return row
