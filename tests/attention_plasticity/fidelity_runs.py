"""Adds the table of fidelity to the tables of a run: known values."""

from __future__ import annotations

import hashlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SCORES = (
    *("key_norm", "q_filter", "gaussian", "expected_attention", "triattention"),
    *("bucket_gaussian", "exact_rotation"),
)
WITH_VALUE = ("gaussian", "expected_attention", "bucket_gaussian", "exact_rotation")
LIMITS = ("best_static", "best_per_query")
QUANTITIES = ("spearman", "kept_50", "kept_25", "kept_10")
KINDS = (
    *((score, kind) for score in SCORES for kind in range(1 + (score in WITH_VALUE))),
    *((limit, 0) for limit in LIMITS),
)
"""Scores and `value_norm`, in the order of the table."""
MEAN_ERROR = 0.0125
"""Standard error of every mean over key heads."""


def fidelity_table(layers: int, key_heads: int) -> pd.DataFrame:
    """Values that grow with the place of the score, and differ a little between heads."""
    kinds = [
        (score, kind) for score in SCORES for kind in (0, 1) if not kind or score in WITH_VALUE
    ]
    kinds += [(limit, 0) for limit in LIMITS]
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
    """Write head_fidelity.csv and fidelity.json of the key heads of a run."""
    heads = pd.read_csv(folder / "head_metrics.csv")
    layers, key_heads = int(heads["layer"].max()) + 1, int(heads["k_head"].max()) + 1
    return write_fidelity(folder, layers, key_heads)


def write_fidelity(folder: Path, layers: int, key_heads: int) -> Path:
    """The two files of the verb `fidelity`."""
    folder.mkdir(exist_ok=True)
    table = fidelity_table(layers, key_heads)
    table.to_csv(folder / "head_fidelity.csv", index=False, na_rep="nan")
    means = []
    for score, kind in KINDS:
        own = table[(table["score"] == score) & (table["value_norm"] == kind)]
        record: dict[str, Any] = {"score": score, "value_norm": kind}
        for name in QUANTITIES:
            known = own[name].notna().any()
            record[name] = {
                "value": own[name].mean() if known else None,
                "standard_error": MEAN_ERROR if known else None,
                "key_heads": int(own[name].notna().sum()),
                "groups": 12 if known else None,
            }
        means.append(record)
    digest = hashlib.sha256((folder / "head_fidelity.csv").read_bytes()).hexdigest()
    facts = {"input": {"texts": {"count": 12, "digest": "0"}}, "means": means, "sha256": digest}
    (folder / "fidelity.json").write_text(json.dumps(facts))
    return folder
