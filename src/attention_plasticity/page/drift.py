"""Drift of queries and keys with position, for the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import BEFORE_ROPE, DRIFT, IDS
from attention_plasticity.page.ordered import ordered
from attention_plasticity.page.payload import Column
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import row_half_width
from attention_plasticity.tables.profiles import HEAD

_SHARE, _CORRELATION = "share of the variance", "absolute correlation with position"
_ROWS = {
    "drift_r": (
        "correlation with position",
        "correlation with position along the axis of the drift, fitted to other texts",
    ),
    "logit_drift": (
        "change of the mean logit",
        "change over the longest text, with the mean key or the mean query",
    ),
    "pc0_share": ("component 0: share", _SHARE),
    "pc0_r": ("component 0: |r|", _CORRELATION),
    "pc1_share": ("component 1: share", _SHARE),
    "pc1_r": ("component 1: |r|", _CORRELATION),
}
"""Rows of the card: label and meaning."""


def drift_words() -> dict[str, Any]:
    """Rows, kinds of vectors and columns of the tables of the card; the same for all runs."""
    metrics = {metric.column: metric for metric in DRIFT.columns}
    return {
        "rows": [
            {
                "name": name,
                "label": label,
                "meaning": meaning,
                "decimals": metrics[f"q_{name}"].decimals,
            }
            for name, (label, meaning) in _ROWS.items()
        ],
        "kinds": [["q", "queries"], ["k", "keys"]],
        "frames": [["", "after RoPE"], [BEFORE_ROPE, "before RoPE"]],  # endings of columns
    }


def drift_tables(run: FinishedRun) -> dict[str, dict[str, Column]]:
    """The table of the drift of a run, by its name; empty without drift."""
    if not run.has("drift"):
        return {}
    return {"drift": _numbers(ordered(run.table("drift"), HEAD, run.path("drift")))}


def _numbers(table: pd.DataFrame) -> dict[str, Column]:
    """One row per head, with halves of 95 % intervals where they are known."""
    found: dict[str, Column] = {name: table[name].to_numpy() for name in HEAD}
    with np.errstate(over="ignore"):
        for metric in DRIFT.columns[len(IDS) :]:
            name = metric.column
            if name not in table or metric.error_of or not table[name].notna().any():
                continue
            found[name] = table[name].to_numpy(np.float64).astype(np.float32)
            if metric.error:
                half = row_half_width(table, name)
                if np.isfinite(half).any():
                    found[f"{name}_half_width"] = half.astype(np.float32)
    return found
