"""Confidence intervals, means over heads, differences of runs and tests: all of them are here.

Functions take tables, or a run: anything with the table of heads and the influences of its texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr, stdtrit

from attention_plasticity.metrics import BIN_QUANTITY, GROUP_COLUMNS, HEAD
from attention_plasticity.tables.head_means import MeanEstimate, mean_estimate
from qk_toolkit.arrays import Array

LEVEL = 0.95


class MeasuredHeads(Protocol):
    """The heads of a run."""

    @property
    def head_metrics(self) -> pd.DataFrame:
        """One row per head."""

    @property
    def influences(self) -> pd.DataFrame | None:
        """Influences of the groups of texts; None if they are not known."""

    @property
    def eligible_heads(self) -> int | None:
        """Number of heads from which the heads were sampled at random; None: they are fixed."""


def half_width(standard_error: Any, groups: Any, level: float = LEVEL) -> Array:
    """Half the width of a confidence interval: Student's t with G − 1 degrees of freedom."""
    freedom = np.asarray(groups, np.float64) - 1.0
    return np.asarray(standard_error, np.float64) * stdtrit(freedom, 0.5 + level / 2.0)


def groups_column(name: str) -> str:
    """The column with its groups of texts; scores on repeated tokens have groups of their own."""
    return "repeated_groups" if name.startswith("repeated_") else "n_groups"


def row_half_width(table: pd.DataFrame, name: str) -> Array:
    """(rows,) half widths of a column of a table with its own groups; NaN if they are not known."""
    known = table.reindex(columns=[f"{name}_se", groups_column(name)]).to_numpy(
        np.float64
    )  # (rows, 2)
    return half_width(known[:, 0], known[:, 1])


def quantity_groups(table: pd.DataFrame, name: str, influences: pd.DataFrame | None) -> Array:
    """(heads,) groups of texts behind a column, by the table of influences.

    Where they are not known, those of the head; NaN if these are not known either.
    """
    of_head = table.reindex(columns=["n_text_groups"])["n_text_groups"].to_numpy(np.float64)
    if influences is None:
        return of_head
    [own] = _of_quantity(influences, name, ["n_groups"], _heads_of(table))
    return np.where(np.isnan(own), of_head, own)


def head_half_width(
    table: pd.DataFrame, name: str, influences: pd.DataFrame | None, level: float = LEVEL
) -> Array:
    """(heads,) half widths of the intervals of a column of the table of heads; NaN if unknown."""
    if f"{name}_se" not in table:
        return np.full(len(table), np.nan)
    return half_width(table[f"{name}_se"], quantity_groups(table, name, influences), level)


