"""Content of the page for one run: a description, and tables as columns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.export.budget import kept_at
from attention_plasticity.export.order import ordered_heads
from attention_plasticity.export.settings import DEFAULT_ORDER
from attention_plasticity.metrics import HEAD
from attention_plasticity.page.cells import ShownCells, head_groups, why_over_buckets
from attention_plasticity.page.provenance import provenance
from attention_plasticity.page.sentences import sentences, why_no_words
from attention_plasticity.page.shown_columns import (
    SHOWN,
    Columns,
    Tables,
    attention_columns,
    columns_of,
    head_columns,
    ordered,
    singles,
    table_columns,
    word_columns,
)
from attention_plasticity.roles import ROLES, default_thresholds
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import why_unsure
from attention_plasticity.tables.layer_types import layer_types
from attention_plasticity.tables.main_plasticity import main_plasticity
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ToolkitError
from qk_toolkit.formatting import index_ranges

BUDGETS = (50, 75)
"""Per cent of all keys that are pruned, for the budgets beside a head."""


def run_content(run: FinishedRun, label: str) -> tuple[dict[str, Any], Tables]:
    """The description of a run and its tables.

    Metrics are exact. Cells, profiles, weights and estimates are rounded to float32.
    """
    path = run.path("head_metrics")
    metrics = ordered(run.head_metrics, HEAD, path)
    run.require_values("head_metrics", main_plasticity(run).level)
    if run.influences is not None:
        ordered(run.influences, [*HEAD, "quantity", "bin"], run.path("influences"))
    cells = ShownCells.of(run)
    heads = _all_heads(metrics, cells.table)
    places, unit = cells.places(run)
    tables: Tables = {
        "heads": head_columns(heads, run.influences),
        "cells": singles(cells.columns),
        "profiles": singles(cells.profile_columns(run)),
        "places": columns_of(places),
        "attention": attention_columns(run),
        **{name: table_columns(run, name) for name, shown in SHOWN.items() if run.has(shown.kind)},
    }
    groups, baselines = head_groups(run, cells, tables)
    about = {
        "label": label,
        "model": run.model_name,
        "groups": groups,
        "baselines": baselines,
        **_architecture(run, heads),
        "unit": unit,
        "log": not cells.at_one_position
        and run.geometry is not None
        and run.geometry.type == "log",
        "at_one_position": cells.at_one_position,
        "why_over_buckets": why_over_buckets(run, cells),
        "bin_size": run.info.get("bin_size"),
        "counts": _counts(run, len(heads)),
        "context": None if math.isnan(run.context) else run.context,
        "distant_from": _distant_from(run),
        "pair_sampling": run.pair_sampling,
        "thresholds": _thresholds(run),
        "why_no_words": why_no_words(run),
        "missing": _missing(run),
        "provenance": provenance(run),
    }
    whole = "whole run: " if about["selected"] else ""
    about["warnings"] = [f"{whole}{text}" for text in run.warnings]
    _add_own_tables(run, heads, tables)
    return about, {name: table for name, table in tables.items() if table}


def _add_own_tables(run: FinishedRun, heads: pd.DataFrame, tables: Tables) -> None:
    """What the page has beyond the columns of the run's tables."""
    if tables["attention"]:
        tables["buckets"] = _buckets(run, tables["attention"])
    if run.has("roles"):
        roles = ordered(run.table("roles"), HEAD, run.path("roles"))
        texts = sentences(run, roles, heads, _thresholds(run))
        tables["roles"]["sentence"] = np.array([*texts], object)
        tables["roles"]["why_unsure"] = why_unsure(roles)
        if run.has("words"):
            tables["words"] = word_columns(run)
    for percent in BUDGETS if run.has("key_heads") else ():
        if kept := _kept(run, percent):
            ids = zip(tables["key_heads"]["layer"], tables["key_heads"]["k_head"], strict=True)
            shares = [kept.get((int(layer), int(head)), math.nan) for layer, head in ids]
            tables["key_heads"][f"kept_{percent}"] = np.array(shares, np.float32)


