"""The values by which key heads are ordered, from the tables of a finished run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.export.division import ranks
from attention_plasticity.export.heads import Filled, Head, layout_of_run, refuse_or_fill
from attention_plasticity.export.settings import Missing
from attention_plasticity.metrics import (
    CHUNKED_ATTENTION,
    GROUP_COLUMNS,
    HEAD_METRICS,
    KEY_HEADS,
    SLIDING_ATTENTION,
)
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn, rank_intervals
from attention_plasticity.tables.layer_types import recorded_layers
from qk_toolkit.arrays import Array, Bools, Ints
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count, format_heads
from qk_toolkit.settings import nearest

UNIFORM = "uniform"
MEAN_RULE = "a key head without a value has the mean value of the other counted key heads"

_OF_KEY_HEADS = KEY_HEADS.with_error
_OF_QUERY_HEADS = (*HEAD_METRICS.with_error, "ap_overall")
_MEAN_OF = {"far_mass": "attn_far_mass"}
"""A column of key heads that is the mean of one of query heads, whose influences are known."""
_SHARED_TEXTS = "influences of the groups of texts, which all heads share"
_INDEPENDENT = "standard errors of the heads, taken as independent of each other"
_NO_ERRORS = "not known: some heads have no standard error"
_ROW = ["layer", "k_head"]
_MOST_REASONS = 3


def is_share(order: str) -> bool:
    """Whether the values of an order are shares, from 0 to 1."""
    metrics = (*KEY_HEADS.columns, *HEAD_METRICS.columns)
    return any(metric.column == order and metric.format == "share" for metric in metrics)


@dataclass(frozen=True)
class OrderedHeads:
    """All key heads of a model, by layer and number, with the value of an order."""

    run: FinishedRun
    order: str
    shape: tuple[int, int]  # layers, key heads of a layer
    value: Array  # (n,) NaN for the order uniform, and for heads that are not counted without one
    influences: Array  # (n, m) effect of independent sources of error on each value; NaN: unknown
    groups: Array  # (n,) groups of texts behind each value
    errors_from: str
    counted: Bools  # (n,) heads of layers without a window or chunks
    filled: Bools  # (n,) heads that have the mean of the others

    @property
    def layer(self) -> Ints:
        """(n,) numbers of the layers."""
        return np.arange(len(self.value)) // self.shape[1]

    @property
    def k_head(self) -> Ints:
        """(n,) numbers of the key heads in their layers."""
        return np.arange(len(self.value)) % self.shape[1]

    @property
    def standard_error(self) -> Array:
        """(n,) standard errors of the values; NaN if they are not known."""
        return np.asarray(np.linalg.norm(self.influences, axis=1))

    def ranks(self) -> tuple[Array, Array, Array]:
        """(n,) rank of each counted head from 1 for the largest value, and its 95 % interval.

        NaN for other heads. Without the errors of all values there are no intervals; a head with
        the mean of the others has none.
        """
        rank, low, high = np.full((3, len(self.value)), np.nan)
        counted = np.flatnonzero(self.counted)
        own = self.value[counted] if self.order != UNIFORM else np.zeros(len(counted))
        rank[counted] = ranks(own)
        if not np.isnan(self.standard_error[self.counted & ~self.filled]).any():
            heads = tuple(
                zip(self.layer[counted].tolist(), self.k_head[counted].tolist(), strict=True)
            )
            filled = self.filled[counted]  # their value is the rule's, without an error
            influences = np.where(filled[:, None], 0.0, self.influences[counted])
            groups = np.where(filled, np.inf, self.groups[counted])
            column = HeadColumn(heads, own, influences, groups, None)
            low[counted], high[counted] = rank_intervals(column).T
            low[self.filled] = high[self.filled] = np.nan
        return rank, low, high

    def table(self, **columns: Array) -> pd.DataFrame:
        """One row per key head, with these columns after its value."""
        ids = {"layer": self.layer, "k_head": self.k_head}
        own = {"value": self.value, "value_se": self.standard_error}
        flags = {"counted": self.counted.astype(np.int64), "filled": self.filled.astype(np.int64)}
        return pd.DataFrame({**ids, **own, **columns, **flags})

    def rules(self) -> dict[str, Any]:
        """What `PROVENANCE.json` says about the values."""
        file = KEY_HEADS.file if self.order in _OF_KEY_HEADS else HEAD_METRICS.file
        mean = "" if self.order in _OF_KEY_HEADS else ", mean over the query heads of a key head"
        found: dict[str, Any] = {"order": self.order}
        if self.order != UNIFORM:
            found |= {"value": f"{self.order} of {file}{mean}", "errors": self.errors_from}
        if not self.counted.all():
            found["not_counted_layers"] = sorted(set(self.layer[~self.counted].tolist()))
        return found | Filled(self.pairs(self.filled), MEAN_RULE).rules()

    def pairs(self, chosen: Bools) -> list[Head]:
        """Layer and number of the chosen heads."""
        return list(zip(self.layer[chosen].tolist(), self.k_head[chosen].tolist(), strict=True))


def ordered_heads(
    run: FinishedRun,
    order: str,
    missing: Missing = "refuse",
    note: Callable[[str], None] = lambda text: None,
) -> OrderedHeads:
    """All key heads of the model of a run. `note` gets a line about heads without a value."""
    _require_order(order)
    shape, group = layout_of_run(run)
    grid = pd.MultiIndex.from_product([range(size) for size in shape], names=_ROW)
    counted = ~np.isin(grid.get_level_values("layer"), _bounded_layers(run))
    if not counted.any():
        raise ConfigError(
            f"{run.place}: all layers have a window or chunks, which bound their cache; there is "
            "no budget to divide"
        )
    none = np.zeros(len(grid), np.bool_)
    if order == UNIFORM:
        unknown = np.full((len(grid), 1), np.nan)
        values = unknown[:, 0], unknown, unknown[:, 0], "no values"
        return OrderedHeads(run, order, shape, *values, counted, none)
    value, influences, groups, source = _values(run, order, grid, group)
    lacking = counted & np.isnan(value)  # (n,)
    if lacking.any():
        others = value[counted & ~lacking]
        mean = float(others.mean()) if len(others) else np.nan
        refuse_or_fill(
            run.place,
            grid[lacking].to_list(),
            _without_values(run, order, grid[lacking].to_list(), group),
            f"{MEAN_RULE}, {mean:.4f}",
            remedy="Capture and analyze these heads, or choose another --order",
            missing=missing,
            others=len(others) > 0,
            note=note,
        )
        value = np.where(lacking, mean, value)
        influences = np.where(lacking[:, None], np.nan, influences)
    if np.isnan(influences[counted & ~lacking]).any():
        source = _NO_ERRORS
    return OrderedHeads(run, order, shape, value, influences, groups, source, counted, lacking)


def _require_order(name: str) -> None:
    known = (*_OF_KEY_HEADS, *_OF_QUERY_HEADS, UNIFORM)
    if name not in known:
        files = f"a column with a standard error of {KEY_HEADS.file} or {HEAD_METRICS.file}"
        hint = nearest(name, known, otherwise=f"; expected {files}, or {UNIFORM}")
        raise ConfigError(f"--order: {name!r:.60}: unknown order{hint}")


def _bounded_layers(run: FinishedRun) -> list[int]:
    """Layers with a window or chunks, also those whose heads were not analysed."""
    types = {record.layer: record.type for record in recorded_layers(run.dump)}
    types |= run.layer_types
    found = {
        layer for layer, kind in types.items() if kind in (SLIDING_ATTENTION, CHUNKED_ATTENTION)
    }
    heads = run.head_metrics
    if "sliding_window" in heads:
        found |= set(heads.loc[heads["sliding_window"].notna(), "layer"])
    return sorted(found)


def _values(
    run: FinishedRun, order: str, grid: pd.MultiIndex, group: int
) -> tuple[Array, Array, Array, str]:
    """(n,) values, (n, m) influences, (n,) groups of texts, and where the errors come from.

    A key head without all of its query heads has no value.
    """
    if order not in _OF_KEY_HEADS:
        table, members = run.head_metrics, group
    elif run.has("key_heads") and "n_q_heads" in run.table("key_heads"):
        table, members = run.table("key_heads"), 1
        table = table[table["n_q_heads"] >= group]
    else:
        raise ConfigError(
            f"{run.place}: has no {KEY_HEADS.file} with the numbers of query heads; it needs the "
            "texts of the rows: analyze a dump with texts, with this version, or choose a column "
            f"of {HEAD_METRICS.file}, such as --order ap_aligned"
        )
    of_texts = "n_groups" if "n_groups" in table else "n_text_groups"
    rows = table.reindex(columns=[*_ROW, order, f"{order}_se", of_texts])
    groups = _means(rows, of_texts, grid, members)
    value = _means(rows, order, grid, members)
    squares = rows.assign(square=rows[f"{order}_se"] ** 2)
    errors = np.sqrt(_means(squares, "square", grid, members) / members)  # (n,)
    influences, quantity = run.influences, _MEAN_OF.get(order, order)
    known = None if influences is None else influences[influences["quantity"] == quantity]
    if known is None or known.empty:
        return value, np.diag(errors), groups, _INDEPENDENT
    shares = [_means(known, name, grid, group) for name in GROUP_COLUMNS]
    groups = _means(known, "n_groups", grid, group)
    return value, np.stack(shares, axis=1), groups, _SHARED_TEXTS  # (n, groups of texts)


def _means(rows: pd.DataFrame, column: str, grid: pd.MultiIndex, members: int) -> Array:
    """(n,) means over the rows of a key head; NaN if one of them has no value."""
    grouped = rows.groupby(_ROW)[column]
    means = grouped.mean().where(grouped.count() == members)
    return np.asarray(means.reindex(grid).to_numpy(np.float64))


def _without_values(run: FinishedRun, order: str, heads: list[tuple[int, int]], group: int) -> str:
    """Heads with the reasons in run.json, those with the same reason together."""
    of_key_heads = order in _OF_KEY_HEADS
    table = "key_heads" if of_key_heads else "head_metrics"
    missing = run.missing_values(table)  # type: ignore[arg-type]
    recorded = {(layer, head): reason for layer, head, name, reason in missing if name == order}
    failed = {(row.layer, row.q_head): str(row.reason) for row in run.failures.itertuples()}
    analysed = set(zip(run.head_metrics["layer"], run.head_metrics["q_head"], strict=True))
    by_reason: dict[str, list[tuple[int, int]]] = {}
    for layer, k_head in heads:
        members = [(layer, k_head * group + place) for place in range(group)]
        found = [f"a query head failed: {failed[one]}" for one in members if one in failed]
        found += ["not all of its query heads were analysed"] * (not analysed.issuperset(members))
        own = [(layer, k_head)] if of_key_heads else members
        found += [recorded[one] for one in own if one in recorded]
        by_reason.setdefault((*found, "no reason is recorded")[0], []).append((layer, k_head))
    told = [f"{format_heads(of)} ({reason})" for reason, of in by_reason.items()]
    if len(told) > _MOST_REASONS:
        told[_MOST_REASONS:] = [f"{len(told) - _MOST_REASONS} other reasons"]
    return f"{count(len(heads), 'key head')} without {order}: {'; '.join(told)}"
