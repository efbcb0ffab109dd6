"""Plasticity over the context: the profile of every head, and its mean over heads.

A profile has one value per bin of queries, or per query bucket where RoPE-aligned plasticity is
not known. Values, influences and numbers of texts come from the table of influences; a run without
it, and buckets, have means over their cells, without errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.metrics import (
    ALIGNED,
    BIN_QUANTITY,
    GROUP_COLUMNS,
    HEAD,
    NEAR,
    NEAR_BIN_QUANTITY,
    POOLED,
    POOLED_BIN_QUANTITY,
)
from attention_plasticity.read.bins import Bins
from attention_plasticity.tables.baselines import Level, level_of
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.intervals import HeadColumn, half_width, mean_half_width
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from qk_dump.positions import BucketGeometry
from qk_toolkit.arrays import Array

Ints = npt.NDArray[np.int64]

_QUANTITIES = {ALIGNED: BIN_QUANTITY, POOLED: POOLED_BIN_QUANTITY, NEAR: NEAR_BIN_QUANTITY}
_CELLS = {ALIGNED: "plasticity", POOLED: "pooled"}
"""The column of the table of bins behind a profile; near keys have only influences."""
_ROW = [*HEAD, "q_bucket"]
_LARGEST = 1 << 31  # tokens of a bin


def shown_cells(
    run: FinishedRun, wanted: Literal["position", "bucket"] | None = None
) -> tuple[pd.DataFrame, PlasticityColumns]:
    """The cells of query and key positions that a reader sees, and which plasticity they have.

    Bins have the columns of buckets, and `weight`: the weight of a cell in its bin of queries. A
    run with RoPE-aligned plasticity but without the table of bins shows that over buckets.
    """
    shown = main_plasticity(run, wanted=wanted)
    in_bins = shown is AT_ONE_POSITION and (wanted is not None or run.has("bins"))
    kind: Literal["bins", "bucket_plasticity"] = "bins" if in_bins else "bucket_plasticity"
    table = run.table(kind)
    run.require_values(kind, "plasticity")
    return bin_cells(table, run.pair_sampling), AT_ONE_POSITION if in_bins else OVER_BUCKETS


@dataclass(frozen=True, eq=False)
class Profiles:
    """One quantity of every head in every bin of queries, or in every query bucket."""

    heads: tuple[tuple[int, int], ...]  # layer and query head
    buckets: Ints  # (buckets,) numbers of the bins or buckets
    position: Array  # (heads, buckets) mean position of the queries; NaN if not known
    texts: Array  # (heads, buckets) number of texts; NaN if not known
    values: Array  # (heads, buckets); NaN without a value
    groups: Array  # (heads, buckets) of texts behind the value; NaN if not known
    influences: Array  # (heads, buckets, groups of texts); NaN if not known
    eligible: int | None  # heads from which the heads were sampled at random; None: fixed

    @cached_property
    def half(self) -> Array:
        """(heads, buckets) half widths of the 95 % intervals; NaN if not known."""
        return half_width(np.linalg.norm(self.influences, axis=2), self.groups)

    @cached_property
    def means(self) -> list[MeanEstimate]:
        """The mean over the heads with a value, of every bucket."""
        return [self.over(place).mean for place in range(len(self.buckets))]

    @property
    def mean(self) -> Array:
        """(buckets,) means over heads."""
        return np.array([mean.value for mean in self.means], np.float64)

    @property
    def mean_half(self) -> Array:
        """(buckets,) half widths of their intervals; NaN if not known."""
        return np.array([mean_half_width(mean) for mean in self.means], np.float64)

    @property
    def mean_groups(self) -> Array:
        """(buckets,) groups of texts behind the means; NaN if not known."""
        return np.array([mean.groups or np.nan for mean in self.means], np.float64)

    @property
    def mean_position(self) -> Array:
        """(buckets,) mean position of the heads with a value."""
        seen = ~np.isnan(self.values)
        total = np.where(seen, self.position, 0.0).sum(axis=0)
        number = seen.sum(axis=0)
        return np.where(number > 0, total / np.maximum(number, 1), np.nan)

    def spread(self, shares: Sequence[float]) -> Array:
        """(shares, buckets) quantiles over the heads with a value."""
        return np.asarray(np.nanquantile(self.values, shares, axis=0))

    def over(self, places: int | npt.NDArray[np.bool_]) -> HeadColumn:
        """Every head's mean over its buckets with a value, of the buckets at some places."""
        chosen = np.atleast_1d(np.arange(len(self.buckets))[places])
        known = ~np.isnan(self.values[:, chosen])  # (heads, chosen)
        rows = np.flatnonzero(known.any(axis=1))
        use, number = known[rows], known[rows].sum(axis=1)  # (own, chosen), (own,)
        own = self.influences[rows][:, chosen]  # (own, chosen, g)
        groups = np.where(use, self.groups[rows][:, chosen], np.inf).min(axis=1, initial=np.inf)
        return HeadColumn(
            tuple(self.heads[row] for row in rows.tolist()),
            np.where(use, self.values[rows][:, chosen], 0.0).sum(axis=1) / number,
            np.where(use[:, :, None], own, 0.0).sum(axis=1) / number[:, None],
            groups,
            self.eligible,
        )

    @property
    def known(self) -> Profiles:
        """The profiles in the buckets in which a head has a value."""
        return self._at(slice(None), np.flatnonzero((~np.isnan(self.values)).any(axis=0)))

    def of_layers(self, layers: Sequence[int], eligible: int | None) -> Profiles:
        """The profiles of the heads of some layers."""
        rows = np.flatnonzero(np.isin([layer for layer, _ in self.heads], list(layers)))
        return replace(self._at(rows, slice(None)), eligible=eligible)

    def _at(self, rows: Ints | slice, places: Ints | slice) -> Profiles:
        """Some heads in some buckets."""
        return Profiles(
            heads=tuple(self.heads[row] for row in np.arange(len(self.heads))[rows].tolist()),
            buckets=self.buckets[places],
            position=self.position[rows][:, places],
            texts=self.texts[rows][:, places],
            values=self.values[rows][:, places],
            groups=self.groups[rows][:, places],
            influences=self.influences[rows][:, places],
            eligible=self.eligible,
        )


