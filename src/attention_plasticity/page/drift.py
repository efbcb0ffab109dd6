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
from attention_plasticity.tables.point_frames import FRAMES, known_frames
from attention_plasticity.tables.point_range import inside
from attention_plasticity.tables.profiles import HEAD

MOST_POINTS = 400_000  # of a run
KINDS = ("q", "k")
LARGEST = 65_534  # of a coordinate: two bytes
NOT_DRAWN = 65_535  # instead of a coordinate: not known, or far from all others
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
        "points": [
            {"name": frame.name, "words": frame.words, "ending": frame.ending} for frame in FRAMES
        ],
        "largest": LARGEST,
    }


def drift_content(run: FinishedRun) -> tuple[dict[str, Any] | None, Tables]:
    """The description of the drift of a run, and its tables; None and no table without drift."""
    if not run.has_drift:
        return None, {}
    table = ordered(run.drift, HEAD, run.path("drift"))
    tables: Tables = {"drift": _numbers(table)}
    about: dict[str, Any] = {"points": 0, "last": 0}
    if run.has_points and len(points := _shown_points(run.points)):
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

    The first points of a head are a random sample of all. Those that are far from all others in
    every frame are left out. For each frame there are columns such as `before_x` and `before_y`
    from −1 to 1, as parts of `before_scale`; NaN: not known, or far from all others.
    """
    heads = len(points[HEAD].drop_duplicates())
    most = max(1, MOST_POINTS // (len(KINDS) * heads))
    table = points[points["kind"].isin(KINDS)].sort_values([*HEAD, "kind"], kind="stable")
    parts = [_in_all_frames(part, most) for _, part in table.groupby([*HEAD, "kind"], sort=True)]
    return pd.concat(parts, ignore_index=True)


def _in_all_frames(part: pd.DataFrame, most: int) -> pd.DataFrame:
    """The points of one head and kind, with their places in every frame."""
    known = known_frames(part)
    kept = {
        frame.name: inside(*(part[name].to_numpy(np.float64) for name in frame.coordinates))
        for frame in known
    }  # (n,) each
    any_frame = np.any([*kept.values()], axis=0) if kept else np.zeros(len(part), bool)  # (n,)
    shown = part[any_frame].iloc[:most]
    found: dict[str, Column | float] = {}
    for frame in FRAMES:
        found |= {f"{frame.name}_{name}": np.nan for name in ("x", "y", "scale")}
        found[f"{frame.name}_outside"] = 0
        if frame not in known:
            continue
        drawn = kept[frame.name][any_frame][:most]  # (m,)
        values = shown[[*frame.coordinates]].to_numpy(np.float64)  # (m, 2)
        scale = float(np.abs(values[drawn]).max(initial=0.0)) or 1.0
        x, y = np.where(drawn[:, None], values / scale, np.nan).T
        found |= {f"{frame.name}_x": x, f"{frame.name}_y": y}
        found[f"{frame.name}_scale"] = scale
        found[f"{frame.name}_outside"] = int((~kept[frame.name]).sum())
    return shown.assign(**found)


def _point_columns(points: pd.DataFrame) -> dict[str, Column]:
    """One row per point. Coordinates are integers of two bytes."""
    found: dict[str, Column] = {name: points[name].to_numpy() for name in HEAD}
    found["kind"] = points["kind"].map(KINDS.index).to_numpy(np.int64)
    found["position"] = points["position"].to_numpy(np.float64).astype(np.int64)
    for frame in FRAMES:
        for name in (f"{frame.name}_x", f"{frame.name}_y"):
            whole = np.round((points[name].to_numpy(np.float64) + 1.0) / 2.0 * LARGEST)
            found[name] = np.where(np.isnan(whole), NOT_DRAWN, whole).astype(np.int64)
    return found


def _scales(points: pd.DataFrame) -> dict[str, Column]:
    """One row per head and kind: the unit of its coordinates, and the points that are left out.

    The unit of a frame that is not known is NaN.
    """
    table = points.drop_duplicates([*HEAD, "kind"])
    found: dict[str, Column] = {name: table[name].to_numpy() for name in HEAD}
    found["kind"] = table["kind"].map(KINDS.index).to_numpy(np.int64)
    for frame in FRAMES:
        found[f"{frame.name}_scale"] = table[f"{frame.name}_scale"].to_numpy(np.float64)
        found[f"{frame.name}_outside"] = table[f"{frame.name}_outside"].to_numpy(np.int64)
    return found