def _architecture(run: FinishedRun, heads: pd.DataFrame) -> dict[str, Any]:
    """The shape of the model: by it, heads of two runs correspond or not."""
    layout = run.layout
    grid = [int(heads["layer"].max()) + 1, int(heads["q_head"].max()) + 1]
    recorded = [layout.get("num_layers") or 0, layout.get("num_q_heads") or 0]
    grid = [max(pair) for pair in zip(grid, recorded, strict=True)]
    known = heads.reindex(columns=["k_head"])["k_head"].dropna()
    key_heads = layout.get("num_k_heads") or (int(known.max()) + 1 if len(known) else None)
    widths = heads.reindex(columns=["layer", "d_model"]).groupby("layer")["d_model"].max().dropna()
    selected = run.layers is not None and len(run.layers) < grid[0]
    return {
        "grid": grid,
        "key_heads": key_heads,
        "head_dims": {str(layer): int(width) for layer, width in widths.items()},
        "layer_types": {str(layer): name for layer, name in layer_types(heads).items()},
        "has_layer_type": "layer_type" in heads,
        "selected": index_ranges(run.layers or ()) if selected else None,
    }


def _counts(run: FinishedRun, shown: int) -> dict[str, int]:
    """Numbers of heads: shown, not captured and failed; those of the selected layers only."""
    found = {"shown": shown}
    if run.layers is None:
        recorded = run.info.get("heads") or {}
        known = {name: recorded.get(name) for name in ("not_captured", "failed")}
        return found | {name: n for name, n in known.items() if isinstance(n, int)}
    missing = [head[0] for head in run.info.get("not_captured") or [] if head]
    failed = [failure["layer"] for failure in run.info.get("failures") or []]
    found["not_captured"] = sum(layer in run.layers for layer in missing)
    found["failed"] = sum(layer in run.layers for layer in failed)
    return found


def _missing(run: FinishedRun) -> list[dict[str, Any]]:
    """Missing values of heads: `columns`, `reason`, and the heads as `layer.head`."""
    columns: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # by reason and heads
    for (column, reason), rows in run.missing.groupby(["column", "reason"], sort=False):
        heads = tuple(f"{layer}.{head}" for layer, head in rows[HEAD].to_numpy().tolist())
        columns.setdefault((clean(str(reason)), heads), []).append(str(column))
    return [
        {"columns": names, "reason": reason, "heads": heads}
        for (reason, heads), names in columns.items()
    ]


def _all_heads(metrics: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """All heads of both tables. Heads with cells but without metrics have NaN metrics."""
    with_cells = cells[HEAD].drop_duplicates()
    with_metrics = pd.MultiIndex.from_frame(metrics[HEAD])
    if pd.MultiIndex.from_frame(with_cells).isin(with_metrics).all():
        return metrics
    merged = metrics.merge(with_cells, on=HEAD, how="outer", sort=True)
    return merged[metrics.columns]


def _buckets(run: FinishedRun, attention: Columns) -> Columns:
    """The query buckets of the table of attention, with their positions if they are known."""
    found = {"bucket": np.unique(attention["q_bucket"])}
    if run.geometry is not None:
        found["start"] = run.geometry.starts(found["bucket"]).astype(np.float64)
        found["end"] = run.geometry.ends(found["bucket"]).astype(np.float64)
    return found


def _kept(run: FinishedRun, percent: int) -> dict[tuple[int, int], float]:
    """The share that each key head keeps of its keys if these per cent of all keys are pruned.

    It is 1 for a head whose keys are not counted; empty if the run lacks heads or values.
    """
    try:
        heads = ordered_heads(replace(run, layers=None), DEFAULT_ORDER)
    except ToolkitError:
        return {}
    shares = zip(heads.layer, heads.k_head, kept_at(heads, percent), heads.counted, strict=True)
    return {
        (int(layer), int(head)): float(share) if counted else 1.0
        for layer, head, share, counted in shares
    }


def _thresholds(run: FinishedRun) -> dict[str, float]:
    """The threshold of every column that decides about a role."""
    given = run.settings.get("role_thresholds")
    named = {**default_thresholds(), **(given if isinstance(given, dict) else {})}
    found: dict[str, float] = {}
    for role in ROLES:
        found[role.column] = named[role.name]
        if role.repeated_column is not None:
            found[role.repeated_column] = named[role.repeated_column]
    return found


def _distant_from(run: FinishedRun) -> int | None:
    """The distance at which distant attention begins; None if the run does not record it."""
    value = run.settings.get("distant_from")
    return value if isinstance(value, int) and not isinstance(value, bool) else None