def profiles_of(run: FinishedRun, column: str) -> Profiles | None:
    """The profiles of RoPE-aligned plasticity, over a bin, with near keys, or over a bucket.

    `column` is `ap_aligned`, `ap_pooled`, `ap_aligned_near` or `ap_overall`. None if the run does
    not have it. Near keys are at the distances that queries of the first fifth have.
    """
    in_bins = column != OVER_BUCKETS.level
    if not run.has("bins" if in_bins else "bucket_plasticity"):
        return None
    table = run.table("bins" if in_bins else "bucket_plasticity")
    cells = bin_cells(table, run.pair_sampling)
    rows = _influences(run, column)
    if rows.empty and column == NEAR:
        return None
    grid = _Grid.of(cells)
    first = cells.groupby(_ROW, as_index=False).first()
    position, texts = (grid.place(first, name) for name in ("q_position", "n_texts"))
    values, groups = (grid.place(rows, name) for name in ("value", "n_groups"))
    if column != NEAR and np.isnan(values).any():
        named = cells if not in_bins else cells.assign(plasticity=cells[_CELLS[column]])
        values = np.where(np.isnan(values), grid.place(head_profiles(named), "plasticity"), values)
    influences = np.stack([grid.place(rows, name) for name in GROUP_COLUMNS], axis=2)
    return Profiles(
        grid.heads,
        grid.buckets,
        position,
        texts,
        values,
        groups,
        influences,
        run.eligible_heads,
    )


def over_draws(draws: Sequence[Profiles]) -> list[Level]:
    """The mean over heads and over draws of a baseline, of every bucket with a value.

    A draw without some of the buckets of the first one is left out.
    """
    known = [draw for draw in draws if len(draw.buckets) == len(draws[0].buckets)]
    return [level_of(means) for means in zip(*(draw.means for draw in known), strict=True)]


