"""Adds the tables of drift and of points to the tables of a run: known values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from attention_plasticity.metrics import DRIFT, IDS, POINTS

POINTS_OF_HEAD = 60
LAST = 4095  # largest position of a point


def add_drift(folder: Path, *, points: bool = True) -> Path:
    """Write head_drift.csv and head_points.csv, and name them in run.json."""
    heads = pd.read_csv(folder / "head_metrics.csv")[list(IDS)]
    drift = heads.copy()
    for place, metric in enumerate(DRIFT.columns[len(IDS) :]):
        value = 0.01 * (place + 1) + 0.02 * heads["layer"] + 0.1 * heads["q_head"]
        drift[metric.column] = 0.004 if metric.error_of else value
    drift["n_groups"] = 12
    written = {"drift": (DRIFT, drift)}
    if points:
        written["points"] = (POINTS, _points(heads))
    info = json.loads((folder / "run.json").read_text())
    for kind, (table, rows) in written.items():
        rows.to_csv(folder / table.file, index=False, na_rep="nan")
        info["tables"][kind] = table.file
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def change_points(folder: Path, layer: int, q_head: int, **columns: str | float) -> None:
    """Replace columns of the points of a head by another column, or by a number."""
    path = folder / POINTS.file
    table = pd.read_csv(path)
    own = (table["layer"] == layer) & (table["q_head"] == q_head)
    for name, value in columns.items():
        table.loc[own, name] = table.loc[own, value] if isinstance(value, str) else value
    table.to_csv(path, index=False, na_rep="nan")


def _points(heads: pd.DataFrame) -> pd.DataFrame:
    """Components of a point are known functions of its number and its head."""
    rows = []
    for layer, q_head, k_head in heads.to_numpy().tolist():
        for kind in "qk":
            number = np.arange(POINTS_OF_HEAD)
            part = pd.DataFrame({"kind": kind, "position": (number * 997) % (LAST + 1)})
            part["pc0"] = np.sin(number) + layer
            part["pc1"] = np.cos(number) * (1.0 if kind == "q" else 2.0) - q_head
            part["pc0_rotated"] = 5.0 * np.cos(0.7 * number) - layer
            part["pc1_rotated"] = np.sin(0.7 * number) * (3.0 if kind == "q" else 1.0) + q_head
            part.loc[1, "position"] = LAST
            rows.append(part.assign(layer=layer, q_head=q_head, k_head=k_head))
    return pd.concat(rows)[list(POINTS.names)]
