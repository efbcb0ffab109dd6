"""The values by which key heads are ordered, from the tables of a finished run.

A head without a value is never given a rank: the run is refused, and the message names the heads
and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_plasticity.metrics import (
    ALIGNED,
    ATTENDED,
    CHUNKED_ATTENTION,
    GROUP_COLUMNS,
    KEY_HEADS,
    SLIDING_ATTENTION,
)
from attention_plasticity.run.missing import heads_of
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.arrays import Array, Bools, Ints
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

UNIFORM = "uniform"
ORDERS = ("static_error", "static_error_attended", "far", ATTENDED, ALIGNED, "ap_overall", UNIFORM)
_OF_KEY_HEADS = {
    "static_error": "static_error",
    "static_error_attended": "attended_static_error",
    "far": "far_mass",
}
_OF_QUERY_HEADS = {"far": "attn_far_mass", ATTENDED: ATTENDED, ALIGNED: ALIGNED}
_OF_QUERY_HEADS["ap_overall"] = "ap_overall"
_NEEDS = {
    "static_error": "more texts, or more queries of each text",
    "static_error_attended": "a capture with attention (capture.attention and attended_keys)",
    "far": "a capture with attention (capture.attention) of texts longer than 256 tokens",
    ATTENDED: "a capture with attention (capture.attention)",
    ALIGNED: "the rotary embedding of the layers (attention-plasticity add-rotary)",
    "ap_overall": "more texts, or more queries of each text",
}
SHARED_TEXTS = "influences of the groups of texts, which all heads share"
INDEPENDENT = "standard errors of the heads, taken as independent of each other"
NO_ERRORS = "not known: some heads have no standard error"
_ROW = ["layer", "k_head"]
_MOST_NAMED = 6


@dataclass(frozen=True)
class OrderedHeads:
    """All key heads of a model, by layer and number, with the value of an order."""

    order: str
    column: str | None  # of key_head_metrics.csv or head_metrics.csv; None: no value
    layer: Ints  # (n,)
    k_head: Ints  # (n,)
    window: Array  # (n,) tokens that a query can attend back to; NaN: all, or not known
    bounded: Bools  # (n,) heads of layers with a window or chunks
    value: Array  # (n,) NaN for the order uniform
    deviations: Array | None  # (n, m) effect of independent sources of error on each value
    errors_from: str
    shape: tuple[int, int]  # layers, key heads of a layer

    @property
    def standard_error(self) -> Array:
        """(n,) standard errors of the values; NaN if they are not known."""
        if self.deviations is None:
            return np.full(len(self.value), np.nan)
        return np.asarray(np.linalg.norm(self.deviations, axis=1))


def ordered_heads(run: FinishedRun, order: str) -> OrderedHeads:
    """The key heads of a run with the values of an order."""
    if not run.has_key_heads:
        raise ConfigError(
            f"{run.place}: has no {KEY_HEADS.file}; it needs the texts of the rows: analyze a dump "
            "with texts, with this version"
        )
    table = run.key_heads.sort_values(_ROW, ignore_index=True)
    shape = _require_all_heads(run, table)
    layer_type = table["layer_type"].astype(str)
    window = table["sliding_window"].to_numpy(np.float64)
    types = layer_type.isin([SLIDING_ATTENTION, CHUNKED_ATTENTION]).to_numpy(np.bool_)
    bounded = types | ~np.isnan(window)
    if bounded.all():
        raise ConfigError(
            f"{run.place}: all layers have a window, which bounds their cache; there is no budget "
            "to divide"
        )
    value, column, deviations, source = _values(run, table, order)
    if order != UNIFORM:
        _require_values(run, table, order, column or "", np.isnan(value) & ~bounded)
        if deviations is not None and np.isnan(deviations[~bounded]).any():
            deviations, source = None, NO_ERRORS
    return OrderedHeads(
        order,
        column,
        table["layer"].to_numpy(np.int64),
        table["k_head"].to_numpy(np.int64),
        window,
        bounded,
        value,
        deviations,
        source,
        shape,
    )


def _values(
    run: FinishedRun, table: pd.DataFrame, order: str
) -> tuple[Array, str | None, Array | None, str]:
    """Values of key heads, their column, and where their errors come from."""
    if order == UNIFORM:
        return np.full(len(table), np.nan), None, None, "the order has no values"
    influences = None
    if order in _OF_QUERY_HEADS:
        influences = _group_influences(run, table, _OF_QUERY_HEADS[order])
    if order in _OF_KEY_HEADS:
        column = _OF_KEY_HEADS[order]
        value = _column(table, column)
        if influences is None:
            return value, column, np.diag(_column(table, f"{column}_se")), INDEPENDENT
    else:
        column = _OF_QUERY_HEADS[order]
        value = _group_means(run.head_metrics, table, column)
    return value, column, influences, SHARED_TEXTS if influences is not None else NO_ERRORS


def _column(table: pd.DataFrame, name: str) -> Array:
    """(n,) a column; NaN if the table is of a version without it."""
    if name not in table:
        return np.full(len(table), np.nan)
    return table[name].to_numpy(np.float64)


def _group_means(heads: pd.DataFrame, table: pd.DataFrame, column: str) -> Array:
    """(n,) means over the query heads of a key head; NaN if one of them has no value."""
    if column not in heads:
        return np.full(len(table), np.nan)
    grouped = heads.groupby(_ROW)[column]
    means = grouped.mean().where(grouped.count() == grouped.size())
    return means.reindex(pd.MultiIndex.from_frame(table[_ROW])).to_numpy(np.float64)


def _group_influences(run: FinishedRun, table: pd.DataFrame, column: str) -> Array | None:
    """(n, groups of texts) influences on the mean of a key head; None if the run has none."""
    if run.influences is None:
        return None
    rows = run.influences[run.influences["quantity"] == column]
    if rows.empty:
        return None
    return np.stack([_group_means(rows, table, name) for name in GROUP_COLUMNS], axis=1)


def _require_all_heads(run: FinishedRun, table: pd.DataFrame) -> tuple[int, int]:
    """Refuse a run without some heads of the model: their budgets would be invented."""
    layout = run.layout
    if len(layout) < 3:
        raise ConfigError(
            f"{run.place}: the numbers of layers and heads of the model are not known; give the "
            "output_dir of an analysis with its run.json, or analyze again with --num_layers, "
            "--num_q_heads and --num_k_heads"
        )
    layers, heads = layout["num_layers"], layout["num_k_heads"]
    numbers = table[[*_ROW, "n_q_heads"]].to_numpy(np.float64).astype(np.int64).tolist()
    found: dict[tuple[int, int], int] = {(layer, head): own for layer, head, own in numbers}
    if len(found) < len(table):
        raise ConfigError(f"{run.place}: {KEY_HEADS.file}: two rows are of the same key head")
    wanted = [(layer, head) for layer in range(layers) for head in range(heads)]
    absent = [head for head in wanted if head not in found]
    if absent:
        raise ConfigError(
            f"{run.place}: has {len(wanted) - len(absent)} of {count(len(wanted), 'key head')}; "
            f"not analysed: {_names(absent)}. Capture and analyze all heads of the model"
        )
    if len(found) > len(wanted):
        extra = [head for head in found if head not in set(wanted)]
        raise ConfigError(
            f"{run.place}: {KEY_HEADS.file}: {_names(extra)}: the model has no such key heads"
        )
    group = layout["num_q_heads"] // heads
    partial = [head for head in wanted if found[head] < group]
    if partial:
        raise ConfigError(
            f"{run.place}: {_names(partial)}: fewer than {count(group, 'query head')} of the group "
            "were analysed. Heads that failed are in run.json; repair them and analyze again"
        )
    return layers, heads


def _require_values(
    run: FinishedRun, table: pd.DataFrame, order: str, column: str, missing: Bools
) -> None:
    if not missing.any():
        return
    heads = list(
        zip(*(table.loc[missing, name].to_numpy(np.int64).tolist() for name in _ROW), strict=True)
    )
    reason = _reason(run, order, column, heads)
    named = "all of them" if missing.all() else _names(heads)
    raise ConfigError(
        f"{run.place}: order {order}: {count(len(heads), 'key head')} of {len(table)} have no "
        f"{column}: {named}{f' ({reason})' if reason else ''}. It needs {_NEEDS[order]}. Choose "
        "another --order, or capture and analyze again"
    )


def _reason(run: FinishedRun, order: str, column: str, heads: list[tuple[int, int]]) -> str | None:
    """The reason that the run records for the first of these heads."""
    of_key_heads = order in _OF_KEY_HEADS
    layer, k_head = heads[0]
    own = {(layer, k_head)}
    if not of_key_heads:
        rows = run.head_metrics
        rows = rows[(rows["layer"] == layer) & (rows["k_head"] == k_head)]
        own = {(layer, int(head)) for head in rows["q_head"]}
    kind = "key_heads" if of_key_heads else "head_metrics"
    for record in run.info.get("missing") or []:
        concerned = record["table"] == kind and column in record["columns"]
        if concerned and own & set(heads_of(record["where"])):
            return str(record["reason"])
    return None


def _names(heads: list[tuple[int, int]]) -> str:
    """`layer 0 key head 1, layer 3 key head 0 and 4 more`."""
    named = [f"layer {layer} key head {head}" for layer, head in heads[:_MOST_NAMED]]
    rest = len(heads) - len(named)
    return f"{', '.join(named)}{f' and {rest} more' if rest else ''}"
