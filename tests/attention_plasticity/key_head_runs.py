"""Adds the table of key heads to the tables of a run: known values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from attention_plasticity.metrics import KEY_HEADS
from run_tables import add_table

MEAN_ERROR = 0.0125
"""Standard error of every mean over key heads."""
GROUPS = 12


def add_key_heads(folder: Path, values: Mapping[str, Any] | None = None) -> Path:
    """Write key_head_metrics.csv, and name it in run.json. `values` replace columns."""
    heads = pd.read_csv(folder / "head_metrics.csv")
    table = heads.groupby(["layer", "k_head"]).size().rename("n_q_heads").reset_index()
    table["layer_type"], table["sliding_window"] = "full_attention", float("nan")
    table["n_pairs"] = 1000
    table["n_queries"], table["n_groups"] = 90.5, GROUPS
    for place, metric in enumerate(one for one in KEY_HEADS.columns if one.error):
        value = 0.02 * (place + 1) + 0.01 * table["layer"] + 0.001 * table["k_head"]
        table[metric.column], table[f"{metric.column}_se"] = value, 0.004
    table = table.assign(**(values or {}))[list(KEY_HEADS.names)]
    means = {
        metric.column: {
            "value": table[metric.column].mean(),
            "standard_error": MEAN_ERROR,
            "heads": len(table),
            "groups": GROUPS,
        }
        for metric in KEY_HEADS.columns
        if metric.error
    }
    return add_table(folder, "key_heads", table, key_head_means=means)


def name_layout(folder: Path, layers: int, q_heads: int, k_heads: int) -> Path:
    """Write the numbers of heads of the model into run.json."""
    info = json.loads((folder / "run.json").read_text())
    sizes = {"num_layers": layers, "num_q_heads": q_heads, "num_k_heads": k_heads}
    (folder / "run.json").write_text(json.dumps(info | {"head_layout": sizes}))
    return folder
