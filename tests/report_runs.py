"""Small runs written as tables, for the page: quick to make, every value known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.run.outputs import BUCKET_COLUMNS, COMPONENT_COLUMNS, METRIC_COLUMNS

LAYERS, HEADS, BUCKETS, WIDTH = 5, 6, 7, 12
MISSING = (2, 3)  # a head that was not captured
SPOKEN = "owner/model-one"


def write_run(
    folder: Path,
    seed: int = 0,
    model: str = SPOKEN,
    warnings: Sequence[str] = (),
    **dump: Any,
) -> Path:
    """A run of `LAYERS` × `HEADS` heads less one, with a NaN here and there."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    grid = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    heads = np.array([head for head in grid if head != MISSING])
    ids = {"layer": heads[:, 0], "q_head": heads[:, 1], "k_head": heads[:, 1] // 3}
    metrics = pd.DataFrame({name: rng.random(len(heads)) for name in METRIC_COLUMNS}).assign(
        **ids, n_q_tokens=300 + heads[:, 1], n_k_tokens=300, d_model=WIDTH, q_position_max=895
    )
    metrics["ap_drop"] -= 0.5
    metrics["sliding_window"] = np.where(heads[:, 0] == 1, 256.0, np.nan)
    metrics.loc[4, "ap_first20"] = np.nan
    metrics.to_csv(folder / "head_metrics.csv", index=False)
    _cells(rng, heads).to_csv(folder / "head_bucket_plasticity.csv", index=False)
    _weights(rng, heads).to_csv(folder / "head_component_weights.csv", index=False)
    records = [{"kind": "few_queries", "text": text} for text in warnings]
    info = {**_info(model, len(heads), dump), "warnings": records}
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def _cells(rng: np.random.Generator, heads: np.ndarray) -> pd.DataFrame:
    pairs = [(q, k) for q in range(1, BUCKETS) for k in range(q)]
    rows = [(*head, head[1] // 3, q, k) for head in heads.tolist() for q, k in pairs]
    table = pd.DataFrame(rows, columns=list(BUCKET_COLUMNS[:5]))
    table["plasticity"] = rng.random(len(table))
    table["n_pairs"] = rng.integers(1, 256, len(table))
    table["q_position"] = table["q_bucket"] * 128 + 63.25
    table["k_position"] = table["k_bucket"] * 128 + 64.125
    table["n_queries"] = 40
    table["n_texts"] = 6
    table.loc[3, ["plasticity", "n_pairs"]] = np.nan, 0
    return table.astype({"n_pairs": np.int64})


def _weights(rng: np.random.Generator, heads: np.ndarray) -> pd.DataFrame:
    rows = [(*head, head[1] // 3, number) for head in heads.tolist() for number in range(WIDTH)]
    table = pd.DataFrame(rows, columns=list(COMPONENT_COLUMNS[:4]))
    weight = rng.random((len(heads), WIDTH))
    table["weight"] = (weight / weight.sum(axis=1, keepdims=True)).ravel()
    table["r2"] = rng.random(len(table))
    return table


def _info(model: str, heads: int, dump: dict[str, Any]) -> dict[str, Any]:
    geometry = {"bucket_type": "uniform", "min_bucket_size": 128}
    manifest = {"model": model, "revision": "abc123", **geometry, **dump}
    return {
        "attention_plasticity": "0.1.0",
        "config": {"query_model": "positional", "layers": None},
        "seed": 7,
        "input": {
            "path": "data/dump",
            "hub": {"repo": "owner/data", "revision": "branch", "commit": "c0ffee"},
            "fingerprint": "f1f2f3",
            "dump": manifest,
        },
        "head_layout": {"num_layers": LAYERS, "num_q_heads": HEADS, "num_k_heads": 2},
        "heads": {"analysed": heads, "not_captured": 1, "failed": 1},
        "failures": [{"layer": 4, "q_head": 9, "k_head": 1, "reason": "too few <queries>"}],
        "tables": {
            "head_metrics": "head_metrics.csv",
            "bucket_plasticity": "head_bucket_plasticity.csv",
            "component_weights": "head_component_weights.csv",
        },
        "finished": "2026-01-02T03:04:05+00:00",
        "seconds": 1.5,
        "versions": {"python": "3.11.7", "numpy": "2.4.6"},
    }
