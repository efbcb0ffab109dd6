"""Drift of queries and keys with position, for the page: numbers of every head, and points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import BEFORE_ROPE, DRIFT, IDS
from attention_plasticity.page.ordered import ordered
from attention_plasticity.page.payload import Column
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.point_range import inside
from attention_plasticity.tables.profiles import HEAD

MOST_POINTS = 400_000  # of a run
KINDS = ("q", "k")
LARGEST = 65_535  # of a coordinate: two bytes
_ROWS = {
    "drift_r": "correlation with position",
    "logit_drift": "change of the mean logit",
    "pc0_share": "component 0: share, |r|",
    "pc1_share": "component 1: share, |r|",
}
"""Rows of the card. Beside the share of a component is its correlation with position."""
_MEANINGS = {
    "drift_r": "correlation with position along the axis of the drift, fitted to other texts",
    "logit_drift": "change over the longest text, with the mean key or the mean query",
}
Tables = dict[str, dict[str, Column]]


def drift_words() -> dict[str, Any]:
    """Rows, kinds of vectors and columns of the table of the card; the same for all runs."""
    metrics = {metric.column: metric for metric in DRIFT.columns}
    return {
        "rows": [
            {
                "name": name,
                "label": label,
                "meaning": _MEANINGS.get(name, "share of the variance, and |r| with position"),
                "beside": name.replace("_share", "_r") if name.endswith("_share") else None,
                "decimals": metrics[f"q_{name}"].decimals,
            }
            for name, label in _ROWS.items()
        ],
        "kinds": [["q", "queries"], ["k", "keys"]],
        "frames": [["", "after RoPE"], [BEFORE_ROPE, "before RoPE"]],  # endings of columns
        "largest": LARGEST,
    }


def drift_content(run: FinishedRun) -> tuple[dict[str, Any] | None, Tables]:
    """The description of the drift of a run, and its tables; None and no table without drift."""
    if not run.has_drift:
        return None, {}
    table = ordered(run.drift, HEAD, run.path("drift"))
    tables: Tables = {"drift": _numbers(table)}
    about: dict[str, Any] = {"points": 0, "last": 0}
    if run.has_points:
        points = _shown_points(run.points)
        tables["points"] = _point_columns(points)
        tables["scales"] = _scales(points)
        about["points"] = int(points.groupby([*HEAD, "kind"]).size().max())
        about["last"] = int(points["position"].max())
    about["has_intervals"] = any(name.endswith("_half_width") for name in tables["drift"])
    return about, tables


def _numbers(table: pd.DataFrame) -> dict[str, Column]:
    """One row per head, with half widths of 95 % intervals where errors are known."""
    found: dict[str, Column] = {name: table[name].to_numpy() for name in HEAD}
    groups = table.reindex(columns=["n_groups"])["n_groups"]
    with np.errstate(over="ignore"):
        for metric in DRIFT.columns[len(IDS) :]:
            name = metric.column
            if name not in table or metric.error_of or not table[name].notna().any():
                continue
            found[name] = table[name].to_numpy(np.float64).astype(np.float32)
            if metric.error and f"{name}_se" in table:
                half = half_width(table[f"{name}_se"], groups.where(groups >= 2))
                found[f"{name}_half_width"] = half.astype(np.float32)
    return found


def _shown_points(points: pd.DataFrame) -> pd.DataFrame:
    """The points of the page, sorted by head: fewer of every head if there are many heads.

    The first points of a head are a random sample of all. Those that are far from all others are
    left out. `x` and `y` are from −1 to 1, as parts of `scale`.
    """
    heads = len(points[HEAD].drop_duplicates())
    most = max(1, MOST_POINTS // (len(KINDS) * heads))
    table = points[points["kind"].isin(KINDS)].sort_values([*HEAD, "kind"], kind="stable")
    parts = []
    for _, part in table.groupby([*HEAD, "kind"], sort=True):
        x, y = (part[name].to_numpy(np.float64) for name in ("pc0", "pc1"))
        kept = inside(x, y)
        shown = part[kept].iloc[:most]
        scale = float(shown[["pc0", "pc1"]].abs().to_numpy().max()) or 1.0
        places = {"x": shown["pc0"] / scale, "y": shown["pc1"] / scale}
        parts.append(shown.assign(scale=scale, outside=int((~kept).sum()), **places))
    return pd.concat(parts, ignore_index=True)


def _point_columns(points: pd.DataFrame) -> dict[str, Column]:
    """One row per point. Coordinates are integers of two bytes."""
    found: dict[str, Column] = {name: points[name].to_numpy() for name in HEAD}
    found["kind"] = points["kind"].map(KINDS.index).to_numpy(np.int64)
    found["position"] = points["position"].to_numpy(np.float64).astype(np.int64)
    for name in ("x", "y"):
        whole = np.round((points[name].to_numpy(np.float64) + 1.0) / 2.0 * LARGEST)
        found[name] = whole.astype(np.int64)
    return found


def _scales(points: pd.DataFrame) -> dict[str, Column]:
    """One row per head and kind: the unit of its coordinates, and the points that are left out."""
    table = points.drop_duplicates([*HEAD, "kind"])
    return {
        **{name: table[name].to_numpy() for name in HEAD},
        "kind": table["kind"].map(KINDS.index).to_numpy(np.int64),
        "scale": table["scale"].to_numpy(np.float64),
        "outside": table["outside"].to_numpy(np.int64),
    }
