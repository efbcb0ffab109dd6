"""Adds the table of drift to the tables of a run: known values."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from attention_plasticity.metrics import DRIFT, IDS
from run_tables import add_table


def add_drift(folder: Path) -> Path:
    """Write head_drift.csv, and name it in run.json."""
    drift = pd.read_csv(folder / "head_metrics.csv")[list(IDS)]
    for place, metric in enumerate(DRIFT.columns[len(IDS) :]):
        value = 0.01 * (place + 1) + 0.02 * drift["layer"] + 0.1 * drift["q_head"]
        drift[metric.column] = 0.004 if metric.error_of else value
    drift["n_groups"] = 12
    return add_table(folder, "drift", drift)
