"""What the page shows of a run: its tables as columns, and a few words about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.report.payload import Column
from attention_plasticity.report.provenance import provenance
from attention_plasticity.run.outputs import BUCKET_COLUMNS, COMPONENT_COLUMNS
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.profiles import HEAD, head_profiles, mean_profile
from qk_dump.limits import MOST_HEADS, MOST_HEADS_IN_ALL
from qk_toolkit.errors import ConfigError

Tables = dict[str, dict[str, Column]]


def run_content(run: FinishedRun, label: str) -> tuple[dict[str, Any], Tables]:
    """A run's description and its columns.

    Metrics stay exact; cells, profiles and weights are rounded to float32.
    """
    metrics, cells, weights = _metrics(run), _cells(run), _weights(run)
    heads = _all_heads(metrics, cells)
    profiles = head_profiles(cells)
    buckets, unit = _buckets(run, cells)
    tables = {
        "heads": _columns(heads),
        "cells": _columns(cells, single=True),
        "profiles": _columns(profiles, single=True),
        "mean": _columns(mean_profile(profiles)),
        "buckets": _columns(buckets),
    }
    if weights is not None:
        tables["components"] = _columns(weights, single=True)
    about = {
        "label": label,
        "model": run.model_name,
        "grid": _grid(run, heads),
        "unit": unit,
        "log": run.geometry is not None and run.geometry.type == "log",
        "counts": _counts(run, len(heads)),
        "warnings": run.warnings,
        "provenance": provenance(run),
    }
    return about, tables


def _metrics(run: FinishedRun) -> pd.DataFrame:
    path = run.path("head_metrics")
    table = _ordered(run.head_metrics, HEAD, path)
    require_values(table, "ap_overall", path)
    return table


def _cells(run: FinishedRun) -> pd.DataFrame:
    path = run.path("bucket_plasticity")
    table = _ordered(run.bucket_plasticity, [*HEAD, "q_bucket", "k_bucket"], path)
    require_values(table, "plasticity", path)
    return table[[name for name in BUCKET_COLUMNS if name in table]]


def _weights(run: FinishedRun) -> pd.DataFrame | None:
    """None for a run whose table of components was not kept: all else can be shown without."""
    path = run.path("component_weights")
    if not path.exists():
        return None
    table = _ordered(run.component_weights, [*HEAD, "component"], path)
    return table[[name for name in COMPONENT_COLUMNS if name in table]]


def _ordered(table: pd.DataFrame, keys: list[str], source: object) -> pd.DataFrame:
    """Sorted by its keys, of which no two rows may share all."""
    twice = table.duplicated(keys)
    if twice.any():
        row = table.loc[twice, keys].iloc[0]
        where = ", ".join(f"{name} {row[name]}" for name in keys)
        raise ConfigError(f"{source}: holds two rows for {where}")
    return table.sort_values(keys, kind="stable", ignore_index=True)


def _all_heads(metrics: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """The heads of either table; one that has cells but no metrics gets NaN."""
    seen = cells[HEAD].drop_duplicates()
    known = pd.MultiIndex.from_frame(metrics[HEAD])
    if pd.MultiIndex.from_frame(seen).isin(known).all():
        return metrics
    merged = metrics.merge(seen, on=HEAD, how="outer", sort=True)
    return merged[metrics.columns]


def _buckets(run: FinishedRun, cells: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Every bucket with the position it stands for, and whether that is in tokens.

    Where the dump told its geometry, buckets have a start and an end; else the mean position of
    their keys or queries; else their number alone.
    """
    seen = np.unique(np.concatenate([cells["k_bucket"], cells["q_bucket"]]))
    table = pd.DataFrame({"bucket": seen})
    geometry = run.geometry
    if geometry is not None:
        table["start"] = geometry.starts(seen).astype(np.float64)
        table["end"] = geometry.ends(seen).astype(np.float64)
        return table, "tokens"
    if {"q_position", "k_position"} <= set(cells.columns):
        of_queries = cells.groupby("q_bucket")["q_position"].mean()
        of_keys = cells.groupby("k_bucket")["k_position"].mean()
        table["start"] = of_keys.combine_first(of_queries).reindex(seen).to_numpy()
        return table, "tokens"
    table["start"] = seen.astype(np.float64)
    return table, "bucket"


def _grid(run: FinishedRun, heads: pd.DataFrame) -> list[int]:
    """Layers and query heads of the model, captured or not."""
    layout = run.info.get("head_layout") or run.dump
    least = [int(heads["layer"].max()) + 1, int(heads["q_head"].max()) + 1]
    told = [layout.get("num_layers") or 0, layout.get("num_q_heads") or 0]
    if told[0] * told[1] > MOST_HEADS_IN_ALL or max(told) > MOST_HEADS:
        return least
    return [max(pair) for pair in zip(least, told, strict=True)]


def _counts(run: FinishedRun, heads: int) -> dict[str, int]:
    told = run.info.get("heads") or {}
    counts = {name: told.get(name) for name in ("not_captured", "failed")}
    return {"shown": heads} | {name: n for name, n in counts.items() if isinstance(n, int)}


def _columns(table: pd.DataFrame, *, single: bool = False) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for name in table.columns:
        values = table[name].to_numpy()
        if single and values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
        found[str(name)] = values
    return found