def head_profiles(cells: pd.DataFrame) -> pd.DataFrame:
    """`AP_j` of every head: `layer, q_head, q_bucket, plasticity`, a mean over its cells.

    Cells are weighted by `weight`, which those of bins have, or by their number of pairs, or
    equally in files without these numbers. A cell without a value takes no part; without any value
    the plasticity is NaN.
    """
    known = cells["plasticity"].notna()
    found = next((cells[name] for name in ("weight", "n_pairs") if name in cells), None)
    pairs = pd.Series(1, index=cells.index) if found is None else found
    weight = pairs.where(known, 0).astype(np.float64)
    summed = (
        cells[_ROW]
        .assign(weight=weight, weighted=weight * cells["plasticity"].fillna(0.0))
        .groupby(_ROW, as_index=False)
        .sum()
    )
    total = summed.pop("weight")
    summed["plasticity"] = summed.pop("weighted") / total.where(total > 0)
    return summed


def heads_with_gaps(cells: pd.DataFrame) -> int:
    """Number of heads that have a cell without a value."""
    gaps = cells[cells["plasticity"].isna()]
    return len(gaps[HEAD].drop_duplicates())


def bin_cells(table: pd.DataFrame, pair_sampling: str | None = None) -> pd.DataFrame:
    """The table of bins as cells: `q_bucket` and `k_bucket` are the bins.

    `weight` is the weight of a cell in the plasticity of its bin of queries: all cells are equal,
    or all pairs with `pair_sampling="context"` and in layers with a window, where keys of the
    query's own bin take part. A table of cells is returned as it is.
    """
    if not {"q_bin", "k_bin"} <= set(table.columns):
        return table
    by_pairs = (table["k_bin"] >= table["q_bin"]).groupby([table[name] for name in HEAD])
    if pair_sampling == "context":
        weight = table["n_pairs"].astype(np.float64)
    else:
        weight = table["n_pairs"].where(by_pairs.transform("any"), 1).astype(np.float64)
    names = {"q_bin": "q_bucket", "k_bin": "k_bucket"}
    return table.rename(columns=names).assign(weight=weight)


def near_reach(table: pd.DataFrame, context: float) -> int | None:
    """The largest distance in tokens of the profile at equal distances; None if it is not known."""
    geometry = bin_geometry(table)
    if geometry is None or not context >= 1:
        return None
    size = geometry.min_size
    return (Bins(size, int(context)).near + 1) * size - 1


def bin_geometry(table: pd.DataFrame) -> BucketGeometry | None:
    """Where the bins of a table of bins begin; None if it does not have their positions."""
    if not {"q_bin", "q_start", "q_end"} <= set(table.columns):
        return None
    size = float((table["q_end"] - table["q_start"] + 1).max())
    return BucketGeometry("uniform", int(size)) if 1 <= size <= _LARGEST else None


@dataclass(frozen=True)
class _Grid:
    """Places of heads and buckets."""

    heads: tuple[tuple[int, int], ...]
    buckets: Ints

    @classmethod
    def of(cls, cells: pd.DataFrame) -> _Grid:
        """All heads and buckets of the cells, in their order."""
        heads = cells[HEAD].drop_duplicates().sort_values(HEAD).to_numpy(np.int64).tolist()
        buckets = np.unique(cells["q_bucket"].to_numpy(np.int64))
        return cls(tuple((layer, head) for layer, head in heads), buckets)

    def place(self, rows: pd.DataFrame, column: str) -> Array:
        """(heads, buckets) of a column of rows of heads and buckets; NaN where there is none."""
        found = np.full((len(self.heads), len(self.buckets)), np.nan)
        if column in rows and len(rows):
            names = pd.MultiIndex.from_frame(rows[HEAD])
            head = pd.MultiIndex.from_tuples(self.heads).get_indexer(names)
            bucket = rows["q_bucket"].to_numpy(np.int64)
            place = np.searchsorted(self.buckets, bucket).clip(max=len(self.buckets) - 1)
            kept = (head >= 0) & (self.buckets[place] == bucket)
            found[head[kept], place[kept]] = rows[column].to_numpy(np.float64)[kept]
        return found


def _influences(run: FinishedRun, column: str) -> pd.DataFrame:
    """The rows of a quantity of bins in the table of influences; empty if it is not there."""
    table = run.influences
    if table is None or column not in _QUANTITIES:
        return pd.DataFrame()
    rows = table[table["quantity"] == _QUANTITIES[column]]
    return rows.rename(columns={"bin": "q_bucket"}).astype({"q_bucket": np.int64})
