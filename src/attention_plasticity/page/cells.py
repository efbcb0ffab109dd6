"""The plasticity that the page shows first: its cells, profiles and their intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import (
    ALIGNED,
    BIN_PLASTICITY,
    BIN_QUANTITY,
    BUCKET_PLASTICITY,
    NEAR_BIN_QUANTITY,
    POOLED_BIN_QUANTITY,
)
from attention_plasticity.page.tables import ordered
from attention_plasticity.tables.bin_cells import bin_cells
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import bucket_errors, half_width, mean_of_buckets
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    main_plasticity,
)
from attention_plasticity.tables.names import clean
from attention_plasticity.tables.profiles import HEAD, head_profiles, mean_profile

_BIN_KEYS = {"q_bin": "q_bucket", "k_bin": "k_bucket"}
_NOT_STORED = {"pooled_se", "q_weight"} | {
    f"{kind}_{name}" for kind in ("q", "k") for name in ("position", "start", "end")
}
"""Columns of the table of bins that the page does not need: bins have their positions once."""
_PER_ERROR = "half_widths_per_error"
_NOT_THERE = "the tables of this run do not have it"


@dataclass(frozen=True)
class ShownCells:
    """Cells of bins, or of buckets if no head of the run has bins. `q_bucket` can be a bin."""

    table: pd.DataFrame
    at_one_position: bool
    pair_sampling: str | None

    @classmethod
    def of(cls, run: FinishedRun) -> ShownCells:
        """The cells of the plasticity that a reader sees first, with the columns of the file."""
        aligned = main_plasticity(run.head_metrics) is AT_ONE_POSITION and run.has("bins")
        path = run.path("bins" if aligned else "bucket_plasticity")
        table = run.table("bins") if aligned else run.bucket_plasticity
        require_values(table, "plasticity", path)
        names = BIN_PLASTICITY.names if aligned else BUCKET_PLASTICITY.names
        kept = table[[name for name in names if name in table]].rename(columns=_BIN_KEYS)
        kept = ordered(kept, (*HEAD, "q_bucket", "k_bucket"), path)
        return cls(kept, aligned, run.pair_sampling)

    @property
    def stored(self) -> pd.DataFrame:
        """The columns that the page stores."""
        if not self.at_one_position:
            return self.table
        return self.table[[name for name in self.table if name not in _NOT_STORED]]

    def profiles(self, run: FinishedRun) -> pd.DataFrame:
        """Profiles of heads. Those of bins have intervals, plasticity over the bin and `near`.

        `near` is plasticity with keys at equal distances.
        """
        if not self.at_one_position:
            return head_profiles(self.table)
        named = self.table.rename(columns={new: old for old, new in _BIN_KEYS.items()})
        cells = bin_cells(named, self.pair_sampling)
        pooled = head_profiles(cells.assign(plasticity=cells["pooled"]))
        pooled = _bin_intervals(run, pooled, POOLED_BIN_QUANTITY)
        pooled = pooled.rename(columns={"plasticity": "pooled", "half_width": "pooled_half_width"})
        names = [name for name in ("pooled", "pooled_half_width") if name in pooled]
        key = [*HEAD, "q_bucket"]
        found = _bin_intervals(run, head_profiles(cells))
        found = found.merge(pooled[[*key, *names]], on=key, how="left")
        near = bucket_errors(run, NEAR_BIN_QUANTITY)
        if near is None or near.empty:
            return found
        near = near.rename(columns={"value": "near", "half_width": "near_half_width"})
        return found.merge(near[[*key, "near", "near_half_width"]], on=key, how="left")

    def mean(self, run: FinishedRun, profiles: pd.DataFrame) -> pd.DataFrame:
        """The mean over the heads of some profiles of the run; that of bins has intervals."""
        mean = mean_profile(profiles)
        mean = mean[mean["heads"] > 0].reset_index(drop=True)
        rows = bucket_errors(run)
        if not self.at_one_position or rows is None or rows.empty:
            return mean
        errors, bins = mean_of_buckets(rows, run.eligible_heads), mean["q_bucket"]
        width = errors.set_index("q_bucket")["half_width"].reindex(bins).to_numpy()
        heads = rows[rows["value"].notna()].groupby("q_bucket").size().reindex(bins)
        known = heads.to_numpy() == mean["heads"]  # the influences of no head are missing
        return mean.assign(half_width=np.where(known, width, np.nan))

    def places(self, run: FinishedRun) -> tuple[pd.DataFrame, str]:
        """All buckets or bins with their positions, and the unit of these positions.

        If the geometry is known, they have a start and an end. Otherwise they have the mean
        position of their keys or queries, or their number.
        """
        cells = self.table
        seen = np.unique(np.concatenate([cells["k_bucket"], cells["q_bucket"]]))
        table = pd.DataFrame({"bucket": seen})
        if self.at_one_position:
            for edge in ("start", "end"):
                table[edge] = self._of_place(edge).reindex(seen).to_numpy(np.float64)
            return table, "tokens"
        if run.geometry is not None:
            table["start"] = run.geometry.starts(seen).astype(np.float64)
            table["end"] = run.geometry.ends(seen).astype(np.float64)
            return table, "tokens"
        if {"q_position", "k_position"} <= set(cells.columns):
            table["start"] = self._of_place("position").reindex(seen).to_numpy()
            return table, "tokens"
        table["start"] = seen.astype(np.float64)
        return table, "bucket"

    def _of_place(self, name: str) -> pd.Series[Any]:
        """A position of every bucket or bin: that of its keys, else that of its queries."""
        of_queries = self.table.groupby("q_bucket")[f"q_{name}"].mean()
        return self.table.groupby("k_bucket")[f"k_{name}"].mean().combine_first(of_queries)


def _bin_intervals(
    run: FinishedRun, profiles: pd.DataFrame, quantity: str = BIN_QUANTITY
) -> pd.DataFrame:
    """Profiles of bins with `half_width`, and half widths per standard error, for cells.

    Profiles are unchanged if the run has no influences of this quantity.
    """
    rows = bucket_errors(run, quantity)
    if rows is None or rows.empty:
        return profiles
    rows[_PER_ERROR] = half_width(1.0, rows["n_groups"].where(rows["half_width"].notna()))
    names = [*HEAD, "q_bucket"]
    return profiles.merge(rows[[*names, "half_width", _PER_ERROR]], on=names, how="left")


def kinds() -> dict[str, dict[str, Any]]:
    """The columns and words of both kinds of plasticity, for the page."""
    return {"position": asdict(AT_ONE_POSITION), "bucket": asdict(OVER_BUCKETS)}


def why_over_buckets(run: FinishedRun, cells: ShownCells) -> str | None:
    """Why RoPE-aligned plasticity is not shown, in words; None if it is shown."""
    if cells.at_one_position:
        return None
    missing = run.missing
    reasons = missing.loc[missing["column"] == ALIGNED, "reason"].unique()
    return "; ".join(clean(str(reason)) for reason in reasons) or _NOT_THERE
