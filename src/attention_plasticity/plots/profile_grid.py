"""What figures over the context draw: plasticity per head and bin or query bucket."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import interval_note
from attention_plasticity.plots.references import Baselines, Reference, known_references
from attention_plasticity.plots.shown import parts_of
from attention_plasticity.plots.style import position_axis
from attention_plasticity.plots.texts import draw_texts, texts_by_bucket
from attention_plasticity.tables.bin_cells import bin_cells, bin_geometry, has_bins
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import bucket_rows, mean_of_buckets
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.profiles import HEAD, head_profiles, heads_with_gaps
from qk_dump.buckets import BucketGeometry

Floats = npt.NDArray[np.float64]


class ProfileGrid:
    """Values, intervals and x positions, heads × bins or query buckets that have a value."""

    def __init__(
        self,
        table: pd.DataFrame,
        influences: pd.DataFrame | None = None,
        geometry: BucketGeometry | None = None,
        pair_sampling: str | None = None,
        at_starts: bool = False,
        eligible: int | None = None,
    ):
        """`table` is that of bins or of cells. Only bins have errors."""
        require_values(table, "plasticity", "the table of cells")
        self.shown, self.part = parts_of(table)
        self.eligible = eligible  # heads from which the heads were sampled at random, or None
        self.geometry = bin_geometry(table) if has_bins(table) else geometry
        self.at_starts = at_starts
        self.cells = bin_cells(table, pair_sampling)
        profiles = head_profiles(self.cells)
        values = _by_head(profiles, "plasticity").dropna(axis="columns", how="all")
        self.heads = values.index.to_frame(index=False)
        self.buckets = values.columns.to_numpy()
        self.values: Floats = values.to_numpy(dtype=np.float64)  # (heads, buckets)
        self.from_table = "q_position" in profiles and not at_starts
        if self.from_table:
            positions = _by_head(profiles, "q_position")[values.columns]
            self.x: Floats = positions.to_numpy(dtype=np.float64)  # (heads, buckets)
        else:
            starts = self.geometry.starts(self.buckets) if self.geometry else self.buckets
            self.x = np.broadcast_to(starts.astype(np.float64), self.values.shape)
        known = ~np.isnan(self.values)
        self.mean: Floats = _column_mean(self.values, known)
        self.mean_x: Floats = _column_mean(self.x, known)
        self.half: Floats = np.full(self.values.shape, np.nan)  # (heads, buckets)
        self.mean_half: Floats = np.full(len(self.buckets), np.nan)  # (buckets,)
        self.groups: Floats = np.empty(0)  # (buckets,) groups of texts behind the mean
        if influences is not None and self.shown is AT_ONE_POSITION:
            self._add_intervals(profiles, bucket_rows(influences))

    def _add_intervals(self, profiles: pd.DataFrame, errors: pd.DataFrame) -> None:
        """Half widths of the intervals of the drawn heads and of their mean."""
        drawn = profiles[[*HEAD, "q_bucket"]].assign(value=profiles["plasticity"])
        rows = drawn.merge(errors.drop(columns="value"), on=[*HEAD, "q_bucket"], how="left")
        self.half = _by_head(rows, "half_width")[self.buckets].to_numpy(dtype=np.float64)
        mean = mean_of_buckets(rows, self.eligible).set_index("q_bucket").reindex(self.buckets)
        self.mean_half = mean["half_width"].to_numpy(dtype=np.float64)
        self.groups = mean["n_groups"].to_numpy(dtype=np.float64)

    @property
    def texts(self) -> pd.Series[float]:
        """The number of texts in each drawn bin or bucket; empty if it is not known."""
        return texts_by_bucket(self.cells).reindex(self.buckets).dropna()

    def draw_texts(self, axes: Axes) -> None:
        """Draw the strip with the numbers of texts, if they differ."""
        texts = self.texts
        draw_texts(axes, texts, *self._borders(texts.index.to_numpy()))

    def position_axis(self, axes: Axes) -> None:
        """Set up the x axis."""
        if self.from_table or self.geometry is not None:
            log = self.geometry is not None and self.geometry.type == "log"
            position_axis(axes, self.x[np.isfinite(self.x)], log)
        else:
            axes.set_xlabel("query bucket")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    def references(self, baselines: Baselines) -> list[Reference]:
        """The means over heads of the baselines, in the bins or buckets of the figure."""
        found = []
        for words, run in baselines.items():
            in_bins = self.shown is AT_ONE_POSITION
            if in_bins and not run.has("bins"):
                continue
            table = run.table("bins") if in_bins else run.bucket_plasticity
            grid = ProfileGrid(
                table,
                run.influences,
                self.geometry,
                run.pair_sampling,
                self.at_starts,
                run.eligible_heads,
            )
            found.append(Reference(words, grid.mean_x, grid.mean, grid.mean_half))
        return known_references(found)

    @property
    def gaps_note(self) -> str | None:
        """How many heads have cells without a value."""
        gaps = heads_with_gaps(self.cells)
        return f"{gaps:,} of them have cells without a value, left as gaps" if gaps else None

    @property
    def interval_note(self) -> str | None:
        """What the band of the mean is."""
        return interval_note("band", self.mean_half, self.eligible)

    @property
    def interval_sentence(self) -> str | None:
        """The same as a sentence of the caption."""
        known = np.isfinite(self.mean_half)
        if not known.any():
            return None
        return interval_sentence(
            "The band is the 95 % interval of the mean,",
            self.groups,
            complete=bool(known.all()),
            eligible=self.eligible,
        )

    def _borders(self, buckets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """Left and right border of buckets on the x axis; halfway between points if unknown."""
        if self.geometry is not None:
            return (
                self.geometry.starts(buckets).astype(np.float64),
                self.geometry.ends(buckets).astype(np.float64) + 1.0,
            )
        x = self.mean_x[np.isin(self.buckets, buckets)]
        if len(x) < 2:
            return x - 0.5, x + 0.5
        halves = 0.5 * (x[1:] + x[:-1])
        edges = np.concatenate([[2 * x[0] - halves[0]], halves, [2 * x[-1] - halves[-1]]])
        return edges[:-1], edges[1:]


def _by_head(profiles: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column as heads × buckets."""
    return profiles.pivot(index=HEAD, columns="q_bucket", values=column)


def _column_mean(values: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
