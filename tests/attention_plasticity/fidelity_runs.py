"""Adds the table of fidelity to the tables of a run: known values."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.measure.fidelity import NUMBERS as QUANTITIES
from attention_plasticity.measure.fidelity import ROWS as KINDS
from run_tables import add_table

MEAN_ERROR = 0.0125
"""Standard error of every mean over key heads."""


def fidelity_table(layers: int, key_heads: int) -> pd.DataFrame:
    """Values that grow with the place of the score, and differ a little between heads."""
    rng = np.random.default_rng(0)
    rows = []
    for layer, head in product(range(layers), range(key_heads)):
        for place, (score, value_norm) in enumerate(KINDS):
            level = 0.35 + 0.04 * place + rng.normal(0, 0.03)
            row: dict[str, Any] = {
                "layer": layer,
                "k_head": head,
                "layer_type": "full_attention",
                "n_q_heads": 3,
                "score": score,
                "value_norm": value_norm,
            }
            for number, name in enumerate(QUANTITIES):
                row[name] = level - 0.08 * number
                row[f"{name}_se"] = 0.01
            if score == "best_per_query":
                row["spearman"] = row["spearman_se"] = np.nan
            rows.append(row | {"n_keys": 900, "n_queries": 4000, "n_texts": 12, "n_groups": 12})
    return pd.DataFrame(rows)


def add_fidelity(folder: Path) -> Path:
    """Write head_fidelity.csv of the key heads of a run, and the means into run.json."""
    heads = pd.read_csv(folder / "head_metrics.csv")
    table = fidelity_table(int(heads["layer"].max()) + 1, int(heads["k_head"].max()) + 1)
    number = len(table[["layer", "k_head"]].drop_duplicates())
    found = {
        "near": 128,
        "first_query": 224,
        "key_heads": {"measured": number, "failed": 0},
        "failures": [],
        "means": [_mean_record(table, score, kind) for score, kind in KINDS],
    }
    return add_table(folder, "fidelity", table, fidelity=found)


def _mean_record(table: pd.DataFrame, score: str, kind: int) -> dict[str, Any]:
    own = table[(table["score"] == score) & (table["value_norm"] == kind)]
    record: dict[str, Any] = {"score": score, "value_norm": kind}
    for name in QUANTITIES:
        if own[name].notna().any():
            record[name] = {
                "value": own[name].mean(),
                "standard_error": MEAN_ERROR,
                "heads": int(own[name].notna().sum()),
                "groups": 12,
            }
    return record
