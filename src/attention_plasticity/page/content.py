"""Content of the page for one run: tables as columns, and a description."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import COMPONENT_WEIGHTS
from attention_plasticity.page.architecture import (
    counts,
    grid,
    head_dims,
    key_heads,
    selected_words,
)
from attention_plasticity.page.attention import attention_columns, distant_from
from attention_plasticity.page.baselines import baseline_content
from attention_plasticity.page.drift import drift_tables
from attention_plasticity.page.estimates import head_estimates, head_means
from attention_plasticity.page.fidelity import fidelity_content
from attention_plasticity.page.key_heads import key_head_rows
from attention_plasticity.page.ordered import ordered
from attention_plasticity.page.payload import Column
from attention_plasticity.page.provenance import provenance
from attention_plasticity.page.roles import role_content
from attention_plasticity.page.shown_plasticity import ShownCells, why_over_buckets
from attention_plasticity.page.type_means import type_means
from attention_plasticity.tables.attention_masses import mass_bins
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.layer_types import layer_types
from attention_plasticity.tables.main_plasticity import main_plasticity
from attention_plasticity.tables.names import clean
from attention_plasticity.tables.profiles import HEAD

Tables = dict[str, dict[str, Column]]


def run_content(run: FinishedRun, label: str) -> tuple[dict[str, Any], Tables]:
    """The description of a run and its columns.

    Metrics are exact. Cells, profiles, weights and estimates are rounded to float32.
    """
    metrics, cells, weights = _metrics(run), _cells(run), _weights(run)
    _require_single_influences(run)
    heads = _all_heads(metrics, cells.table)
    profiles = cells.profiles(run)
    places, unit = cells.places(run)
    types, means_of_types = type_means(run, cells, profiles)
    baselines, means_of_baselines = baseline_content(run, cells.at_one_position)
    tables = {
        "heads": _columns(heads),
        "cells": _columns(cells.stored, single=True),
        "profiles": _columns(profiles, single=True),
        "mean": _columns(cells.mean(run, profiles)),
        "places": _columns(places),
        **{name: _columns(part) for name, part in (means_of_types | means_of_baselines).items()},
    }
    if estimates := head_estimates(heads, run.influences):
        tables["estimates"] = estimates
    if weights is not None:
        tables["components"] = _columns(weights, single=True)
    if (attention := _attention(run)) is not None:
        tables["attention"] = attention_columns(run, attention)
        tables["buckets"] = _columns(_buckets(run, attention))
    roles, tables_of_roles = role_content(run, heads)
    tables |= tables_of_roles | drift_tables(run)
    size = grid(run, heads)
    selected = selected_words(run, size[0])
    about = {
        "label": label,
        "layer_types": {str(layer): name for layer, name in layer_types(heads).items()},
        "types": types,
        "baselines": baselines,
        "has_layer_type": "layer_type" in heads,
        "model": run.model_name,
        "grid": size,
        "key_heads": key_heads(run, heads),
        "head_dims": head_dims(heads),
        "selected": selected,
        "unit": unit,
        "log": not cells.at_one_position
        and run.geometry is not None
        and run.geometry.type == "log",
        "at_one_position": cells.at_one_position,
        "why_over_buckets": why_over_buckets(run, cells),
        "bin_size": run.info.get("bin_size"),
        "counts": counts(run, len(heads)),
        "eligible_heads": run.eligible_heads,
        "means": head_means(run),
        "context": None if math.isnan(run.context) else run.context,
        "distant_from": distant_from(run),
        "pair_sampling": run.pair_sampling,
        "roles": roles,
        "key_head_rows": key_head_rows(run),
        "fidelity": fidelity_content(run),
        "warnings": [f"whole run: {text}" if selected else text for text in run.warnings],
        "missing": _missing(run),
        "provenance": provenance(run),
    }
    return about, tables


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


def _metrics(run: FinishedRun) -> pd.DataFrame:
    path = run.path("head_metrics")
    table = ordered(run.head_metrics, HEAD, path)
    require_values(table, main_plasticity(table).level, path)
    return table


def _cells(run: FinishedRun) -> ShownCells:
    cells = ShownCells.of(run)
    path = run.path("bins" if cells.at_one_position else "bucket_plasticity")
    return replace(cells, table=ordered(cells.table, [*HEAD, "q_bucket", "k_bucket"], path))


def _weights(run: FinishedRun) -> pd.DataFrame | None:
    """The table of components; None if the file does not exist."""
    path = run.path("component_weights")
    if not path.exists():
        return None
    table = ordered(run.component_weights, [*HEAD, "component"], path)
    return table[[name for name in COMPONENT_WEIGHTS.names if name in table]]


def _attention(run: FinishedRun) -> pd.DataFrame | None:
    """The table of attention; None if the run has none, or if it has no masses."""
    if not run.has("attention") or not mass_bins(run.table("attention")):
        return None
    return ordered(run.table("attention"), [*HEAD, "q_bucket"], run.path("attention"))


def _require_single_influences(run: FinishedRun) -> None:
    if run.influences is not None:
        ordered(run.influences, [*HEAD, "quantity", "bin"], run.path("influences"))


def _all_heads(metrics: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """All heads of both tables. Heads with cells but without metrics have NaN metrics."""
    with_cells = cells[HEAD].drop_duplicates()
    with_metrics = pd.MultiIndex.from_frame(metrics[HEAD])
    if pd.MultiIndex.from_frame(with_cells).isin(with_metrics).all():
        return metrics
    merged = metrics.merge(with_cells, on=HEAD, how="outer", sort=True)
    return merged[metrics.columns]


def _buckets(run: FinishedRun, attention: pd.DataFrame) -> pd.DataFrame:
    """The query buckets of the table of attention, with their positions if they are known."""
    seen = np.unique(attention["q_bucket"])
    table = pd.DataFrame({"bucket": seen})
    if run.geometry is not None:
        table["start"] = run.geometry.starts(seen).astype(np.float64)
        table["end"] = run.geometry.ends(seen).astype(np.float64)
    return table


def _columns(table: pd.DataFrame, *, single: bool = False) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for name in table.columns.drop("layer_type", errors="ignore"):  # numbers only
        values = table[name].to_numpy()
        if single and values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
        found[str(name)] = values
    return found