def p_values(table: pd.DataFrame, name: str, influences: pd.DataFrame | None) -> Array:
    """(heads,) two-sided p-values of a column being zero; NaN if unknown."""
    if f"{name}_se" not in table:
        return np.full(len(table), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (table[name] / table[f"{name}_se"]).to_numpy(np.float64)
    return two_sided(t, quantity_groups(table, name, influences) - 1.0)


def two_sided(t: Any, freedom: Any) -> Array:
    """Two-sided p-values of Student's t."""
    return np.asarray(2.0 * stdtr(freedom, -np.abs(t)))


def benjamini_hochberg(p: Array, rate: float = 0.05) -> npt.NDArray[np.bool_]:
    """The tests that are significant at a false discovery rate. NaN is not a test."""
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    passed = np.flatnonzero(p[order] <= rate * np.arange(1, len(order) + 1) / max(1, len(order)))
    significant = np.zeros(len(p), np.bool_)
    if len(passed):
        significant[order[: passed[-1] + 1]] = True
    return significant


def mean_over_heads(run: MeasuredHeads, name: str) -> MeanEstimate:
    """Mean of a column over heads, with its standard error."""
    return mean_of_heads(run.head_metrics, run.influences, name, run.eligible_heads)


def mean_of_heads(
    table: pd.DataFrame,
    influences: pd.DataFrame | None,
    name: str,
    eligible: int | None = None,
) -> MeanEstimate:
    """The same for the heads of a table, which may be some of the heads of a run.

    `eligible` is the number of heads from which they were sampled at random; None: they are fixed.
    """
    return head_column(table, influences, name, eligible).mean


@dataclass(frozen=True)
class HeadColumn:
    """A column of the table of heads, with its influences, at heads with a value."""

    heads: tuple[tuple[int, int], ...]  # layer and query head
    values: Array  # (heads,)
    influences: Array  # (heads, g); NaN if unknown
    groups: Array  # (heads,) of texts; NaN if unknown
    eligible: int | None  # heads from which the heads were sampled at random; None: fixed

    @cached_property
    def mean(self) -> MeanEstimate:
        """The mean over heads."""
        return mean_estimate(
            self.values.tolist(),
            self.influences.tolist(),
            self.groups.tolist(),
            self.eligible,
        )

    @property
    def errors(self) -> Array:
        """(heads,) standard errors over texts; NaN if unknown."""
        return np.asarray(np.linalg.norm(self.influences, axis=1))

    def difference(self, other: HeadColumn, *, paired: bool) -> HeadColumn:
        """The differences of the same heads in two runs.

        With `paired`, the runs have the same groups of texts; otherwise they are independent. The
        heads are a random sample if they are one in both runs.
        """
        join = np.subtract if paired else _side_by_side
        sampled = self.eligible is not None and other.eligible is not None
        return HeadColumn(
            self.heads,
            self.values - other.values,
            join(self.influences, other.influences),
            np.minimum(self.groups, other.groups),
            max(self.eligible or 0, other.eligible or 0) if sampled else None,
        )

    def at(self, places: Sequence[int]) -> HeadColumn:
        """The column at some of its heads."""
        chosen = list(places)
        return HeadColumn(
            tuple(self.heads[place] for place in chosen),
            self.values[chosen],
            self.influences[chosen],
            self.groups[chosen],
            self.eligible,
        )


def at_common_heads(one: HeadColumn, other: HeadColumn) -> tuple[HeadColumn, HeadColumn]:
    """Both columns at the heads that both have, in the order of the first."""
    places = {head: place for place, head in enumerate(other.heads)}
    mine = [place for place, head in enumerate(one.heads) if head in places]
    return one.at(mine), other.at([places[one.heads[place]] for place in mine])


def _side_by_side(one: Array, other: Array) -> Array:
    """(heads, 2 g) influences of independent texts."""
    return np.hstack([one, other])


def head_column(
    table: pd.DataFrame, influences: pd.DataFrame | None, name: str, eligible: int | None
) -> HeadColumn:
    """A column of a table of heads; see `mean_of_heads`."""
    values = table[name].to_numpy(np.float64)  # (all heads,)
    known = np.flatnonzero(~np.isnan(values))
    heads = _heads_of(table, known)
    shares, groups = np.full((len(known), len(GROUP_COLUMNS)), np.nan), np.zeros(len(known))
    if influences is not None:
        *by_group, groups = _of_quantity(influences, name, [*GROUP_COLUMNS, "n_groups"], heads)
        shares = np.array(by_group).T  # (heads, groups)
    return HeadColumn(heads, values[known], shares, groups, eligible)


def recorded_mean(records: Mapping[str, Mapping[str, Any]], name: str) -> MeanEstimate:
    """A mean over heads as run.json records it in `means` or `key_head_means`."""
    found = records.get(name)
    if found is None:
        return mean_estimate([], [], [])
    error, of_texts = (
        math.nan if found.get(key) is None else float(found[key])
        for key in ("standard_error", "standard_error_texts")
    )
    eligible = found.get("eligible_heads")
    return MeanEstimate(
        value=float(found["value"]),
        text_error=error if eligible is None else of_texts,
        heads=found["heads"],
        groups=found.get("groups") or 0,
        influences=(math.nan,) * len(GROUP_COLUMNS),
        eligible=eligible,
        head_variance=0.0 if eligible is None else error**2 - of_texts**2,
    )


def mean_difference(one: MeanEstimate, other: MeanEstimate, *, paired: bool) -> MeanEstimate:
    """The difference of the means over two sets of heads.

    With `paired`, both have the same groups of texts; otherwise they are independent.
    """
    join = np.subtract if paired else _side_by_side
    influences = join(np.array([one.influences]), np.array([other.influences]))[0]
    sampled = [mean for mean in (one, other) if mean.eligible is not None]
    return MeanEstimate(
        value=one.value - other.value,
        text_error=float(np.linalg.norm(influences)),
        heads=min((mean.heads for mean in sampled), default=one.heads + other.heads),
        groups=min(one.groups, other.groups),
        influences=tuple(influences.tolist()),
        eligible=max((mean.eligible or 0 for mean in sampled), default=None),
        head_variance=one.head_variance + other.head_variance,
    )


def difference_of_means(
    one: HeadColumn, other: HeadColumn, *, paired: bool, same_heads: bool
) -> MeanEstimate:
    """The mean over heads in one run minus that in another.

    With `paired`, both have the same groups of texts; otherwise they are independent. With
    `same_heads`, it is the mean of the differences of the heads that both have; otherwise the
    difference of the means over all heads of each run.
    """
    if not same_heads:
        return mean_difference(one.mean, other.mean, paired=paired)
    mine, theirs = at_common_heads(one, other)
    return mine.difference(theirs, paired=paired).mean


def mean_half_width(mean: MeanEstimate, level: float = LEVEL) -> float:
    """Half the width of the interval of a mean over heads; NaN if its error is not known."""
    return float(half_width(mean.standard_error, mean.freedom + 1.0, level))


def mean_numbers(mean: MeanEstimate) -> tuple[float, float, float, float]:
    """A mean over heads, its standard error, and both ends of its 95 % interval."""
    reach = mean_half_width(mean)
    return mean.value, mean.standard_error, mean.value - reach, mean.value + reach


def groups_of(run: MeasuredHeads) -> float:
    """Number of groups of texts of a run; NaN if it is not known."""
    table = run.head_metrics
    return float(table["n_text_groups"].max()) if "n_text_groups" in table else math.nan


def _heads_of(table: pd.DataFrame, rows: Any = slice(None)) -> tuple[tuple[int, int], ...]:
    """Layer and query head of rows of a table."""
    layers, heads = (table[name].to_numpy(np.int64)[rows].tolist() for name in HEAD)
    return tuple(zip(layers, heads, strict=True))


def _of_quantity(
    influences: pd.DataFrame, name: str, columns: list[str], heads: tuple[tuple[int, int], ...]
) -> Array:
    """(columns, heads) columns of the influences of a quantity; NaN where they are missing.

    It is called for every column of a page or a comparison. A dictionary is faster here than an
    index of pandas.
    """
    rows = np.flatnonzero(influences["quantity"] == name)
    places = {head: place for place, head in enumerate(_heads_of(influences, rows))}
    if len(places) < len(rows):
        raise ValueError(f"two rows of influences of {name} have the same head")
    chosen = [places.get(head, len(rows)) for head in heads]
    found = [influences[column].to_numpy(np.float64)[rows] for column in columns]
    return np.pad(found, ((0, 0), (0, 1)), constant_values=np.nan)[:, chosen]


def bin_influences(run: MeasuredHeads, quantity: str = BIN_QUANTITY) -> pd.DataFrame | None:
    """Influences of plasticity per head and bin of queries; None if unknown.

    Columns: `layer, q_head, q_bucket, value, n_groups` and the 16 groups. `q_bucket` is the bin, as
    in the profiles of heads. `ap_bin` is RoPE-aligned plasticity,
    `ap_bin_pooled` plasticity over the bin.
    """
    if run.influences is None:
        return None
    rows = run.influences[run.influences["quantity"] == quantity]
    kept = rows.rename(columns={"bin": "q_bucket"}).astype({"q_bucket": np.int64})
    return kept[[*HEAD, "q_bucket", "value", "n_groups", *GROUP_COLUMNS]]


def mean_of_bins(rows: pd.DataFrame, eligible: int | None) -> pd.DataFrame:
    """Mean over heads of rows as `bin_influences` returns them.

    Columns: `q_bucket, plasticity, half_width, n_groups`; the groups are the fewest of a head. A
    bin without a value takes part in no mean. Influences are averaged over heads before they are
    squared, because the heads share their texts. `eligible` is the number of heads from which the
    heads were sampled at random, or None.
    """
    found = []
    for bucket, own in rows[rows["value"].notna()].groupby("q_bucket"):
        shares, groups = own[list(GROUP_COLUMNS)].to_numpy().tolist(), own["n_groups"].tolist()
        mean = mean_estimate(own["value"].tolist(), shares, groups, eligible)
        found.append((bucket, mean.value, mean_half_width(mean), mean.groups or math.nan))
    return pd.DataFrame(found, columns=["q_bucket", "plasticity", "half_width", "n_groups"])


def rank_intervals(column: HeadColumn, level: float = LEVEL) -> Array:
    """(heads, 2) smallest and largest rank of every head; rank 1 has the largest value.

    A head is surely larger than another one if the interval of their difference, on the same texts,
    excludes 0. The level of an interval is corrected for the number of other heads (Bonferroni), so
    the interval of one rank holds its level. Without errors, every rank is possible.
    """
    number = len(column.values)
    ranks = np.empty((number, 2))
    each = 1.0 - (1.0 - level) / max(1, number - 1)
    for place in range(number):
        difference = column.values - column.values[place]
        error = np.linalg.norm(column.influences - column.influences[place], axis=1)
        reach = half_width(error, np.minimum(column.groups, column.groups[place]), each)
        ranks[place] = 1 + (difference > reach).sum(), number - (difference < -reach).sum()
    return ranks


def rank_words(ends: Array) -> str:
    """An interval of ranks: `3`, or `1–6`."""
    low, high = (f"{end:.0f}" for end in ends)
    return low if low == high else f"{low}–{high}"
