"""Tables of a run as columns for the page, with halves of 95 % intervals in place of errors.

`SHOWN` names the tables and columns. What a column is called and how it is shown is in metrics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metric import Metric
from attention_plasticity.metrics import (
    ALIGNED_DROP,
    DROP_DISTANCE,
    DROP_POSITION,
    HEAD,
    HEAD_METRICS,
    ORIGINAL_COLUMNS,
    TABLES,
    TableKind,
)
from attention_plasticity.page.payload import Column
from attention_plasticity.tables.attention_masses import mass_bins, row_masses_without_sinks
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    head_half_width,
    p_values,
    quantity_groups,
    row_half_width,
)
from qk_toolkit.errors import ConfigError

SCALE, UNKNOWN = 10_000, 65_535
"""Shares of attention are integers: the share times 10,000, or 65,535 if it is not known."""
FIRST = {
    *("ap_aligned", "ap_aligned_drop", "ap_aligned_drop_position", "ap_aligned_drop_distance"),
    *("ap_phase", "ap_pooled", "ap_overall", "ap_attended", "q_R2_total", "q_R2_unrotated"),
    *("q_mean_share", "attn_sink_mass", "attn_far_mass", "attn_entropy"),
    *("n_text_groups", "n_q_tokens", "n_k_tokens"),
}
"""The metrics that the page shows at first; the others are shown on demand."""
_LONGEST = 40  # characters of a token
Columns = dict[str, Column]
Tables = dict[str, Columns]


@dataclass(frozen=True)
class Shown:
    """A table of the page: its rows are sorted by `keys`, and no two have the same keys."""

    kind: TableKind
    keys: tuple[str, ...]
    columns: tuple[str, ...]


SHOWN = {
    "roles": Shown(
        "roles",
        (*HEAD,),
        (
            *("role", "likely_role", "repeated_induction", "repeated_duplicate"),
            *("repeated_previous", "induction_excess", "duplicate_excess", "previous_mass"),
            *("self_mass", "local_mass", "far_mass", "first_mass", "sink_rate", "top_weight"),
            "effective_keys",
        ),
    ),
    "bands": Shown("bands", (*HEAD, "band"), ("wavelength", "norm_product", "variance_share")),
    "key_heads": Shown(
        "key_heads",
        ("layer", "k_head"),
        (
            *("n_q_heads", "aligned_plasticity", "static_error", "far_mass"),
            *("received_gini", "received_half"),
        ),
    ),
}


def table_columns(run: FinishedRun, name: str) -> Columns:
    """A table of `SHOWN`. Columns without a value are left out; `X_half_width` follows `X`."""
    shown = SHOWN[name]
    table = ordered(run.table(shown.kind), shown.keys, run.path(shown.kind))
    declared = TABLES[shown.kind].by_name
    found: Columns = {}
    for column in map(str, table.columns):
        known = column in shown.columns and table[column].notna().any()
        if column in shown.keys or known:
            found[column] = _stored(table[column])
        if known and declared[column].error:
            half = row_half_width(table, column)
            if np.isfinite(half).any():
                found[f"{column}_half_width"] = _single(half)
    return found


def head_columns(heads: pd.DataFrame, influences: pd.DataFrame | None) -> Columns:
    """The table of heads: exact, with the half widths and groups of texts of its values.

    `NAME_groups` is 0 if it is not known. `NAME_differs` of a drop is 1 if it differs from 0,
    tested for all heads at once as in the summary.
    """
    found = {name: heads[name].to_numpy() for name in heads.columns}
    for name in HEAD_METRICS.with_error:
        half = head_half_width(heads, name, influences)  # (heads,)
        if np.isfinite(half).any():
            groups = quantity_groups(heads, name, influences)  # (heads,)
            found[f"{name}_half_width"] = _single(half)
            found[f"{name}_groups"] = np.nan_to_num(groups).astype(np.int64)
    for name in (ALIGNED_DROP, DROP_POSITION, DROP_DISTANCE):
        if f"{name}_half_width" in found:
            tests = p_values(heads, name, influences)  # (heads,)
            found[f"{name}_differs"] = benjamini_hochberg(tests).astype(np.int64)
    return found


def attention_columns(run: FinishedRun) -> Columns:
    """Attention by distance per head and query bucket; empty if the run does not know it.

    `mass_N` is the share of attention of the bin that begins at distance N, without the first four
    tokens of the text, which are in `mass_sinks`. `half_` is half the width of its 95 % interval.
    """
    if not run.has("attention") or not (bins := mass_bins(run.table("attention"))):
        return {}
    table = ordered(run.table("attention"), (*HEAD, "q_bucket"), run.path("attention"))
    values, half = row_masses_without_sinks(table, bins, run.geometry)  # (rows, 1 + bins)
    names = (*HEAD, "q_bucket", "q_position", "n_queries", "n_tokens")
    found = {name: _stored(table[name]) for name in names}
    for place, name in enumerate(["sinks", *map(str, bins)]):
        found[f"mass_{name}"] = _integers(values[:, place])
        found[f"half_{name}"] = _integers(half[:, place])
    return found


def word_columns(run: FinishedRun) -> Columns:
    """One row per head and example, the strongest first."""
    table = run.table("words").sort_values([*HEAD, "kind"], kind="stable", ignore_index=True)
    for name in ("query_token", "key_token"):
        long = table[name].str.len() > _LONGEST
        table[name] = table[name].mask(long, table[name].str[:_LONGEST] + "…")
    names = (*HEAD, "kind", "k_position", "distance", "weight", "query_token", "key_token")
    return {name: _stored(table[name]) for name in names}


def columns_of(table: pd.DataFrame) -> Columns:
    """All columns of a table."""
    return {str(name): table[name].to_numpy() for name in table}


def singles(columns: Columns) -> Columns:
    """The columns with floats of 32 bits."""
    return {
        name: _single(column) if column.dtype.kind == "f" else column
        for name, column in columns.items()
    }


def ordered(table: pd.DataFrame, keys: Sequence[str], source: object) -> pd.DataFrame:
    """The table sorted by its keys. Raises if two rows have the same keys."""
    repeated = table.duplicated(list(keys))
    if repeated.any():
        row = table.loc[repeated, list(keys)].iloc[0]
        where = ", ".join(f"{name} {row[name]}" for name in keys)
        raise ConfigError(f"{source}: holds two rows for {where}; run the analysis again")
    return table.sort_values(list(keys), kind="stable", ignore_index=True)


def words_of_tables() -> dict[str, dict[str, dict[str, Any]]]:
    """Labels, meanings and formats of the columns of the page, by table; of metrics.py."""
    kinds = {name: (shown.kind, shown.columns) for name, shown in SHOWN.items()}
    kinds["heads"] = ("head_metrics", tuple(m.column for m in HEAD_METRICS.columns if m.group))
    return {
        name: {column: _words(TABLES[kind].by_name[column]) for column in columns}
        for name, (kind, columns) in kinds.items()
    }


def _words(metric: Metric) -> dict[str, Any]:
    return {
        "label": metric.label,
        "meaning": metric.meaning,
        "signed": metric.signed,
        "share": metric.format == "share",
        "count": metric.format == "count",
        "decimals": metric.decimals,
        "optional": metric.optional or metric.column in ORIGINAL_COLUMNS,
        "error_of": metric.error_of,
        "first": metric.column in FIRST,
    }


def _stored(column: pd.Series[Any]) -> Column:
    values: Column = column.to_numpy()
    return _single(values) if values.dtype.kind == "f" else values


def _single(values: Column) -> Column:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _integers(shares: Column) -> Column:
    known = np.isfinite(shares)
    scaled = np.round(SCALE * np.where(known, shares, 0.0)).clip(0, UNKNOWN - 1)
    return np.where(known, scaled, UNKNOWN).astype(np.int64)
